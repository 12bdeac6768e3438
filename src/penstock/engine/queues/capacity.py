"""How much a queue may hold: a batch that would be too much is refused, or the oldest messages make room for it.

A queue holds what it has not settled, in each partition by itself: so many messages, or so many bytes, which are those
messages' share of the log from the first of them on. What is asked when a batch comes is two numbers.
"""

from collections.abc import Callable
from typing import NamedTuple

from penstock.engine.partition import Partition
from penstock.engine.queues.group import Group
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.rulebook import Rulebook
from penstock.engine.queues.settings import OnFull, QueueRules
from penstock.engine.queues.window import DYING, SETTLED
from penstock.errors import Code, PenstockError

Overflow = Callable[[str, int], None]


class Held(NamedTuple):
    messages: int
    size_bytes: int


class Capacity:
    """Of one partition that is led here; it is asked about every batch of clients.

    Args:
        opened: has a queue be known that was made since.
        overflow: has so many of the oldest messages of a group go.
    """

    def __init__(
        self,
        partition: Partition,
        machine: Callable[[], LedgerMachine | None],
        rulebook: Rulebook,
        opened: Callable[[str], None],
        overflow: Overflow,
    ) -> None:
        self._partition = partition
        self._machine = machine
        self._rulebook = rulebook
        self._opened = opened
        self._overflow = overflow

    def check(self, messages: int, size_bytes: int) -> None:
        """Whether so much may come. Raises PenstockError QUEUE_FULL."""
        limited = self._rulebook.limited(self._partition.topic)
        machine = self._machine()
        if not limited or machine is None:
            return
        too_many: list[tuple[str, int]] = []
        for name, rules in limited.items():
            if machine.get(name) is None:
                self._opened(name)
            group = machine.get(name)
            if group is not None and (excess := self._excess(group, rules, Held(messages, size_bytes))) > 0:
                too_many.append((name, excess))
        for name, excess in too_many:  # when no other queue has refused it
            self._overflow(name, excess)

    def _excess(self, group: Group, rules: QueueRules, more: Held) -> int:
        """How many of the oldest have to go. Raises PenstockError QUEUE_FULL where nothing goes for what comes."""
        held = held_by(self._partition, group)
        if rules.on_full is not OnFull.REJECT:  # what is dying is on its way out, and has made room already
            held = _with_fewer(held, group.window.counts[DYING])
        excess = 0
        if rules.max_messages is not None:
            excess = held.messages + more.messages - rules.max_messages
        if rules.max_bytes is not None and held.size_bytes + more.size_bytes > rules.max_bytes:
            beyond = held.size_bytes + more.size_bytes - rules.max_bytes
            excess = max(excess, -(-beyond * held.messages // max(held.size_bytes, 1)), 1)
        if excess <= 0 or rules.on_full is not OnFull.REJECT:
            return min(excess, held.messages)
        raise PenstockError(
            Code.QUEUE_FULL,
            f"queue {group.name!r} holds {held.messages} messages, {held.size_bytes} bytes in "
            f"{self._partition.name}, and {more.messages} more are too many",
            help="receive some, or alter max-size or on-full of the queue",
        )


def held_by(partition: Partition, group: Group) -> Held:
    """What a group has not settled in a partition, and about how many bytes the log has of it.

    One message that stays for long does not count with all that was settled behind it.
    """
    window, log = group.window, partition.leading()
    span = max(log.end_offset, window.next) - window.start
    messages = span - window.counts[SETTLED]
    return Held(messages, log.size_from(window.start) * messages // max(span, 1))


def _with_fewer(held: Held, count: int) -> Held:
    """As if so many messages had gone, each with its share of the bytes."""
    left = held.messages - count
    return Held(left, held.size_bytes * left // max(held.messages, 1))
