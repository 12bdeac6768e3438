"""Queues that give messages out in an order of their own pass what was left out of batches as duplicates."""

import pytest
from tests.message_ids import QUEUE, publish, with_window
from tests.simulated_broker import running
from tests.unit.engine.test_engine import Machine

from penstock.engine.queues.answers import Want
from penstock.engine.queues.verdicts import Change, Receipt, Verdict, VerdictKind
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.testing.virtual_clock import run_virtual

ACK = Verdict(VerdictKind.ACK)


def numbered(sequence: int, *ids: str, codec: int = Codec.NONE) -> bytearray:
    """Of a producer that numbers what it sends; keys and priorities differ."""
    records = [
        (
            b"k%d" % (at % 2),
            each.encode(),
            (("penstock-id", each.encode()), ("penstock-priority", b"%d" % at)),
            1_700_000_000_000,
        )
        for at, each in enumerate(ids)
    ]
    return bytearray(build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence, codec=codec))


@pytest.mark.parametrize(
    ("name", "value"),
    [("kind", "fifo"), ("lanes", "strict"), ("delay", "2s"), ("single-active", "true"), ("tenant-weights", "gold=4")],
)
def test_each_message_comes_once_and_nothing_is_left(name: str, value: str) -> None:
    async def play() -> None:
        async with running(Machine().broker()) as broker:
            jobs = await with_window(broker)
            topic = broker.engine.topics.get(QUEUE)
            assert topic is not None
            await broker.engine.alter_queues(topic, lambda _: {QUEUE: {"dedup-window": "1m", name: value}})
            for batch in (
                numbered(0, "a", "b"),
                numbered(2, "a", "c", "b", "d"),
                numbered(6, "a", "c"),
                numbered(8, "e", "c", codec=Codec.GZIP),
            ):
                assert (await publish(jobs, broker, batch)).error is None
            had: list[bytes | None] = []
            while deliveries := await broker.engine.receiving.receive(jobs, Want(QUEUE, "c", 10), 1 << 20, 5.0):
                for each in deliveries:
                    offset = each.message.offset
                    had.append(each.message.value)
                    change = Change(offset, offset, ACK)
                    await broker.engine.queues.settle(jobs, QUEUE, Receipt(each.lease_id), [change])
            assert sorted(value or b"" for value in had) == [b"a", b"b", b"c", b"d", b"e"]
            figures = await broker.engine.queues.figures(jobs, QUEUE)
            assert (figures.ready, figures.leased) == (0, 0)

    run_virtual(play, 7)
