"""Verbs about lanes and about what is not due yet, in virtual time."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest
from tests.doors.kafka import Client, Door
from tests.unit.protocols.kafka.test_queue_verbs import INVALID, figures, receive, refused, run, told, values

from penstock.engine.access import Kind, Operation, Resource, Subject
from penstock.engine.queues.sorting.marks import LANE_NAMES
from penstock.protocols.kafka.verbs import queue_due
from penstock.protocols.kafka.verbs.queue_messages import Lane
from penstock.records.build import build_batch


async def send(client: Client, *said: tuple[bytes, Mapping[str, str]], partition: int = 0) -> None:
    """Each value with what it says in headers."""
    now = await now_ms(client)
    batch = build_batch(
        [
            (None, value, [(f"penstock-{name}", text.encode()) for name, text in headers.items()], now)
            for value, headers in said
        ]
    )
    assert (await client.produce(batch, topic="jobs", partition=partition))["error_code"] == 0


async def now_ms(client: Client) -> int:
    now: int = (await told(client, "delayed", partition=0))["now_ms"]
    return now


async def delayed(client: Client, partition: int = 0, **fields: Any) -> list[tuple[str, int]]:
    """Values of what is not due yet, and for how many seconds."""
    answer = await told(client, "delayed", partition=partition, **fields)
    return [(row["value"], round((row["due_ms"] - answer["now_ms"]) / 1000)) for row in answer["messages"]]


async def lanes(client: Client) -> dict[str, tuple[int, ...]]:
    (row,) = (await told(client, "describe"))["partitions"]
    found = {each["lane"]: (each["ready"], each["leased"], each["arrived"], each["delivered"]) for each in row["lanes"]}
    return {lane: counts for lane, counts in found.items() if any(counts)}


def names(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted(values(messages))


def test_lanes_have_the_names_of_priorities() -> None:
    assert tuple(Lane) == LANE_NAMES


def test_who_asks_for_a_lane_gets_nothing_else() -> None:
    async def body(door: Door, client: Client) -> None:
        await send(client, (b"plain", {}), (b"urgent", {"priority": "9"}), (b"later", {"priority": "background"}))
        assert names(await receive(client, lane="critical")) == ["urgent"]
        assert names(await receive(client, lane="high")) == []
        assert names(await receive(client, lane="background")) == ["later"]
        assert names(await receive(client)) == ["plain"]
        wrong = await refused(client, "lease", lane="urgent")
        assert (wrong.code, "lane: 'urgent' is not one of critical, high, normal" in wrong.text) == (INVALID, True)
        assert (await refused(client, "lease", lane=0)).code == INVALID

    run(body)


def test_a_lane_that_is_named_is_waited_for() -> None:
    async def body(door: Door, client: Client) -> None:
        await send(client, (b"plain", {}))
        other = await door.client()
        waiting = asyncio.ensure_future(receive(other, lane="high", wait_ms=20_000))
        await asyncio.sleep(1)
        await send(client, (b"urgent", {"priority": "7"}))
        assert names(await waiting) == ["urgent"]

    run(body)


def test_lanes_are_counted() -> None:
    async def body(door: Door, client: Client) -> None:
        assert await lanes(client) == {}, "nothing says anything"
        await send(client, (b"a", {}), (b"b", {"priority": "9"}), (b"c", {"priority": "9", "tenant": "t"}))
        await receive(client, most=1, lane="critical")
        assert await lanes(client) == {"critical": (1, 1, 2, 1), "normal": (1, 0, 1, 0)}
        (row,) = (await told(client, "describe"))["partitions"]
        assert (row["tenants"], row["not_due"], row["unseen"]) == (2, 0, 0)
        assert len(await receive(client)) == 2
        assert await lanes(client) == {"critical": (0, 2, 2, 2), "normal": (0, 1, 1, 1)}

    run(body)


def test_what_is_not_due_is_listed_soonest_first_in_pages() -> None:
    async def body(door: Door, client: Client) -> None:
        at = str(await now_ms(client) + 30_000)
        await send(
            client,
            (b"hour", {"delay-ms": "3600000", "id": "4711"}),
            (b"now", {}),
            (b"minute", {"delay-ms": "60000"}),
            (b"moment", {"deliver-at": at}),
        )
        assert await delayed(client) == [("moment", 30), ("minute", 60), ("hour", 3600)]
        first = await told(client, "delayed", partition=0, most=2)
        second = await told(client, "delayed", partition=0, most=2, **first["next"])
        assert (values(first["messages"]), values(second["messages"])) == (["moment", "minute"], ["hour"])
        assert (second["messages"][0]["id"], second["next"], second["held"]) == ("4711", None, 0)
        assert await figures(client) == (1, 0, 3, 0), "nobody has come for any yet"
        await asyncio.sleep(31)
        assert await delayed(client) == [("minute", 29), ("hour", 3569)]
        assert values(await receive(client)) == ["now", "moment"]

    run(body)


def test_an_answer_of_large_messages_goes_on_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_due, "_MOST_BYTES", 10)

    async def body(door: Door, client: Client) -> None:
        await send(client, *((bytes([65 + at]) * 6, {"delay-ms": "60000"}) for at in range(3)))
        seen: list[list[str]] = []
        place: dict[str, int] | None = {}
        while place is not None:
            page = await told(client, "delayed", partition=0, **place)
            seen.append(values(page["messages"]))
            place = page["next"]
        assert seen == [["AAAAAA"], ["BBBBBB"], ["CCCCCC"]]

    run(body)


def test_messages_of_a_queue_in_which_all_wait_are_counted_and_not_listed() -> None:
    async def body(door: Door, client: Client) -> None:
        await send(client, (b"all wait", {}), (b"by itself", {"delay-ms": "60000"}), (b"all wait", {}))
        await receive(client)
        page = await told(client, "delayed", partition=0)
        assert (values(page["messages"]), page["held"]) == (["by itself"], 2)
        assert await figures(client) == (0, 0, 3, 0)
        rows = (await told(client, "browse", partition=0, states=["delayed"]))["messages"]
        assert [(row["value"], row["until_ms"] - row["timestamp"]) for row in rows] == [
            ("all wait", 600_000),
            ("by itself", 60_000),
            ("all wait", 600_000),
        ]

    run(body, settings={"delay": "10m"})


def test_what_waits_is_seen_to_wait_wherever_it_is_looked_at() -> None:
    async def body(door: Door, client: Client) -> None:
        await send(client, (b"x", {"delay-ms": "60000", "id": "4711"}), (b"y", {}))
        await receive(client)
        (row,) = (await told(client, "browse", partition=0, states=["delayed"]))["messages"]
        due_ms = row["timestamp"] + 60_000
        assert (row["value"], row["until_ms"]) == ("x", due_ms)
        for asked in ({"offset": 0}, {"id": "4711"}):
            found = (await told(client, "where", partition=0, **asked))["found"]
            assert (found["state"], found["until_ms"]) == ("delayed", due_ms)
        assert (await told(client, "browse", partition=0, states=["ready"]))["messages"] == []
        await asyncio.sleep(60)
        assert (await told(client, "where", partition=0, offset=0))["found"]["state"] == "ready"

    run(body)


def test_what_is_cancelled_is_gone_for_good() -> None:
    async def body(door: Door, client: Client) -> None:
        await send(client, *((b"%d" % at, {"delay-ms": "60000"}) for at in range(4)), (b"now", {}))
        answer = await told(client, "cancel", partition=0, offsets=[1, 3, 4, 99])
        assert (answer["done"], answer["missed"]) == (2, [4, 99])
        assert (await told(client, "cancel", partition=0, offsets=[1]))["missed"] == [1]
        assert await delayed(client) == [("0", 60), ("2", 60)]
        found = (await told(client, "where", partition=0, offset=1))["found"]
        assert (found["state"], found["history"][-1]["why"]) == ("settled", "cancelled before it was due")
        assert await figures(client) == (1, 0, 2, 0)
        await asyncio.sleep(61)
        assert values(await receive(client)) == ["0", "2", "now"]

    run(body)


def test_what_is_delivered_now_is_ready() -> None:
    async def body(door: Door, client: Client) -> None:
        await send(client, *((b"%d" % at, {"delay-ms": "60000"}) for at in range(3)))
        answer = await told(client, "deliver", partition=0, offsets=[1])
        assert (answer["done"], answer["missed"]) == (1, [])
        assert (await told(client, "deliver", partition=0, offsets=[1]))["missed"] == [1]
        assert [value for value, _ in await delayed(client)] == ["0", "2"]
        assert (await told(client, "where", partition=0, offset=1))["found"]["state"] == "ready"
        (taken,) = await receive(client)
        assert taken["value"] == "1"
        await told(client, "settle", receipts=[{"receipt": taken["receipt"], "verdict": "release"}])
        assert [value for value, _ in await delayed(client)] == ["0", "2"], "who had it may give it back"
        assert values(await receive(client)) == ["1"]

    run(body)


def test_what_has_fallen_due_meanwhile_is_left_alone() -> None:
    async def body(door: Door, client: Client) -> None:
        await send(client, (b"x", {"delay-ms": "60000"}))
        assert len(await delayed(client)) == 1
        await asyncio.sleep(60)
        for verb in ("cancel", "deliver"):
            assert (await told(client, verb, partition=0, offsets=[0]))["missed"] == [0]
            assert (await told(client, verb, partition=0, all=True))["done"] == 0
        assert values(await receive(client)) == ["x"]

    run(body)


def test_a_message_from_a_clock_that_is_ahead_is_found() -> None:
    """Its delay counts from when it came, which nobody can read off it."""

    async def body(door: Door, client: Client) -> None:
        batch = build_batch([(None, b"x", [("penstock-delay-ms", b"60000")], await now_ms(client) + 30_000)])
        assert (await client.produce(batch, topic="jobs"))["error_code"] == 0
        assert await delayed(client) == [("x", 60)]
        await asyncio.sleep(40)
        assert (await told(client, "cancel", partition=0, offsets=[0]))["done"] == 1

    run(body)


def test_all_are_those_that_were_there_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_due, "_AT_ONCE", 2)

    async def body(door: Door, client: Client) -> None:
        await send(client, *((b"%d" % at, {"delay-ms": "60000"}) for at in range(5)))
        page = await told(client, "cancel", partition=0, all=True)
        assert (page["done"], page["end"]) == (2, 5)
        await send(client, (b"new", {"delay-ms": "70000"}))
        done = page["done"]
        while page["next"] is not None:
            page = await told(client, "cancel", partition=0, all=True, end=page["end"], **page["next"])
            done += page["done"]
        assert (done, await delayed(client)) == (5, [("new", 70)])
        assert (await told(client, "deliver", partition=0, all=True))["done"] == 1
        assert values(await receive(client)) == ["new"]

    run(body)


def test_what_cannot_be_meant() -> None:
    async def body(door: Door, client: Client) -> None:
        changes: list[dict[str, Any]] = [{}, {"offsets": [1], "all": True}, {"offsets": [0] * 201}, {"offsets": [-1]}]
        for verb, fields in product(("cancel", "deliver"), changes):
            assert (await refused(client, verb, partition=0, **fields)).code == INVALID
        for name, value in (
            ("most", 0),
            ("most", 501),
            ("after_due_ms", -1),
            ("after_offset", 1 << 63),
            ("lane", "high"),
        ):
            assert (await refused(client, "delayed", partition=0, **{name: value})).code == INVALID

    run(body)


class Without:
    """May do everything but one kind of deed to one kind of thing."""

    revision = 1
    is_open = False

    def __init__(self, operation: Operation, kind: Kind) -> None:
        self._refused = operation, kind

    def decide(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        return (operation, resource.kind) != self._refused

    def decide_any(self, subject: Subject, operation: Operation, kind: Kind) -> bool:
        return True

    def likeness(self, subject: Subject) -> None:
        return None


@pytest.mark.parametrize(
    ("verb", "operation", "kind"),
    [
        *(("delayed", Operation.READ, kind) for kind in (Kind.GROUP, Kind.TOPIC)),
        ("cancel", Operation.DELETE, Kind.GROUP),
        ("cancel", Operation.READ, Kind.TOPIC),
        *(("deliver", Operation.READ, kind) for kind in (Kind.GROUP, Kind.TOPIC)),
        *(("deliver", Operation.ALTER_CONFIGS, kind) for kind in (Kind.GROUP, Kind.TOPIC)),
    ],
)
def test_who_may_not_is_told_nothing_and_changes_nothing(verb: str, operation: Operation, kind: Kind) -> None:
    fields: dict[str, Any] = {} if verb == "delayed" else {"offsets": [0]}

    async def body(door: Door, client: Client) -> None:
        await send(client, (b"x", {"delay-ms": "60000"}))
        policy, door.engine.access.policy = door.engine.access.policy, Without(operation, kind)
        answer = await refused(client, verb, partition=0, **fields)
        assert (answer.code, answer.document) == (30 if kind is Kind.GROUP else 29, None)
        door.engine.access.policy = policy
        assert await delayed(client) == [("x", 60)]
        assert await figures(client) == (0, 0, 1, 0)

    run(body)
