"""Verbs about schedules, in virtual time: what they answer to who may ask, what is published, what they refuse."""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.doors.kafka import Client, Door, with_door
from tests.doors.verbs import Told, ask

from penstock.engine.access import ANONYMOUS, Kind, NotAuthorised, Operation, Resource, Subject
from penstock.engine.queues.names import QueueName
from penstock.engine.queues.schedules.schedule import LONGEST_VALUE, MOST_HEADERS
from penstock.engine.queues.schedules.schedules import MOST_LISTED, NewSchedule

INVALID, EXISTS, NOT_FOUND, UNKNOWN, NO_TOPIC, NO_GROUP = 42, 92, 91, 69, 29, 30
MINUTE_MS = 60_000
Body = Callable[[Door, Client], Awaitable[None]]


def run(body: Body) -> None:
    """With queue jobs."""

    async def main(door: Door) -> None:
        client = await door.client()
        assert (await ask(client, "queue.create", {"queue": "jobs", "partitions": 2})).code == 0
        await body(door, client)

    with_door(main)


async def told(client: Client, verb: str, **fields: Any) -> Any:
    answer = await ask(client, f"queue.schedule.{verb}", {"queue": "jobs", **fields})
    assert answer.code == 0, answer
    return answer.document


async def refused(client: Client, verb: str, **fields: Any) -> Told:
    answer = await ask(client, f"queue.schedule.{verb}", {"queue": "jobs", **fields})
    assert answer.code != 0, answer
    return answer


NIGHTLY = {"schedule": "nightly", "cron": "30  3 * * *", "zone": "Europe/Berlin", "value": "report"}


def test_made_listed_paused_resumed_and_removed() -> None:
    async def body(door: Door, client: Client) -> None:
        made = await told(client, "add", **NIGHTLY, partition=0)
        now = door.clock.now_ms()
        assert made == {
            "queue": "jobs",
            "schedule": "nightly",
            "cron": "30 3 * * *",
            "zone": "Europe/Berlin",
            "paused": False,
            "knows_zone": True,
            "next_ms": made["next_ms"],
            "planned_ms": None,
            "fired_ms": None,
            "value_bytes": 6,
        }
        assert len(made["next_ms"]) == 3
        assert all(now < each <= now + 4 * 86_400_000 for each in made["next_ms"])
        assert (await refused(client, "add", **NIGHTLY)).code == EXISTS
        paused = await told(client, "pause", schedule="nightly")
        assert (paused["paused"], paused["next_ms"]) == (True, [])
        resumed = await told(client, "resume", schedule="nightly")
        assert (resumed["paused"], resumed["next_ms"]) == (False, made["next_ms"])
        listed = await told(client, "list")
        assert listed == {"rows": [{**made, "key": None, "value": "report", "headers": []}], "more": False}
        gone = await told(client, "remove", schedule="nightly")
        assert gone == {"queue": "jobs", "schedule": "nightly", "under_way": False}
        for verb in ("pause", "resume", "remove"):
            assert (await refused(client, verb, schedule="nightly")).code == NOT_FOUND
        assert (await told(client, "list"))["rows"] == []

    run(body)


def test_what_it_publishes_is_what_was_said() -> None:
    """To be received as any other message of the queue."""

    async def body(door: Door, client: Client) -> None:
        raw = b64encode(b"\xff\0").decode()
        headers = [{"name": "a", "value": "1"}, {"name": "b", "value_base64": raw}, {"name": "c"}]
        fields = {"cron": "* * * * *", "value_base64": raw, "key_base64": raw, "headers": headers}
        await told(client, "add", schedule="s", **fields)
        now = door.clock.now_ms()
        first = now - now % MINUTE_MS + MINUTE_MS
        await asyncio.sleep((first - now) / 1000 + 1)
        messages = []
        for partition in range(2):
            asked = {"queue": "jobs", "partition": partition, "most": 10}
            messages += (await ask(client, "queue.lease", asked)).document["messages"]
        (message,) = messages
        assert (message["value_base64"], message["key_base64"]) == (raw, raw)
        assert message["headers"] == [
            {"name": "a", "value": "1"},
            {"name": "b", "value_base64": raw},
            {"name": "c", "value": None},
            {"name": "penstock-sys-schedule", "value": "s"},
            {"name": "penstock-sys-planned-time-ms", "value": str(first)},
        ]
        (row,) = (await told(client, "list"))["rows"]
        assert row["planned_ms"] == first
        assert first <= row["fired_ms"] < first + 1000
        assert row["next_ms"][0] == first + MINUTE_MS
        assert (row["key_base64"], row["value_base64"], row["headers"]) == (raw, raw, message["headers"][:3])

    run(body)


def test_listed_page_by_page_and_long_values_by_their_length() -> None:
    async def body(door: Door, client: Client) -> None:
        for number in range(5):
            await told(client, "add", schedule=f"s{number}", cron="0 0 * * *", value="." * 2000)
        first = await told(client, "list", limit=3)
        assert ([row["schedule"] for row in first["rows"]], first["more"]) == (["s0", "s1", "s2"], True)
        rest = await told(client, "list", limit=3, after="s2")
        assert ([row["schedule"] for row in rest["rows"]], rest["more"]) == (["s3", "s4"], False)
        assert (rest["rows"][0]["value"], rest["rows"][0]["value_bytes"]) == (None, 2000)
        assert (await refused(client, "list", limit=MOST_LISTED + 1)).code == INVALID

    run(body)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"cron": "61 * * * *"}, "there is no minute '61'"),
        ({"cron": "x" * 1000}, "has 1000 characters"),
        ({"zone": "Europe/Berln"}, "time zone 'Europe/Berln' is unknown"),
        ({"zone": "../../../etc/passwd"}, "is unknown"),
        ({"zone": "Europe"}, "is unknown"),
        ({"zone": "posixrules/x"}, "is unknown"),
        ({"schedule": "a/b"}, "schedule name 'a/b' is not 1 to 249 of letters"),
        ({"schedule": ""}, "schedule name ''"),
        ({"schedule": "n" * 250}, "is not 1 to 249"),
        ({"value": "x" * (LONGEST_VALUE + 1)}, f"value has a length of {LONGEST_VALUE + 1}"),
        ({"value": None, "value_base64": b64encode(bytes(LONGEST_VALUE + 1)).decode()}, "a value of 65537 bytes"),
        ({"value": "ä" * LONGEST_VALUE}, "a value of 131072 bytes; allowed: 65536"),
        ({"value_base64": "eA=="}, "value and value_base64 exclude one another"),
        ({"value": None, "value_base64": "?"}, "value_base64 is no base64"),
        ({"key": "k" * 5000}, "key has a length of 5000"),
        ({"headers": [{"name": "h"}] * (MOST_HEADERS + 1)}, "headers has a length of 101"),
        ({"headers": [{"name": "h", "value": "." * 17_000}]}, "headers of 17001 bytes"),
        ({"headers": [{"name": "penstock-sys-schedule", "value": "x"}]}, "written by brokers only"),
        ({"headers": [{"name": "penstock-id", "value": "x"}]}, "would have the same id"),
        ({"headers": [{"value": "x"}]}, "name is missing"),
        ({"partition": 1}, "partition: 1 is not a whole number from 0 to 0"),
        ({"often": 1}, "field 'often' is not known"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(fields: dict[str, Any], why: str) -> None:
    async def body(door: Door, client: Client) -> None:
        answer = await refused(client, "add", **{"schedule": "s", "cron": "* * * * *", "value": "x", **fields})
        assert (answer.code, why in answer.text) == (INVALID, True), answer
        assert (await told(client, "list"))["rows"] == []
        topic = door.engine.topics.get("jobs")
        assert topic is not None
        assert "cron" not in topic.attached

    run(body)


def test_only_queues_that_were_made_have_any() -> None:
    async def body(door: Door, client: Client) -> None:
        await door.topic("stream")
        for name in ("stream", "jobs:share"):
            answer = await ask(client, "queue.schedule.add", {"queue": name, **NIGHTLY})
            assert (answer.code, f"there is no queue '{name}'" in answer.text) == (UNKNOWN, True)
        answer = await ask(client, "queue.schedule.list", {"queue": "nothing"})
        assert answer.code == 3

    run(body)


def test_a_topic_that_brokers_alone_write_to_has_none() -> None:
    async def body(door: Door, client: Client) -> None:
        topic = door.engine.topics.get("jobs")
        assert topic is not None
        await door.engine.alter_topic(topic, lambda given: {**given, "written.by": "broker"})
        assert "written by the broker only" in (await refused(client, "add", **NIGHTLY)).text

    run(body)


def test_a_deleted_queue_takes_them_along_and_a_purged_one_does_not() -> None:
    async def body(door: Door, client: Client) -> None:
        await told(client, "add", **NIGHTLY)
        assert (await ask(client, "queue.purge", {"queue": "jobs", "partition": 0})).code == 0
        assert len((await told(client, "list"))["rows"]) == 1
        assert (await ask(client, "queue.forget", {"queue": "jobs", "partition": 1})).code == 0
        assert len((await told(client, "list"))["rows"]) == 1
        assert (await ask(client, "queue.forget", {"queue": "jobs", "partition": 0})).code == 0
        assert (await told(client, "list"))["rows"] == []

    run(body)


class AllBut:
    """May do everything but one thing to one of a kind."""

    def __init__(self, operation: Operation, kind: Kind) -> None:
        self._not = operation, kind

    revision = 1
    is_open = False

    def decide(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        return (operation, resource.kind) != self._not

    def decide_any(self, subject: Subject, operation: Operation, kind: Kind) -> bool:
        return True

    def likeness(self, subject: Subject) -> None:
        return None


CHANGES = ((Operation.ALTER_CONFIGS, Kind.GROUP), (Operation.ALTER_CONFIGS, Kind.TOPIC), (Operation.WRITE, Kind.TOPIC))
LISTS = ((Operation.DESCRIBE, Kind.GROUP), (Operation.DESCRIBE, Kind.TOPIC))
CODES = {Kind.TOPIC: NO_TOPIC, Kind.GROUP: NO_GROUP}


def test_who_lacks_one_of_the_rights_changes_nothing_and_learns_nothing() -> None:
    """Neither through a door, nor from the engine; also of what is not there."""

    async def body(door: Door, client: Client) -> None:
        await told(client, "add", **NIGHTLY)
        acting = door.engine.acting_as(ANONYMOUS).schedules
        name = QueueName("jobs", "jobs")
        for lacking in CHANGES:
            door.engine.access.policy = AllBut(*lacking)
            for verb in ("add", "pause", "resume", "remove"):
                fields = {"schedule": "nightly"} if verb != "add" else {**NIGHTLY, "schedule": "mine"}
                assert (await refused(client, verb, **fields)).code == CODES[lacking[1]]
                assert (await refused(client, verb)).code == CODES[lacking[1]]
                nowhere = {"queue": "nothing", **fields}
                assert (await ask(client, f"queue.schedule.{verb}", nowhere)).code == CODES[lacking[1]]
            with pytest.raises(NotAuthorised):
                await acting.add(name, NewSchedule("mine", "* * * * *", "UTC", b""))
            for change in (acting.pause, acting.resume, acting.remove):
                with pytest.raises(NotAuthorised):
                    await change(name, "nightly")
            assert [row["schedule"] for row in (await told(client, "list"))["rows"]] == ["nightly"]
        for lacking in LISTS:
            door.engine.access.policy = AllBut(*lacking)
            assert (await refused(client, "list")).code == CODES[lacking[1]]
            with pytest.raises(NotAuthorised):
                await acting.list(name, "", 10)

    run(body)


def test_messages_are_shown_to_who_may_read_them() -> None:
    async def body(door: Door, client: Client) -> None:
        await told(client, "add", **NIGHTLY)
        door.engine.access.policy = AllBut(Operation.READ, Kind.TOPIC)
        (row,) = (await told(client, "list"))["rows"]
        assert row["value_bytes"] == 6
        assert not {"value", "key", "headers"} & set(row)

    run(body)
