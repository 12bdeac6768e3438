"""Verbs about queues, in virtual time: what they answer to who may ask, and what they refuse."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from tests.doors.kafka import Client, Door, batch_of, with_door
from tests.doors.verbs import Told, ask

from penstock.engine.access import Kind, Operation, Resource, Subject
from penstock.engine.queues.receipts import make_receipt, parse_receipt
from penstock.errors import Code
from penstock.protocols.kafka_wire.errors import KAFKA_CODES
from penstock.records.build import build_batch

INVALID, CONFIG, EXISTS, PARTITIONS, UNKNOWN = 42, 40, 92, 37, 69
Body = Callable[[Door, Client], Awaitable[None]]


def run(body: Body, *, settings: Mapping[str, str] | None = None, partitions: int = 1) -> None:
    """With queue jobs."""

    async def main(door: Door) -> None:
        client = await door.client()
        made = {"queue": "jobs", "settings": dict(settings or {}), "partitions": partitions}
        assert (await ask(client, "queue.create", made)).code == 0
        await body(door, client)

    with_door(main)


async def told(client: Client, verb: str, **fields: Any) -> Any:
    """The answer of a verb about queue jobs that is done."""
    answer = await ask(client, f"queue.{verb}", {"queue": "jobs", **fields})
    assert answer.code == 0, answer
    return answer.document


async def refused(client: Client, verb: str, **fields: Any) -> Told:
    answer = await ask(client, f"queue.{verb}", {"queue": "jobs", **fields})
    assert answer.code != 0, answer
    return answer


async def send(client: Client, *values: bytes, partition: int = 0, topic: str = "jobs") -> None:
    assert (await client.produce(batch_of(*values), topic=topic, partition=partition))["error_code"] == 0


async def receive(client: Client, most: int = 100, **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await told(client, "lease", most=most, **fields))["messages"]
    return found


async def settle(client: Client, verdict: str, *receipts: str, **more: Any) -> list[str | None]:
    """The error of each, or None."""
    rows = [{"receipt": each, "verdict": verdict, **more} for each in receipts]
    results = (await told(client, "settle", receipts=rows))["results"]
    assert [row["receipt"] for row in results] == list(receipts)
    return [row["error"] for row in results]


async def figures(client: Client, partition: int = 0) -> tuple[int, ...]:
    (row,) = [each for each in (await told(client, "describe"))["partitions"] if each["partition"] == partition]
    return tuple(row[name] for name in ("ready", "leased", "delayed", "dying"))


def values(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [each["value"] for each in messages]


# --- what there are


def test_a_queue_is_made_with_its_topic() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        made = await ask(client, "queue.create", {"queue": "jobs", "partitions": 3, "settings": {"ttl": " 1d "}})
        assert made.document == {"queue": "jobs", "topic": "jobs", "group": "jobs", "made_topic": True, "partitions": 3}
        log = door.engine.topics.partition("jobs", 0).leading()
        assert [floor() for floor in log.floors] == [0], "retention spares everything from then on"
        other = await ask(client, "queue.create", {"queue": "jobs:audit"})
        assert (other.document["made_topic"], other.document["partitions"]) == (False, 3)
        assert (await ask(client, "queue.create", {"queue": "jobs"})).code == EXISTS
        wrong = await ask(client, "queue.create", {"queue": "jobs:more", "partitions": 4})
        assert (wrong.code, "with 3 partitions and not 4" in wrong.text) == (PARTITIONS, True)
        assert (await ask(client, "queue.create", {"queue": "jobs:more", "partitions": 3})).code == 0
        rows = (await ask(client, "queue.list")).document["rows"]
        assert [(row["queue"], row["settings"]) for row in rows] == [
            ("jobs", {"ttl": "1d"}),
            ("jobs:audit", {}),
            ("jobs:more", {}),
        ]

    with_door(body)


def test_what_cannot_be_made_leaves_no_topic() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        for settings in ({"visibility": "1"}, {"visbility": "1m"}, {"max-attempts": "3", "max-deliveries": "3"}):
            answer = await ask(client, "queue.create", {"queue": "jobs", "settings": settings})
            assert (answer.code, next(iter(settings)) in answer.text) == (CONFIG, True)
        for name in ("a/b", "jobs:", ""):
            assert (await ask(client, "queue.create", {"queue": name})).code == INVALID
        assert door.engine.topics.get("jobs") is None

    with_door(body)


def test_queues_are_listed_page_by_page() -> None:
    async def body(door: Door, client: Client) -> None:
        for name in ("jobs:b", "jobs:a", "ann"):
            await ask(client, "queue.create", {"queue": name})
        await door.topic("stream")
        first = (await ask(client, "queue.list", {"limit": 3})).document
        assert ([row["queue"] for row in first["rows"]], first["more"]) == (["ann", "jobs", "jobs:a"], True)
        second = (await ask(client, "queue.list", {"limit": 3, "after": "jobs:a"})).document
        assert ([row["queue"] for row in second["rows"]], second["more"]) == (["jobs:b"], False)

    run(body)


def test_who_deletes_a_queue_keeps_its_topic() -> None:
    async def body(door: Door, client: Client) -> None:
        await send(client, b"one", b"two")
        (taken, _) = await receive(client)
        await settle(client, "ack", taken["receipt"])
        for _ in range(2):
            assert (await told(client, "forget", partition=0)) == {"partition": 0}
        await told(client, "delete")
        assert (await ask(client, "queue.list")).document["rows"] == []
        for verb in ("delete", "alter", "describe", "lease"):
            assert (await refused(client, verb)).code == UNKNOWN
        await told(client, "create")
        assert values(await receive(client)) == ["one", "two"], "another one of the name begins anew"

    run(body)


# --- what they go by


def test_settings_are_altered() -> None:
    async def body(door: Door, client: Client) -> None:
        done = await told(client, "alter", settings={"max-deliveries": "7", "ttl": "1h"}, unset=["visibility"])
        assert done["changes"] == [
            {"name": "visibility", "old": "1m", "new": "30s"},
            {"name": "max-attempts", "old": "5", "new": None},
            {"name": "max-deliveries", "old": None, "new": "7"},
            {"name": "ttl", "old": "none", "new": "1h"},
        ]
        in_force = {row["name"]: row for row in (await told(client, "describe"))["settings"]}
        assert in_force["max-deliveries"] == {"name": "max-deliveries", "value": "7", "own": True}
        assert in_force["visibility"] == {"name": "visibility", "value": "30s", "own": False}
        for fields in ({"settings": {"ttl": "x"}}, {"unset": ["tll"]}):
            assert (await refused(client, "alter", **fields)).code == CONFIG
        assert {row["name"]: row for row in (await told(client, "describe"))["settings"]} == in_force

    run(body, settings={"visibility": "1m", "max-attempts": "5"})


# --- leasing


def test_what_is_leased_comes_with_a_receipt() -> None:
    async def body(door: Door, client: Client) -> None:
        headers = (("a", b"\xff"), ("b", None))
        batch = build_batch([(b"\xfe", b"v\xc3\xa9", headers, 1_700_000_000_000), (None, None, (), 1_700_000_000_000)])
        await client.produce(batch, topic="jobs")
        now = door.clock.now_ms()
        one, two = await receive(client, visibility_ms=5000)
        assert parse_receipt(one["receipt"])[:2] == (0, 0)
        assert one["until_ms"] - now == pytest.approx(5000, abs=100)
        assert {**one, "receipt": "", "until_ms": 0} == {
            "receipt": "",
            "partition": 0,
            "offset": 0,
            "timestamp": 1_700_000_000_000,
            "key_base64": "/g==",
            "value": "vé",
            "headers": [{"name": "a", "value_base64": "/w=="}, {"name": "b", "value": None}],
            "deliveries": 1,
            "attempts": 0,
            "until_ms": 0,
        }
        assert (two["key"], two["value"], two["headers"]) == (None, None, [])
        assert await receive(client) == []

    run(body)


def test_no_more_than_was_asked_for() -> None:
    async def body(door: Door, client: Client) -> None:
        for number in range(4):
            await send(client, b"%d" % number * 1000)
        assert [text[0] for text in values(await receive(client, 1))] == ["0"]
        assert [text[0] for text in values(await receive(client, max_bytes=1))] == ["1"], "one there always is"
        assert [text[0] for text in values(await receive(client))] == ["2", "3"]
        for fields in (
            {"most": 0},
            {"most": 1001},
            {"wait_ms": 30_001},
            {"visibility_ms": 999},
            {"consumer": "x" * 201},
        ):
            assert (await refused(client, "lease", **fields)).code == INVALID

    run(body)


@pytest.mark.parametrize("partitions", [1, 3])
def test_who_waits_gets_what_comes(partitions: int) -> None:
    async def body(door: Door, client: Client) -> None:
        other = await door.client()
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await receive(client, wait_ms=2000) == []
        assert loop.time() - began == pytest.approx(2, abs=0.1)
        waiting = asyncio.create_task(receive(client, wait_ms=20_000))
        await asyncio.sleep(5)
        await send(other, b"late", partition=partitions - 1)
        assert values(await waiting) == ["late"]
        assert loop.time() - began == pytest.approx(7, abs=0.5)
        waiting = asyncio.create_task(receive(client, wait_ms=30_000))
        await asyncio.sleep(1)
        assert not waiting.done()
        assert values(await waiting) == ["late"], "when its first lease is over"

    run(body, partitions=partitions, settings={"visibility": "10s", "backoff": "none"})


def test_all_partitions_get_their_turn() -> None:
    async def body(door: Door, client: Client) -> None:
        seen = set()
        for number in range(3):
            await send(client, *[b"x"] * 50, partition=number)
        for _ in range(30):
            seen |= {each["partition"] for each in await receive(client, 1)}
            await asyncio.sleep(0.001)
        assert seen == {0, 1, 2}
        assert {each["partition"] for each in await receive(client, 5, partition=1)} == {1}
        assert (await refused(client, "lease", partition=3)).code == KAFKA_CODES[Code.UNKNOWN_TOPIC]

    run(body, partitions=3)


# --- settling


def test_each_receipt_has_its_own_result() -> None:
    async def body(door: Door, client: Client) -> None:
        await send(client, *[b"%d" % number for number in range(6)])
        given = [each["receipt"] for each in await receive(client)]
        assert await settle(client, "ack", given[1], given[2]) == [None, None]
        strange = make_receipt(0, 4, 12345)
        told_of = await settle(client, "ack", given[3], given[2], strange, "nonsense", make_receipt(9, 0, 1), given[5])
        assert told_of == [None, "stale_receipt", "stale_receipt", "invalid_request", "unknown_topic", None]
        assert await figures(client) == (0, 2, 0, 0)
        assert await settle(client, "ack", given[0], given[4]) == [None, None]
        assert await figures(client) == (0, 0, 0, 0)

    run(body)


def test_what_is_acknowledged_twice_is_done_or_stale_but_never_given_again() -> None:
    async def body(door: Door, client: Client) -> None:
        await send(client, b"one", b"two")
        one, two = [each["receipt"] for each in await receive(client)]
        assert await settle(client, "ack", two) == [None]
        assert await settle(client, "ack", two) == ["stale_receipt"]
        assert await settle(client, "ack", one) == [None]
        await asyncio.sleep(60)
        assert await receive(client) == []

    run(body)


def test_verdicts() -> None:
    async def body(door: Door, client: Client) -> None:
        await send(client, *[b"%d" % number for number in range(5)])
        given = [each["receipt"] for each in await receive(client)]
        rows = [
            {"receipt": given[0], "verdict": "ack"},
            {"receipt": given[1], "verdict": "nack"},
            {"receipt": given[2], "verdict": "nack", "delay_ms": 60_000},
            {"receipt": given[3], "verdict": "release"},
            {"receipt": given[4], "verdict": "reject", "reason": "no such customer"},
        ]
        results = (await told(client, "settle", receipts=rows))["results"]
        assert [row["error"] for row in results] == [None] * 5
        again = await receive(client)
        assert [(each["value"], each["deliveries"], each["attempts"]) for each in again] == [("3", 2, 0)]
        await asyncio.sleep(11)
        assert [(each["value"], each["attempts"]) for each in await receive(client)] == [("1", 1)]
        await asyncio.sleep(50)
        assert "2" in values(await receive(client))

    run(body, settings={"backoff": "fixed:10s", "visibility": "5m", "dead-letter": "none"})


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([{"receipt": "x"}], "verdict is missing"),
        ([{"receipt": "x", "verdict": "drop"}], "verdict: 'drop' is not one of ack, nack, release, reject"),
        ([{"receipt": "x", "verdict": "ack", "delay_ms": 5}], "what is acked does not come again"),
        ([{"receipt": "x", "verdict": "ack", "dely": 5}], "field 'dely' is not known"),
        ([{"receipt": "x", "verdict": "ack"}] * 2, "receipts: 'x' is there twice"),
        ([5], "receipts: a list of objects, and 5"),
        ([{"receipt": "x", "verdict": "ack"}] * 1001, "receipts has a length of 1001; allowed: 1000"),
    ],
)
def test_what_is_no_verdict(rows: list[Any], why: str) -> None:
    async def body(door: Door, client: Client) -> None:
        answer = await refused(client, "settle", receipts=rows)
        assert (answer.code, why in answer.text) == (INVALID, True), answer

    run(body)


def test_leases_are_extended() -> None:
    async def body(door: Door, client: Client) -> None:
        await send(client, b"one", b"two")
        one, two = [each["receipt"] for each in await receive(client)]
        results = (await told(client, "extend", receipts=[one, "nonsense"], visibility_ms=60_000))["results"]
        assert [row["error"] for row in results] == [None, "invalid_request"]
        await asyncio.sleep(15)
        assert await settle(client, "ack", one, two) == [None, "stale_receipt"]

    run(body, settings={"visibility": "10s"})


def test_a_queue_is_purged() -> None:
    async def body(door: Door, client: Client) -> None:
        await send(client, *[b"%d" % number for number in range(5)])
        await receive(client, 1)
        assert await told(client, "purge", partition=0, before=2) == {"partition": 0, "purged": 2}
        assert values(await receive(client, 1)) == ["2"]
        assert (await told(client, "purge", partition=0))["purged"] == 3
        assert await figures(client) == (0, 0, 0, 0)
        await send(client, b"new")
        assert values(await receive(client)) == ["new"]

    run(body)


# --- looking


def test_figures() -> None:
    async def body(door: Door, client: Client) -> None:
        assert (await figures(client), await figures(client, 1)) == ((0,) * 4, (0,) * 4), "before anybody has come"
        await send(client, *[b"x"] * 5)
        assert await figures(client) == (5, 0, 0, 0)
        given = [each["receipt"] for each in await receive(client, 3, partition=0)]
        await settle(client, "nack", given[1])
        assert await figures(client) == (2, 2, 1, 0)
        await settle(client, "ack", given[0])
        await asyncio.sleep(3)
        told_of = await told(client, "describe")
        row = told_of["partitions"][0]
        assert (row["leader"], row["start"], row["next"], row["held_bytes"]) == (1, 1, 3, 0)
        assert 0 <= door.clock.now_ms() - 1_700_000_000_000 - row["oldest_ms"] < 10
        assert (told_of["made_by"], told_of["dead_letter_topic"]) == ("queue", "dlq.jobs")

    run(body, partitions=2, settings={"backoff": "fixed:1h"})


def test_what_a_queue_holds_back() -> None:
    """What retention would let go of, and leaves there until it is settled."""

    async def held(client: Client) -> tuple[int, int | None]:
        (row,) = (await told(client, "describe"))["partitions"]
        return row["held_bytes"], row["oldest_ms"]

    async def body(door: Door) -> None:
        client = await door.client()
        await door.topic("jobs", segment_bytes="1024", retention_ms="1000")
        await told(client, "create")
        for number in range(10):
            await send(client, b"%d" % number * 500)
        given = await receive(client, visibility_ms=12 * 3_600_000)
        await asyncio.sleep(3600)
        size, oldest_ms = await held(client)
        assert size > 9 * 500 and oldest_ms is not None
        await told(client, "alter", settings={"durable": "false"})
        assert (await held(client))[0] == 0, "retention spares nothing for it"
        await told(client, "alter", unset=["durable"])
        await settle(client, "ack", *(each["receipt"] for each in given))
        assert await held(client) == (0, None)

    with_door(body)


def test_looking_makes_nothing() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        topic = await door.topic("stream")
        for verb, more in (("describe", {}), ("browse", {"partition": 0}), ("where", {"partition": 0, "offset": 0})):
            assert (await ask(client, f"queue.{verb}", {"queue": "stream", **more})).code == UNKNOWN
            assert (await ask(client, f"queue.{verb}", {"queue": "none", **more})).code == UNKNOWN
        assert topic.attached == {} and door.engine.topics.get("none") is None

    with_door(body)


def test_browsing_shows_what_is_not_settled() -> None:
    async def body(door: Door, client: Client) -> None:
        for number in range(8):
            await send(client, b"%d" % number)
        given = [each["receipt"] for each in await receive(client, 4)]
        await settle(client, "ack", given[1])
        await settle(client, "nack", given[2])
        seen = (await told(client, "browse", partition=0))["messages"]
        assert [(each["value"], each["state"], each["deliveries"], each["attempts"]) for each in seen] == [
            ("0", "leased", 1, 0),
            ("2", "delayed", 1, 1),
            ("3", "leased", 1, 0),
            *((str(number), "ready", 0, 0) for number in range(4, 8)),
        ]
        assert seen[0]["until_ms"] is not None
        assert values((await told(client, "browse", partition=0, states=["delayed", "leased"]))["messages"]) == list(
            "023"
        )
        assert await figures(client) == (4, 2, 1, 0), "nothing is leased by it"
        found, after, end = [], 3, None
        while after is not None:
            page = await told(client, "browse", partition=0, offset=after, end=end, max_bytes=1)
            found += values(page["messages"])
            after, end = page["next"], page["end"]
            if len(found) == 1:
                await send(client, b"more")
        assert found == list("34567"), "up to where it ended at first"

    run(body, settings={"backoff": "fixed:1h"})


async def send_with_id(client: Client, value: bytes, message_id: str) -> None:
    headers = (("penstock-id", message_id.encode()),)
    batch = build_batch([(None, value, headers, 1_700_000_000_000)])
    assert (await client.produce(batch, topic="jobs"))["error_code"] == 0


def test_a_message_is_found_by_its_offset_and_by_its_id() -> None:
    async def body(door: Door, client: Client) -> None:
        await send(client, *[b"x"] * 3)
        await send_with_id(client, b"pay", "4711")
        place = {"partition": 0, "offset": 3, "timestamp": 1_700_000_000_000, "id": "4711", "unread": []}
        ready = {"state": "ready", "deliveries": 0, "attempts": 0, "until_ms": None, "consumer": None}
        ready |= {"in_sync": 1, "replicas": 1, "history": []}
        assert await told(client, "where", partition=0, offset=3) == {"found": {**place, **ready}, "next": None}
        assert await told(client, "where", partition=0, id="4711") == {"found": {**place, **ready}, "next": None}
        assert await told(client, "where", partition=0, id="4712") == {"found": None, "next": None}
        page = await told(client, "where", partition=0, id="4711", max_bytes=1)
        assert (page["found"], page["next"]) == (None, 3), "whoever asks goes on from there"
        given = await receive(client, consumer="bert")
        found = (await told(client, "where", partition=0, id="4711"))["found"]
        assert (found["state"], found["deliveries"], found["until_ms"]) == ("leased", 1, given[-1]["until_ms"])
        assert found["consumer"] == "bert"
        await settle(client, "ack", given[-1]["receipt"])
        assert (await told(client, "where", partition=0, id="4711"))["found"] is None
        found = (await told(client, "where", partition=0, offset=3))["found"]
        assert found["state"] == "settled"
        assert [(each["what"], each["consumer"]) for each in found["history"]] == [
            ("leased", "bert"),
            ("acknowledged", None),
        ]
        beyond = await refused(client, "where", partition=0, offset=4)
        assert "ends at 4, before 4" in beyond.text

    run(body)


class Describes:
    """May see everything of some kinds, and read nothing."""

    def __init__(self, *kinds: Kind) -> None:
        self._kinds = kinds

    revision = 1
    is_open = False

    def decide(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        return operation is Operation.DESCRIBE and resource.kind in self._kinds

    def decide_any(self, subject: Subject, operation: Operation, kind: Kind) -> bool:
        return operation is Operation.DESCRIBE

    def likeness(self, subject: Subject) -> None:
        return None


def test_queues_are_listed_for_who_may_see_both() -> None:
    async def body(door: Door, client: Client) -> None:
        for kinds in ((Kind.TOPIC,), (Kind.GROUP,)):
            door.engine.access.policy = Describes(*kinds)
            assert (await ask(client, "queue.list")).document == {"rows": [], "more": False}
        door.engine.access.policy = Describes(Kind.TOPIC, Kind.GROUP)
        assert len((await ask(client, "queue.list")).document["rows"]) == 1

    run(body)


def test_headers_that_count_for_nothing_are_told_of() -> None:
    async def body(door: Door, client: Client) -> None:
        batch = build_batch([(None, b"x", (("penstock-ttl-ms", b"soon"),), 1_700_000_000_000)])
        assert (await client.produce(batch, topic="jobs"))["error_code"] == 0
        (unread,) = (await told(client, "where", partition=0, offset=0))["found"]["unread"]
        assert unread["name"] == "penstock-ttl-ms"
        assert "'soon' is not a number of milliseconds" in unread["why"]

    run(body)


def test_who_may_only_see_is_told_of_no_content() -> None:
    async def body(door: Door, client: Client) -> None:
        await send_with_id(client, b"pay", "4711")
        door.engine.access.policy = Describes(Kind.TOPIC, Kind.GROUP)
        found = (await told(client, "where", partition=0, offset=0))["found"]
        assert (found["state"], "id" in found, "history" in found) == ("ready", False, False)
        assert (await refused(client, "where", partition=0, id="4711")).code == 29
        assert (await refused(client, "browse", partition=0)).code == 30
        assert await figures(client) == (1, 0, 0, 0)

    run(body)


async def redrive(client: Client, **fields: Any) -> Any:
    asked = {"queue": "dlq.jobs", "partition": 0, "origin": "jobs", **fields}
    answer = await ask(client, "queue.redrive", asked)
    assert answer.code == 0, answer
    return answer.document


async def bury(client: Client, count: int) -> None:
    await send(client, *[b"%d" % number for number in range(count)])
    assert set(await settle(client, "reject", *(each["receipt"] for each in await receive(client)))) == {None}
    await asyncio.sleep(1)


def test_dead_letters_are_brought_back() -> None:
    async def body(door: Door, client: Client) -> None:
        await bury(client, 4)
        assert await figures(client) == (0, 0, 0, 0)
        assert await redrive(client, offsets=[1, 7]) == {"partition": 0, "moved": 1, "next": None, "end": None}
        assert await redrive(client, most=1) == {"partition": 0, "moved": 1, "next": 1, "end": 4}
        await asyncio.sleep(1)
        assert values(await receive(client)) == ["1", "0"]
        assert await redrive(client, offset=1, end=3) == {"partition": 0, "moved": 1, "next": None, "end": 3}
        assert await redrive(client) == {"partition": 0, "moved": 1, "next": None, "end": 4}
        assert (await redrive(client))["moved"] == 0, "once is enough"
        await asyncio.sleep(1)
        assert values(await receive(client)) == ["2", "3"]

    run(body)


def test_what_somebody_looks_into_is_passed_over() -> None:
    async def body(door: Door, client: Client) -> None:
        await bury(client, 3)
        assert (await redrive(client, origin="nobody"))["moved"] == 0
        leased = await ask(client, "queue.lease", {"queue": "dlq.jobs", "most": 1})
        assert values(leased.document["messages"]) == ["0"]
        assert await redrive(client, most=1) == {"partition": 0, "moved": 1, "next": 2, "end": 3}
        await asyncio.sleep(1)
        assert values(await receive(client)) == ["1"]

    run(body)


def test_dead_letters_of_others_stay_where_they_are() -> None:
    async def body(door: Door, client: Client) -> None:
        for name in ("jobs:audit", "mails", "other"):
            made = {"queue": name, "settings": {"dead-letter": "failed"}}
            assert (await ask(client, "queue.create", made)).code == 0
        await bury(client, 2)
        for origin in ("jobs:audit", "mails", "failed"):
            assert (await redrive(client, queue="failed", origin=origin))["moved"] == 0
        assert (await redrive(client, queue="failed", to="other"))["moved"] == 2
        await asyncio.sleep(1)
        leased = await ask(client, "queue.lease", {"queue": "other", "most": 9})
        assert values(leased.document["messages"]) == ["0", "1"]
        assert await receive(client) == []

    run(body, settings={"dead-letter": "failed"})


class AllBut:
    """May do everything but one thing."""

    revision = 1
    is_open = False

    def __init__(self, operation: Operation, name: str) -> None:
        self._refused = operation, name

    def decide(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        return (operation, resource.name) != self._refused

    def decide_any(self, subject: Subject, operation: Operation, kind: Kind) -> bool:
        return True

    def likeness(self, subject: Subject) -> None:
        return None


def test_dead_letters_go_only_where_who_says_so_may_write() -> None:
    """The broker writes them by its own right."""

    async def body(door: Door, client: Client) -> None:
        await door.engine.create_topic("wages", 1)
        door.engine.access.policy = AllBut(Operation.WRITE, "wages")
        wanted = {"dead-letter": "wages"}
        for verb in ("queue.create", "queue.alter"):
            name = "jobs:more" if verb == "queue.create" else "jobs"
            assert (await ask(client, verb, {"queue": name, "settings": wanted})).code == 29
        made = {"queue": "jobs:more", "settings": {"dead-letter": "failed"}}
        assert (await ask(client, "queue.create", made)).code == 0
        door.engine.access.policy = AllBut(Operation.WRITE, "nothing")
        assert (await ask(client, "queue.alter", {"queue": "jobs:more", "settings": wanted})).code == 0
        door.engine.access.policy = AllBut(Operation.WRITE, "wages")
        kept = {"queue": "jobs:more", "settings": {"visibility": "10s"}}
        assert (await ask(client, "queue.alter", kept)).code == 0, "it goes there already"

    run(body)


def test_dead_letters_never_come_back_by_themselves() -> None:
    async def body(door: Door, client: Client) -> None:
        made = {"queue": "failed", "settings": {"dead-letter": "jobs"}}
        assert (await ask(client, "queue.create", made)).code == 0
        told_of = await ask(client, "queue.alter", {"queue": "jobs", "settings": {"dead-letter": "failed"}})
        assert "jobs -> failed -> jobs" in told_of.text
        assert told_of.code == KAFKA_CODES[Code.INVALID_CONFIG]

    run(body)
