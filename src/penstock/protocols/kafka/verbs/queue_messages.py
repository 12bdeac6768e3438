"""Verbs about a queue's messages, for whoever leads their partition: leased, settled, looked at, found.

A consumer gives back a message by its receipt (`engine.queues.receipts`). Several receipts come in one question, and
each has its own answer: one that is stale spoils none of the others.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import groupby
from typing import Any, Final, NamedTuple

from penstock.engine.access import Kind, Operation, Resource
from penstock.engine.partition import Partition
from penstock.engine.queues.answers import Want, Whereabouts
from penstock.engine.queues.headers import GROUP, LONGEST_ID_BYTES, TOPIC, read_headers
from penstock.engine.queues.history import Event
from penstock.engine.queues.names import QueueName, parse_queue_name
from penstock.engine.queues.receipts import Receipt, make_receipt, parse_receipt
from penstock.engine.queues.receiving import Delivery, size_of
from penstock.engine.queues.settings import LEAST_VISIBILITY_MS, MOST_VISIBILITY_MS
from penstock.engine.queues.verdicts import Change, Verdict, VerdictKind
from penstock.engine.queues.verdicts import Receipt as Lease
from penstock.engine.queues.window import DELAYED, DYING, LEASED, READY, SETTLED, Run
from penstock.engine.reading import Message
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.verbs.document import Document, read_word, refused
from penstock.protocols.kafka.verbs.message_fields import message_fields
from penstock.protocols.kafka.verbs.queues import find_topic, group_and_topic, led_here, read_name, read_partition
from penstock.protocols.kafka.verbs.verb import Answer, Asked, Verb

_MOST_MESSAGES: Final = 1000
"""Leased by one question, or settled."""
_MOST_BYTES: Final = 4 << 20
_USUAL_BYTES: Final = 1 << 20
_LONGEST_WAIT_MS: Final = 30_000
_LONGEST_DELAY_MS: Final = 7 * 86_400_000
_LONGEST_CONSUMER: Final = 200
_LAST_OFFSET: Final = (1 << 63) - 1
_LOOKED_AT: Final = 500
"""Messages that one question looks at."""
_BY_VERB: Final = "verb:"
_UNSAFE: Final = "not safe yet"
"""Written by the leader alone."""
_STATES: Final[Mapping[int, str]] = {
    READY: "ready",
    LEASED: "leased",
    DELAYED: "delayed",
    DYING: "dying",
    SETTLED: "settled",
}


class Said(StrEnum):
    """What consumers may say of a message."""

    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"
    REJECT = "reject"


_KINDS: Final = {
    Said.ACK: VerdictKind.ACK,
    Said.NACK: VerdictKind.NACK,
    Said.RELEASE: VerdictKind.RELEASE,
    Said.REJECT: VerdictKind.REJECT,
}


class Lane(StrEnum):
    """What priorities are told apart by, from the highest to the lowest."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"
    BACKGROUND = "background"


# --- leasing


async def lease_messages(asked: Asked) -> Answer:
    """Of one partition, or of all that this broker leads; waits until there is one."""
    document, name = asked.document, read_name(asked.document)
    topic = find_topic(asked, name, Operation.READ)
    visibility_ms = document.maybe("visibility_ms", LEAST_VISIBILITY_MS, MOST_VISIBILITY_MS)
    lane = list(Lane).index(document.word("lane", Lane)) if document.has("lane") else None
    most = document.number("most", 1, _MOST_MESSAGES, 1)
    want = Want(name.group, _consumer(document), most, visibility_ms, lane=lane)
    max_bytes = document.number("max_bytes", 1, _MOST_BYTES, _USUAL_BYTES)
    wait_s = document.number("wait_ms", 0, _LONGEST_WAIT_MS, 0) / 1000
    if document.has("partition"):
        partitions = [read_partition(asked, name, Operation.READ)]
    else:
        partitions = list(led_here(asked, topic))
        if not partitions:
            raise PenstockError(Code.NOT_LEADER, f"this broker leads no partition of topic {name.topic!r}")
    found = await _receive(asked, partitions, want, max_bytes, wait_s)
    return {"messages": [_delivery_fields(partition, each) for partition, each in found]}


def _consumer(document: Document) -> str:
    """A name that is never one of a member of a group: these are told their leases by name."""
    said = document.text("consumer", "")
    if len(said) > _LONGEST_CONSUMER:
        raise refused(f"consumer has {len(said)} characters; allowed: {_LONGEST_CONSUMER}")
    return f"{_BY_VERB}{said}"


def _consumer_name(consumer: str | None) -> str | None:
    """As it named itself."""
    return None if consumer is None else consumer.removeprefix(_BY_VERB)


async def _receive(
    asked: Asked, partitions: Sequence[Partition], want: Want, max_bytes: int, wait_s: float
) -> list[tuple[Partition, Delivery]]:
    """What is ready in any of the partitions; if nothing is, what comes first within that time."""
    queues = asked.caller.acting.queues
    if len(partitions) == 1:
        return [(partitions[0], each) for each in await queues.receive(partitions[0], want, max_bytes, wait_s)]
    deadline = asyncio.get_running_loop().time() + wait_s
    found = await _receive_now(asked, partitions, want, max_bytes)
    while not found and (left_s := deadline - asyncio.get_running_loop().time()) > 0:
        stirred = asyncio.Event()
        for partition in partitions:
            queues.watch(partition, want.group, stirred.set)
        try:
            found = await _receive_now(asked, partitions, want, max_bytes)
            if not found:
                await _wait(stirred, left_s)
        finally:
            for partition in partitions:
                queues.unwatch(partition, want.group, stirred.set)
        found = found or await _receive_now(asked, partitions, want, max_bytes)
    return found


async def _wait(stirred: asyncio.Event, wait_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await stirred.wait()


async def _receive_now(
    asked: Asked, partitions: Sequence[Partition], want: Want, max_bytes: int
) -> list[tuple[Partition, Delivery]]:
    found: list[tuple[Partition, Delivery]] = []
    left = max_bytes
    first = int(asyncio.get_running_loop().time() * 1000) % len(partitions)  # another one each time, to be fair
    for partition in (*partitions[first:], *partitions[:first]):
        wanted = want._replace(most=want.most - len(found))
        if wanted.most <= 0 or left <= 0:
            break
        deliveries = await asked.caller.acting.queues.receive(partition, wanted, left, 0)
        left -= sum(size_of(each.message) for each in deliveries)
        found += [(partition, each) for each in deliveries]
    return found


# --- settling


class _Wanted(NamedTuple):
    """What is to become of one message."""

    text: str
    receipt: Receipt
    verdict: Verdict


async def settle_messages(asked: Asked) -> Answer:
    """Verdicts on leased messages; each receipt may have another."""
    rows = asked.document.rows("receipts", frozenset({"receipt", "verdict", "delay_ms", "reason"}), _MOST_MESSAGES)
    return await _judge(asked, [(row.text("receipt"), _verdict(row)) for row in rows])


async def extend_leases(asked: Asked) -> Answer:
    """Leases that shall end later: so long from now, else as long as the queue gives."""
    receipts = asked.document.texts("receipts", _MOST_MESSAGES)
    visibility_ms = asked.document.maybe("visibility_ms", LEAST_VISIBILITY_MS, MOST_VISIBILITY_MS)
    return await _judge(asked, [(text, Verdict(VerdictKind.RENEW, visibility_ms)) for text in receipts])


def _verdict(row: Document) -> Verdict:
    said = read_word("verdict", row.text("verdict"), Said)
    delay_ms = row.maybe("delay_ms", 0, _LONGEST_DELAY_MS)
    if delay_ms is not None and said not in (Said.NACK, Said.RELEASE):
        raise refused(f"delay_ms: what is {said}ed does not come again")
    return Verdict(_KINDS[said], delay_ms, row.text("reason", ""))


async def _judge(asked: Asked, said: Sequence[tuple[str, Verdict]]) -> Answer:
    """What became of each receipt: `error` is None, or one of our codes."""
    name = read_name(asked.document)
    find_topic(asked, name, Operation.READ)
    results: dict[str, PenstockError | None] = {}
    wanted = []
    for text, verdict in said:
        if text in results:
            raise refused(f"receipts: {text[:60]!r} is there twice")
        results[text] = None
        try:
            wanted.append(_Wanted(text, parse_receipt(text), verdict))
        except PenstockError as error:
            results[text] = error
    leases = groupby(sorted(wanted, key=_by_lease), key=lambda each: (each.receipt.partition, each.receipt.lease_id))
    for done in await asyncio.gather(*(_settle_lease(asked, name, list(some)) for _, some in leases)):
        results |= done
    return {"results": [_result(text, error) for text, error in results.items()]}


def _by_lease(each: _Wanted) -> tuple[int, int, int]:
    return each.receipt.partition, each.receipt.lease_id, each.receipt.offset


async def _settle_lease(asked: Asked, name: QueueName, wanted: Sequence[_Wanted]) -> dict[str, PenstockError | None]:
    """All together; one by one if some of them are stale."""
    try:
        await _settle(asked, name, wanted)
    except PenstockError as error:
        if error.code is not Code.STALE_RECEIPT or len(wanted) == 1:
            return {each.text: error.kept() for each in wanted}
    else:
        return {each.text: None for each in wanted}
    alone = await asyncio.gather(*(_settle_lease(asked, name, [each]) for each in wanted))
    return {text: error for each in alone for text, error in each.items()}


async def _settle(asked: Asked, name: QueueName, wanted: Sequence[_Wanted]) -> None:
    at = wanted[0].receipt
    partition = asked.caller.acting.topics.partition(name.topic, at.partition, Operation.READ)
    await asked.caller.acting.queues.settle(partition, name.group, Lease(at.lease_id), list(_changes(wanted)))


def _changes(wanted: Iterable[_Wanted]) -> Iterable[Change]:
    """In the order of offsets, neighbours with the same verdict together."""
    first = last = -1
    verdict: Verdict | None = None
    for each in wanted:
        offset = each.receipt.offset
        if verdict is not None and offset == last + 1 and each.verdict == verdict:
            last = offset
            continue
        if verdict is not None:
            yield Change(first, last, verdict)
        first = last = offset
        verdict = each.verdict
    if verdict is not None:
        yield Change(first, last, verdict)


def _result(text: str, error: PenstockError | None) -> Answer:
    if error is None:
        return {"receipt": text, "error": None, "text": "", "help": ""}
    return {"receipt": text, "error": str(error.code), "text": str(error), "help": error.help}


async def purge_messages(asked: Asked) -> Answer:
    """Settle what is in a partition, or what of it is before an offset."""
    name = read_name(asked.document)
    find_topic(asked, name, Operation.READ)
    before = asked.document.maybe("before", 0, _LAST_OFFSET)
    partition = read_partition(asked, name, Operation.READ)
    purged = await asked.caller.acting.queues.purge(partition, name.group, before)
    return {"partition": partition.index, "purged": purged}


async def redrive_messages(asked: Asked) -> Answer:
    """Have dead letters of a queue go back, from one partition of their topic, which is a queue as any other.

    Those that are named by their offsets, or the oldest from an offset on; `next` is where to go on, None at the end.
    Letters of other queues, and what somebody has leased, are passed over.
    """
    document, name = asked.document, read_name(asked.document)
    origin = parse_queue_name(document.text("origin"))
    target = parse_queue_name(document.text("to", str(origin)))
    partition = read_partition(asked, name, Operation.READ)
    await asked.caller.acting.queues.open(partition, name.group)
    named = document.numbers("offsets", _MOST_MESSAGES, _LAST_OFFSET)
    most = document.number("most", 1, _MOST_MESSAGES, _MOST_MESSAGES)
    if named:
        there = [offset for offset in named if partition.log_start <= offset < partition.stable_offset]
        letters = [each for offset in there for each in (await _look(asked, partition, offset, offset + 1))[0]]
        after = end = None
    else:
        start, end = await _span(asked, name, partition)
        letters, after = await _look(asked, partition, start, end)
    wanted: list[Run] = []
    for letter in letters:
        if len(wanted) == most:
            after = letter.offset
            break
        place = await asked.caller.acting.queues.whereabouts(partition, name.group, letter.offset)
        if place.state == READY and _is_from(letter, origin):
            wanted.append(Run(letter.offset, letter.offset))
    moved = await asked.caller.acting.queues.redrive(partition, target, wanted) if wanted else 0
    return {"partition": partition.index, "moved": moved, "next": after, "end": end}


def _is_from(letter: Message, queue: QueueName) -> bool:
    """Whether it is a dead letter of that queue: what brokers have written says so."""
    said = {name: value for name, value in letter.headers if name in (TOPIC, GROUP)}
    return said == {TOPIC: queue.topic.encode(), GROUP: queue.group.encode()}


async def _span(asked: Asked, name: QueueName, partition: Partition) -> tuple[int, int]:
    """From where on to look, and how far: what is not settled, between the offsets that were asked for."""
    figures = await asked.caller.acting.queues.figures(partition, name.group)
    start = max(figures.start, partition.log_start, asked.document.maybe("offset", 0, _LAST_OFFSET) or 0)
    end = asked.document.maybe("end", 0, _LAST_OFFSET)
    return start, partition.stable_offset if end is None else min(end, partition.stable_offset)


# --- looking


async def browse_messages(asked: Asked) -> Answer:
    """What is not settled, from an offset on; `next` is where to go on, None at the end."""
    document, name = asked.document, read_name(asked.document)
    find_topic(asked, name, Operation.READ)
    partition = read_partition(asked, name, Operation.READ)
    states = document.texts("states", len(_STATES))
    start, end = await _span(asked, name, partition)
    messages, after = await _look(asked, partition, start, end)
    queues = asked.caller.acting.queues
    rows = []
    due: Mapping[int, int] = {}
    if messages:
        due = await queues.due_times(partition, name.group, messages[0].offset, messages[-1].offset)
    for message in messages:
        place = await queues.whereabouts(partition, name.group, message.offset)
        due_ms = due.get(message.offset)
        if place.state == READY and (due_ms := await queues.due_time(partition, name.group, message)) is not None:
            place = place._replace(state=DELAYED)
        state = _STATES[place.state]
        if place.state != SETTLED and (not states or state in states):
            rows.append({**message_fields(partition, message), **_place_fields(place, due_ms)})
    return {"messages": rows, "next": after, "end": end}


async def find_message(asked: Asked) -> Answer:
    """By its offset; or by its id, among what is not settled from an offset on: `next` is where to go on."""
    document, name = asked.document, read_name(asked.document)
    find_topic(asked, name, Operation.DESCRIBE)
    partition = read_partition(asked, name, Operation.DESCRIBE)
    if document.has("id"):
        return await _find_by_id(asked, name, partition)
    offset = document.number("offset", 0, _LAST_OFFSET)
    end = partition.end_offset
    if offset >= end:
        raise PenstockError(
            Code.OFFSET_OUT_OF_RANGE,
            f"partition {partition.index} of topic {name.topic!r} ends at {end}, before {offset}",
        )
    if offset >= partition.high_watermark:
        return {"found": {"partition": partition.index, "offset": offset, "state": _UNSAFE}, "next": None}
    found = await _place_of(asked, name, partition, offset)
    if asked.caller.acting.rights.may(Operation.READ, Kind.TOPIC, name.topic):
        found |= await _history_fields(asked, name, partition, offset)
        if offset >= partition.log_start:
            messages, _ = await _look(asked, partition, offset, offset + 1)
            found |= await _said_fields(asked, name, partition, messages[0], found) if messages else {}
    return {"found": found, "next": None}


async def _find_by_id(asked: Asked, name: QueueName, partition: Partition) -> Answer:
    """It takes the right to read, as all that is not settled is read for it."""
    document = asked.document
    wanted = document.text("id")
    if len(wanted.encode(errors="replace")) > LONGEST_ID_BYTES:
        raise refused(f"id has more than {LONGEST_ID_BYTES} bytes, and no message has such a one")
    messages, after = await _look(asked, partition, *await _span(asked, name, partition))
    for message in messages:
        if read_headers(message.headers).message_id != wanted:
            continue
        found = await _place_of(asked, name, partition, message.offset)
        if found["state"] != _STATES[SETTLED]:
            found |= await _history_fields(asked, name, partition, message.offset)
            return {"found": found | await _said_fields(asked, name, partition, message, found), "next": None}
    return {"found": None, "next": after}


async def _look(asked: Asked, partition: Partition, start: int, end: int) -> tuple[list[Message], int | None]:
    """Some messages below `end`, and where the next ones are."""
    if start >= end:
        return [], None
    await asked.context.turns.next()
    cursor = asked.caller.acting.cursor(partition, start)
    messages = await cursor.records(asked.document.number("max_bytes", 1, _MOST_BYTES, _USUAL_BYTES), 0, _LOOKED_AT)
    is_over = not messages or cursor.offset >= end
    return [each for each in messages if each.offset < end], None if is_over else cursor.offset


# --- fields


def _group(document: Document) -> Sequence[Resource]:
    """What the group forgets is its own; the topic keeps its records."""
    return (Resource(Kind.GROUP, read_name(document).group),)


def _delivery_fields(partition: Partition, delivery: Delivery) -> Answer:
    return {
        "receipt": make_receipt(partition.index, delivery.message.offset, delivery.lease_id),
        **message_fields(partition, delivery.message),
        "deliveries": delivery.deliveries,
        "attempts": delivery.attempts,
        "until_ms": delivery.deadline,
    }


async def _place_of(asked: Asked, name: QueueName, partition: Partition, offset: int) -> dict[str, Any]:
    place = await asked.caller.acting.queues.whereabouts(partition, name.group, offset)
    due = await asked.caller.acting.queues.due_times(partition, name.group, offset, offset)
    return {"partition": partition.index, "offset": offset, **_place_fields(place, due.get(offset))}


def _place_fields(place: Whereabouts, due: int | None) -> Answer:
    """
    Args:
        due: when it is ready again, if it waits for that.
    """
    return {
        "state": _STATES[place.state],
        "deliveries": place.deliveries,
        "attempts": place.attempts,
        "until_ms": place.deadline if due is None else due,
        "consumer": _consumer_name(place.consumer),
        **({"in_transaction": True} if place.is_pending else {}),
    }


async def _history_fields(asked: Asked, name: QueueName, partition: Partition, offset: int) -> Answer:
    """What became of it, and how many brokers have it."""
    events = await asked.caller.acting.queues.history(partition, name.group, offset)
    return {
        "in_sync": len(partition.state.isr),
        "replicas": len(partition.state.replicas),
        "history": [_event_fields(asked, each) for each in events],
    }


def _event_fields(asked: Asked, event: Event) -> Answer:
    topic = None
    if event.target is not None:
        with suppress(PenstockError):  # it may be deleted, or not for everybody to know
            topic = asked.caller.acting.topics.get_by_id(event.target, Operation.DESCRIBE)
    return {
        "at_ms": event.at_ms,
        "what": str(event.what),
        "consumer": _consumer_name(event.consumer),
        "until_ms": event.until_ms,
        "why": event.why,
        "topic": None if topic is None else topic.name,
    }


async def _said_fields(
    asked: Asked, name: QueueName, partition: Partition, message: Message, found: Mapping[str, Any]
) -> dict[str, Any]:
    """What it says itself; and its state, if it is not due yet."""
    said = read_headers(message.headers)
    unread = [{"name": each.name, "why": each.why} for each in said.unread]
    fields = {"timestamp": message.timestamp, "id": said.message_id, "unread": unread}
    due_ms = None
    if found["state"] == _STATES[READY]:
        due_ms = await asked.caller.acting.queues.due_time(partition, name.group, message)
    return fields if due_ms is None else {**fields, "state": _STATES[DELAYED], "until_ms": due_ms}


VERBS: Final[tuple[Verb, ...]] = (
    Verb(
        "queue.lease",
        Operation.READ,
        lease_messages,
        frozenset({"queue", "partition", "most", "max_bytes", "wait_ms", "visibility_ms", "consumer", "lane"}),
        group_and_topic,
    ),
    Verb("queue.settle", Operation.READ, settle_messages, frozenset({"queue", "receipts"}), group_and_topic),
    Verb(
        "queue.extend",
        Operation.READ,
        extend_leases,
        frozenset({"queue", "receipts", "visibility_ms"}),
        group_and_topic,
    ),
    Verb("queue.purge", Operation.DELETE, purge_messages, frozenset({"queue", "partition", "before"}), _group),
    Verb(
        "queue.browse",
        Operation.READ,
        browse_messages,
        frozenset({"queue", "partition", "offset", "end", "states", "max_bytes"}),
        group_and_topic,
    ),
    Verb(
        "queue.where",
        Operation.DESCRIBE,
        find_message,
        frozenset({"queue", "partition", "offset", "id", "max_bytes"}),
        group_and_topic,
    ),
    Verb(
        "queue.redrive",
        Operation.READ,
        redrive_messages,
        frozenset({"queue", "partition", "origin", "to", "offsets", "offset", "end", "most", "max_bytes"}),
        group_and_topic,
    ),
)
