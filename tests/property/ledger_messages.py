"""Steps of the ledger's model about size and time: messages are published, received, released for ever, and purged.

What decides about size and time lies beside the machine (`capacity.py`, `receiving.py`) and runs here over messages in
memory. What it should decide is said in plain words of the model.
"""

import asyncio
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from tests.message_log import MessageLog
from tests.property.ledger_model import FREE, NEW, QueueModel

from penstock.engine.queues.answers import Leased, Want
from penstock.engine.queues.capacity import Capacity
from penstock.engine.queues.headers import TTL_MS
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.receiving import Receiving
from penstock.engine.queues.settings import OnFull, QueueRules
from penstock.engine.queues.tally import Tally
from penstock.engine.queues.verdicts import By, Change, Receipt, Verdict, VerdictKind
from penstock.engine.queues.window import DELAYED, DYING, LEASED, READY, SETTLED
from penstock.engine.reading import Message
from penstock.errors import Code, PenstockError
from penstock.observe.stats import Stats

HOUR_MS: Final = 3_600_000
MESSAGE_BYTES: Final = 40
"""What each has beside its value and headers."""
GAP: Final = 7
"""Every so many offsets there is no message."""
Given = Mapping[str, st.SearchStrategy[Any]]


def message_steps(groups: st.SearchStrategy[str], consumers: st.SearchStrategy[str]) -> list[tuple[str, Given]]:
    ttls = st.sampled_from([None, None, 1, 5000, HOUR_MS])
    who = {"name": groups, "consumer": consumers}
    publish = {"name": groups, "count": st.integers(1, 8), "value": st.sampled_from([0, 20, 300]), "ttl_ms": ttls}
    max_bytes = st.sampled_from([1, 100, 400, 1 << 20, 1 << 20])
    return [
        *[("publish", publish)] * 3,
        ("publish_to_the_brim", {"name": groups, "more": st.integers(0, 1)}),
        *[("receive", {**who, "share": st.integers(1, 12), "max_bytes": max_bytes})] * 2,
        ("receive_at_the_last_moment", {**who, "early_ms": st.integers(0, 1)}),
        *[("fail_again", {**who, "times": st.sampled_from([1, 3, 6])})] * 2,
        ("release_for_ever", {**who, "beyond": st.integers(-1, 3)}),
        ("purge_everything", {"name": groups}),
    ]


class MessageSteps:
    """What a world of the ledger has beside its own steps."""

    now: int
    end: int
    most: int
    machine: LedgerMachine
    queues: dict[str, QueueModel]

    def __init__(self) -> None:
        super().__init__()
        self.messages = MessageLog("orders")

    def catch_up(self) -> MessageLog:
        """Messages of other steps are small, and have no time of their own."""
        log = self.messages
        log.cut(min(log.end_offset, self.end))
        while log.end_offset < self.end:
            if log.end_offset % GAP:
                log.append(self.now)
            else:
                log.end_offset += 1
        return log

    # --- size

    def publish(self, name: str, count: int, value: int, ttl_ms: int | None) -> None:
        """The queue is the only one of the topic that has a limit."""
        queue, log = self.queues.get(name), self.catch_up()
        if queue is None:
            return
        message = Message(0, self.now, None, bytes(value), () if ttl_ms is None else ((TTL_MS, b"%d" % ttl_ms),))
        size_bytes = count * bytes_of(message)
        excess, held = excess_of(queue, count, size_bytes, self.end, log), held_in(queue, self.end)
        made: list[int] = []

        def overflow(group: str, too_many: int) -> None:
            made.append(too_many)
            self.overflow(group, too_many)  # type: ignore[attr-defined]

        limited = _Limited({name: queue.rules})
        capacity = Capacity(log, lambda: self.machine, limited, pytest.fail, overflow)  # type: ignore[arg-type]
        if excess and queue.rules.on_full is OnFull.REJECT:
            with pytest.raises(PenstockError) as refused:
                capacity.check(count, size_bytes)
            assert refused.value.code is Code.QUEUE_FULL
            return
        capacity.check(count, size_bytes)
        assert made == ([min(excess, held)] if min(excess, held) else [])
        self.end += count
        for _ in range(count):
            log.append(self.now, message.headers, bytes(value))

    def publish_to_the_brim(self, name: str, more: int) -> None:
        """One message, as many bytes as there is room for, or one more."""
        queue, log = self.queues.get(name), self.catch_up()
        if queue is not None and queue.rules.max_bytes is not None:
            room = queue.rules.max_bytes - held_bytes_in(queue, self.end, log) - MESSAGE_BYTES
            self.publish(name, 1, max(room + more, 0), None)

    # --- time

    def receive_at_the_last_moment(self, name: str, consumer: str, early_ms: int) -> None:
        """When the time of some message is just over, or is not yet."""
        queue, log = self.queues.get(name), self.catch_up()
        if queue is None:
            return
        messages = [each for offset, each in log.messages.items() if offset >= queue.start]
        ends = [end for each in messages if (end := end_of(each, queue.rules.ttl_ms)) is not None]
        later = [end for end in ends if end - early_ms > self.now]
        if later:
            self.pass_time(min(later) - early_ms - self.now, is_late=False)  # type: ignore[attr-defined]
        self.receive(name, consumer, 12, 1 << 20)

    def receive(self, name: str, consumer: str, share: int, max_bytes: int) -> None:
        """Nobody gets what is over, and nothing else is lost, nor what did not fit."""
        if name not in self.queues:
            return
        self.catch_up()
        asked = _Asked(self, max_bytes)
        want = Want(name, consumer, max(1, self.most * share // 12))
        receiving = Receiving(asked, asked)  # type: ignore[arg-type]
        found = asyncio.run(receiving.receive(self.messages, want, max_bytes, 0))  # type: ignore[arg-type]
        assert not asked.expected, "what nobody gets is leased"
        assert [each.message.offset for each in found] == asked.fit
        for each in found:
            _, deliveries, attempts, _, held, *_ = self.queues[name].messages[each.message.offset]
            assert held is not None
            assert each[1:] == (held.lease_id, held.deadline, deliveries, attempts)

    def skip(self, name: str, lease_id: int, behind: int, before: int) -> None:
        """Nobody had any of these yet, and there are none."""
        queue = self.queues[name]
        assert not set(range(behind, before)) & set(self.messages.messages)
        if queue.next >= behind:
            queue.skip(before)
        self.keep(self.machine.skip(name, lease_id, behind, before).records)  # type: ignore[attr-defined]

    # --- what comes back, and what is purged

    def fail_again(self, name: str, consumer: str, times: int) -> None:
        """What is first in turn waits longer each time, as the backoff says, and then is ready."""
        for _ in range(times if name in self.queues else 0):
            queue = self.queues[name]
            leased, _ = self.give(Want(name, consumer, 1))  # type: ignore[attr-defined]
            for first, last, *_ in leased.ranges:
                change = Change(first, last, Verdict(VerdictKind.NACK))
                self.settle(name, Receipt(leased.lease_id), [change])  # type: ignore[attr-defined]
                state, *_, due, _, _, _ = queue.messages.get(first, NEW)
                if state == DELAYED:
                    self.pass_time(due - self.now - 1, is_late=False)  # type: ignore[attr-defined]
                    assert self.machine.whereabouts(name, first).state == DELAYED
                    self.pass_time(1, is_late=False)  # type: ignore[attr-defined]
                    assert self.machine.whereabouts(name, first).state == READY

    def release_for_ever(self, name: str, consumer: str, beyond: int) -> None:
        """What is first in turn comes back for free 99 times in all, and not once more.

        The state is saved then, or all those entries would be read again after every step.
        """
        queue = self.queues.get(name)
        if queue is None or queue.rules.by_deliveries:
            return
        queue.ripen(self.now)
        for offset in queue.pick(1, self.end):
            for _ in range(FREE - queue.messages.get(offset, NEW).freed + beyond):
                leased, _ = self.give(Want(name, consumer, 1))  # type: ignore[attr-defined]
                for first, last, *_ in leased.ranges:
                    change = Change(first, last, Verdict(VerdictKind.RELEASE))
                    self.settle(name, Receipt(leased.lease_id), [change])  # type: ignore[attr-defined]
        self.save_all()  # type: ignore[attr-defined]

    def purge_everything(self, name: str) -> None:
        """Nothing is left, and nothing comes again."""
        queue = self.queues.get(name)
        if queue is None:
            return
        held = unsettled_in(queue, self.end)
        self.purge(name, self.end - queue.start)  # type: ignore[attr-defined]
        figures = self.machine.figures(name, self.end)
        assert figures[3:] == (0, 0, 0, 0, 0, 0)
        assert not [each for each in queue.messages.values() if each.state in (READY, LEASED, DELAYED, DYING)]
        assert held == self.purged  # type: ignore[attr-defined]


class _Asked:
    """What receiving asks: the ledger, its rules, and the clock; and what should come of one question.

    Attributes:
        expected: verdicts on what is leased and not delivered, until they are passed.
        fit: what is delivered.
    """

    def __init__(self, world: Any, max_bytes: int) -> None:
        self.tally = Tally(Stats())
        self.expected: dict[int, VerdictKind] = {}
        self.fit: list[int] = []
        self._world = world
        self._max_bytes = max_bytes

    def monotonic(self) -> float:
        return self.now_ms() / 1000

    def now_ms(self) -> int:
        now: int = self._world.now
        return now

    def rules(self, topic: str, group: str) -> QueueRules:
        rules: QueueRules = self._world.queues[group].rules
        return rules

    async def lease(self, partition: MessageLog, want: Want) -> Leased:
        assert not self.expected
        leased: Leased
        leased, told = self._world.give(want)
        left, rules = self._max_bytes, self.rules("", want.group)
        for offset, *_ in told:
            message = partition.messages.get(offset)
            if left <= 0:
                self.expected[offset] = VerdictKind.UNREAD
            elif message is None:
                self.expected[offset] = VerdictKind.GONE
            else:
                left -= bytes_of(message)
                end = end_of(message, rules.ttl_ms)
                if end is not None and self.now_ms() >= end:
                    self.expected[offset] = VerdictKind.EXPIRE
                else:
                    self.fit.append(offset)
        return leased

    def settle_soon(self, partition: MessageLog, group: str, by: By, changes: Sequence[Change]) -> None:
        told = {offset: change.verdict for change in changes for offset in range(change.first, change.last + 1)}
        assert told == {offset: Verdict(kind) for offset, kind in self.expected.items()}
        self.expected = {}
        self._world.settle(group, by, changes)

    def skip_soon(self, partition: MessageLog, group: str, lease_id: int, behind: int, before: int) -> None:
        self._world.skip(group, lease_id, behind, before)


class _Limited:
    """The rulebook, as far as size asks for it."""

    def __init__(self, rules: Mapping[str, QueueRules]) -> None:
        self._rules = rules

    def limited(self, topic: str) -> Mapping[str, QueueRules]:
        return self._rules


def bytes_of(message: Message) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in message.headers)
    return MESSAGE_BYTES + len(message.value or b"") + headers


def end_of(message: Message, queue_ms: int | None) -> int | None:
    """When its time is over. Its own time comes before that of the queue, be it longer or shorter."""
    for name, value in message.headers:
        if name == TTL_MS:
            return message.timestamp + int(value or b"")
    return None if queue_ms is None else message.timestamp + queue_ms


def unsettled_in(queue: QueueModel, end: int) -> int:
    """Had or not."""
    return sum(each.state != SETTLED for each in queue.messages.values()) + max(end - queue.next, 0)


def held_in(queue: QueueModel, end: int) -> int:
    """What is not settled; where the oldest make room, what is dying has made it already."""
    dying = 0 if queue.rules.on_full is OnFull.REJECT else len(queue.in_state(DYING))
    return unsettled_in(queue, end) - dying


def held_bytes_in(queue: QueueModel, end: int, log: MessageLog) -> int:
    """The share that they have of all from the first one on that is not settled."""
    size = sum(bytes_of(each) for offset, each in log.messages.items() if offset >= queue.start)
    unsettled, held = unsettled_in(queue, end), held_in(queue, end)
    share = size * unsettled // max(end - queue.start, queue.next - queue.start, 1)
    return share if held == unsettled else share * held // max(unsettled, 1)


def excess_of(queue: QueueModel, count: int, size_bytes: int, end: int, log: MessageLog) -> int:
    """How many are too many. Of too many bytes it is as many messages as have them on the average, and at least one."""
    held, rules = held_in(queue, end), queue.rules
    held_bytes = held_bytes_in(queue, end, log)
    excess = 0 if rules.max_messages is None else max(held + count - rules.max_messages, 0)
    if rules.max_bytes is not None and (beyond := held_bytes + size_bytes - rules.max_bytes) > 0:
        average = Fraction(held_bytes, held) if held and held_bytes else Fraction(1, held + 1)
        excess = max(excess, min(ceil(beyond / average), held), 1)
    return excess
