"""Verbs about messages that are not due yet: look at them, cancel them, have them be delivered now.

Due by their own word, that is: what waits because every message of a queue does is not among them. Whoever cancels or
delivers names places, or says all; from when on each may be had is looked up here, so that what somebody has seen
before does no harm if it is not so any more.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from penstock.engine.access import Kind, Operation, Resource
from penstock.engine.partition import Partition
from penstock.engine.queues.headers import read_headers
from penstock.engine.queues.names import QueueName
from penstock.engine.queues.sorting.early import own_due_time
from penstock.engine.queues.sorting.later import Waiting
from penstock.engine.reading import Message
from penstock.protocols.kafka.verbs.document import Document, refused
from penstock.protocols.kafka.verbs.message_fields import message_fields
from penstock.protocols.kafka.verbs.queues import find_topic, group_and_topic, read_name, read_partition
from penstock.protocols.kafka.verbs.verb import Answer, Asked, Verb

_MOST_SHOWN: Final = 500
_USUALLY_SHOWN: Final = 100
_MOST_BYTES: Final = 1 << 20
"""Of messages in one answer; the first one may have more."""
_MOST_NAMED: Final = 200
_AT_ONCE: Final = 1000
"""Messages that are cancelled or delivered by one question that says all."""
_MOST_WALKED: Final = 100_000
"""Messages looked through, soonest first, for those that are not where their own word puts them."""
_LAST_MOMENT: Final = (1 << 53) - 1
_LAST_OFFSET: Final = (1 << 63) - 1
_PLACE: Final = ("after_due_ms", "after_offset")

Act = Callable[[Partition, str, Sequence[Waiting]], Awaitable[int]]


async def list_delayed(asked: Asked) -> Answer:
    """What is due next behind a moment and offset; `next` is where to go on, None at the end."""
    document, name = asked.document, read_name(asked.document)
    find_topic(asked, name, Operation.READ)
    partition = read_partition(asked, name, Operation.READ)
    most = document.number("most", 1, _MOST_SHOWN, _USUALLY_SHOWN)
    queues = asked.caller.acting.queues
    found = await queues.waiting(partition, name.group, _after(document), most)
    rows: list[Answer] = []
    following = _place(found[-1]) if len(found) == most else None
    size = 0
    for at, each in enumerate(found):
        message = await _read(asked, partition, each.offset)
        if message is None:
            continue
        size += len(message.key or b"") + len(message.value or b"")
        if rows and size > _MOST_BYTES:
            following = _place(found[at - 1])
            break
        said = read_headers(message.headers)
        rows.append({**message_fields(partition, message), "due_ms": each.due_ms, "id": said.message_id})
    held = (await queues.standing(partition, name.group)).held
    return {"partition": partition.index, "messages": rows, "held": held, "now_ms": queues.now_ms, "next": following}


async def cancel_delayed(asked: Asked) -> Answer:
    """Nobody gets them; they become no dead letters."""
    name = read_name(asked.document)
    find_topic(asked, name, Operation.READ)
    return await _change(asked, name, asked.caller.acting.queues.cancel)


async def deliver_delayed(asked: Asked) -> Answer:
    """They can be had now."""
    name = read_name(asked.document)
    for resource in group_and_topic(asked.document):
        asked.caller.acting.rights.check(Operation.READ, *resource)
    find_topic(asked, name, Operation.READ)
    return await _change(asked, name, asked.caller.acting.queues.deliver_now)


async def _change(asked: Asked, name: QueueName, act: Act) -> Answer:
    """Those that are named by their offsets, `missed` are those that do not wait; or, page by page, all below `end`."""
    document = asked.document
    partition = read_partition(asked, name, Operation.READ)
    named = document.numbers("offsets", _MOST_NAMED, _LAST_OFFSET)
    if bool(named) == document.flag("all"):
        raise refused("say either offsets or all")
    if named:
        found = await _find(asked, name, partition, set(named))
        done = await act(partition, name.group, found) if found else 0
        missed = sorted(set(named) - {each.offset for each in found})
        return {"partition": partition.index, "done": done, "missed": missed, "next": None}
    end = document.maybe("end", 0, _LAST_OFFSET)
    end = partition.high_watermark if end is None else end
    page = await asked.caller.acting.queues.waiting(partition, name.group, _after(document), _AT_ONCE)
    wanted = [each for each in page if each.offset < end]
    done = await act(partition, name.group, wanted) if wanted else 0
    following = _place(page[-1]) if len(page) == _AT_ONCE else None
    return {"partition": partition.index, "done": done, "missed": [], "next": following, "end": end}


async def _find(asked: Asked, name: QueueName, partition: Partition, offsets: set[int]) -> list[Waiting]:
    """Which of some offsets wait, and until when: where their own word puts them, else from the soonest on."""
    queues = asked.caller.acting.queues
    found: dict[int, Waiting] = {}
    for offset in sorted(offsets):
        message = await _read(asked, partition, offset)
        due_ms = None if message is None else own_due_time(message, queues.now_ms)
        if due_ms is None:
            continue
        page = await queues.waiting(partition, name.group, Waiting(due_ms, offset - 1), 1)
        found |= _among(page, {offset})
    after, walked, is_over = Waiting(0, 0), 0, False
    while len(found) < len(offsets) and walked < _MOST_WALKED and not is_over:
        await asked.context.turns.next()
        page = await queues.waiting(partition, name.group, after, _AT_ONCE)
        found |= _among(page, offsets)
        walked, is_over = walked + len(page), len(page) < _AT_ONCE
        after = page[-1] if page else after
    return list(found.values())


def _among(page: Iterable[Waiting], offsets: set[int]) -> dict[int, Waiting]:
    return {each.offset: each for each in page if each.offset in offsets}


async def _read(asked: Asked, partition: Partition, offset: int) -> Message | None:
    """The message at an offset, if there is one that anybody may have."""
    if not partition.log_start <= offset < partition.stable_offset:
        return None
    await asked.context.turns.next()
    messages = await asked.caller.acting.cursor(partition, offset).records(1, 0, 1)
    return messages[0] if messages and messages[0].offset == offset else None


def _after(document: Document) -> Waiting:
    return Waiting(
        document.number("after_due_ms", 0, _LAST_MOMENT, 0), document.number("after_offset", 0, _LAST_OFFSET, 0)
    )


def _place(each: Waiting) -> Answer:
    return {"after_due_ms": each.due_ms, "after_offset": each.offset}


def _group(document: Document) -> Sequence[Resource]:
    """As with `queue.purge`: what the group forgets is its own."""
    return (Resource(Kind.GROUP, read_name(document).group),)


_CHANGED: Final = frozenset({"queue", "partition", "offsets", "all", "end", *_PLACE})
VERBS: Final[tuple[Verb, ...]] = (
    Verb(
        "queue.delayed",
        Operation.READ,
        list_delayed,
        frozenset({"queue", "partition", "most", *_PLACE}),
        group_and_topic,
    ),
    Verb("queue.cancel", Operation.DELETE, cancel_delayed, _CHANGED, _group),
    Verb("queue.deliver", Operation.ALTER_CONFIGS, deliver_delayed, _CHANGED, group_and_topic),
)
