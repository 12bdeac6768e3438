"""Dead letters of share groups, as Kafka's settings have them (KIP-1191)."""

import asyncio

import pytest
from tests.doors.kafka import Door, batch_of
from tests.unit.protocols.kafka.share_member import REJECT, Member, open_group, run, set_for_group

from penstock.engine.reading import Cursor, Message

COPY = "errors.deadletterqueue.copy.record.enable"


async def letter_of(door: Door, *, is_queue: bool = False) -> Message:
    """The dead letter of a record that was rejected."""
    topic = await door.topic()
    if is_queue:
        await door.engine.alter_queues(topic, lambda queues: {**queues, "g": {}})
    await (await door.client()).produce(batch_of(b"value"))
    await open_group(door)
    member = await Member.of(door)
    await member.fetch(0)
    await member.acknowledge({0: [(0, 0, [REJECT])]})
    for _ in range(100):
        letters = door.engine.topics.get("dlq.t.g")
        if letters is not None and (found := await Cursor(letters.partitions[0], 0).records(1, 0, 1)):
            return found[0]
        await asyncio.sleep(1)
    raise AssertionError("no dead letter came")


@pytest.mark.parametrize(
    ("setting", "is_queue", "value"),
    [(None, False, b"value"), ("true", False, b"value"), ("false", False, None), ("false", True, b"value")],
)
def test_a_letter_has_its_record_unless_somebody_says_otherwise(
    setting: str | None, is_queue: bool, value: bytes | None
) -> None:
    async def body(door: Door) -> None:
        if setting is not None:
            await set_for_group(door, COPY, setting)
        letter = await letter_of(door, is_queue=is_queue)
        assert (letter.key, letter.value) == (None, value)
        told = {name: text for name, text in letter.headers if name.startswith("__dlq.errors.")}
        assert told == {
            "__dlq.errors.topic": b"t",
            "__dlq.errors.partition": b"0",
            "__dlq.errors.offset": b"0",
            "__dlq.errors.group": b"g",
            "__dlq.errors.delivery.count": b"1",
            "__dlq.errors.message": b"Offset rejected by client.",
        }

    run(body)
