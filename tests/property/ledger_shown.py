"""What a ledger holds, and what its model does, in the same words: what is true of each offset."""

from collections.abc import Iterator, Sequence
from typing import Any

from tests.property.ledger_model import QueueModel

from penstock.engine.coordination.schemas import Entry
from penstock.engine.queues import entries
from penstock.engine.queues.window import CHUNK, DELAYED, DYING, READY, SETTLED, SHAKEN, Counted, Run

Shown = dict[str, Any]


def show_dump(dump: Sequence[Entry], now: int) -> Shown:  # noqa: C901 - one case for each kind of entry
    """What is true of each offset, as far as it is no matter of when somebody looks."""
    shown: Shown = {}
    by_number: dict[int, Shown] = {}
    for _, (number,), value in dump:
        queue = by_number.get(number, {})
        match value:
            case entries.Led():
                shown["epoch"] = value.epoch
            case entries.Opened():
                states = dict.fromkeys(range(value.start, value.next), (SETTLED,))
                queue = {"start": value.start, "next": value.next, "states": states, "parts": [], "burial": ()}
                queue["waits"], queue["producers"] = [], {}
                shown[value.name] = by_number[number] = queue
            case entries.ChunkSaved():
                for offset in range(max(value.base, queue["start"]), min(value.base + CHUNK, queue["next"])):
                    at = offset - value.base
                    queue["states"][offset] = _state(value.states[at], value.deliveries[at], value.attempts[at])
            case entries.Leased():
                held = (value.lease_id, value.consumer, value.began, value.deadline, value.is_bound)
                queue["parts"].append((held, offsets_of(value.runs)))
            case entries.SettledIn():
                queue["producers"].update(dict.fromkeys(offsets_of(value.runs), value.producer_id))
            case entries.Returned():
                queue["waits"].append(value)
            case entries.Dying():
                for offset in offsets_of(value.runs):
                    queue["states"][offset] += (value.cause, value.reason)
            case entries.Burying():
                queue["burial"] = offsets_of(value.runs)
    for queue in by_number.values():
        producers = queue.pop("producers")
        parts = [((*held, producers.get(offsets[0])), offsets) for held, offsets in queue["parts"]]
        queue["parts"] = sorted(parts, key=str)
        for each in queue.pop("waits"):
            for offset in offsets_of(each.runs):
                _, deliveries, attempts, *_ = queue["states"][offset]
                queue["states"][offset] = _delayed(deliveries, attempts, each.due, now, is_shaken=each.is_shaken)
    return shown


def _state(state: int, deliveries: int, attempts: int) -> tuple[Any, ...]:
    if state == SETTLED:
        return (SETTLED,)
    if state in (READY, SHAKEN):
        return READY, deliveries, attempts, state == SHAKEN
    return (state, deliveries, attempts) if state == DYING else (state, deliveries, attempts, False)


def _delayed(deliveries: int, attempts: int, due: int, now: int, *, is_shaken: bool) -> tuple[Any, ...]:
    """Whether it is ready is the same as whether it is due: it is looked at before anything is leased."""
    return (READY if due <= now else DELAYED, deliveries, attempts, is_shaken, *([due] if due > now else []))


def show_model(queues: dict[str, QueueModel], epoch: int, now: int) -> Shown:
    shown: Shown = {"epoch": epoch}
    for name, queue in queues.items():
        states: dict[int, Any] = {}
        for offset, message in queue.messages.items():
            state, deliveries, attempts, *_, due, is_shaken, cause, reason = message
            if state == DELAYED:
                states[offset] = _delayed(deliveries, attempts, due, now, is_shaken=is_shaken)
            else:
                states[offset] = _state(SHAKEN if is_shaken else state, deliveries, attempts)
            if state == DYING:
                states[offset] += (cause, reason)
        parts = sorted(((tuple(held[1:]), tuple(offsets)) for held, offsets in queue.parts().items()), key=str)
        place = {"start": queue.start, "next": queue.next}
        shown[name] = {**place, "states": states, "parts": parts, "burial": queue.burial}
    return shown


def offsets_of(runs: Sequence[Run]) -> tuple[int, ...]:
    return tuple(offset for first, last in runs for offset in range(first, last + 1))


def each_of(counted: Counted) -> Iterator[tuple[int, int, int]]:
    first, last, deliveries, attempts = counted
    return ((offset, deliveries, attempts) for offset in range(first, last + 1))


def ranges_of(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = offsets[0]
    for offset, following in zip(offsets, [*offsets[1:], None], strict=True):
        if following != offset + 1:
            yield first, offset
            first = following or 0
