"""Messages that are not due yet: cancel them, or have them be delivered now. Steps of a ledger.

Both are asked with what was seen: the moment each message is due. One that has fallen due meanwhile is left alone.
"""

from collections.abc import Sequence

from penstock.engine.queues import entries
from penstock.engine.queues.entries import How, Value
from penstock.engine.queues.group import Group, joined
from penstock.engine.queues.headers import read_headers
from penstock.engine.queues.sorting.later import Waiting
from penstock.engine.queues.sorting.sorting import Sorting
from penstock.engine.queues.window import Run
from penstock.engine.reading import Message


def own_due_time(message: Message, now: int) -> int | None:
    """From when on a message is to be had by its own word; None if it says nothing of that.

    A delay counts from when it was published, but not from a time to come: whose clock is ahead has waited no longer.
    """
    said = read_headers(message.headers)
    if said.delay_ms is None:
        return said.deliver_at_ms
    return max(said.deliver_at_ms or 0, min(message.timestamp, now) + said.delay_ms)


def still_waiting(now: int, sorting: Sorting, group: Group, wanted: Sequence[Waiting]) -> list[Run]:
    """Which of these wait."""
    return joined({each.offset for each in wanted if each.due_ms > now and sorting.is_waiting(group, each.offset)})


def cancel(runs: Sequence[Run]) -> list[Value]:
    """Nobody gets them."""
    return [entries.Settled(How.CANCELLED, tuple(runs))] if runs else []


def deliver_now(now: int, runs: Sequence[Run]) -> list[Value]:
    """They are ready, whatever their own time: kept as ranges that came back, which is what every leader goes by."""
    return [entries.Returned(0, now, 0, True, False, False, tuple(runs))] if runs else []
