"""What a ledger should hold: one small object for each message that was given out, in plain dicts.

It knows of no ranges, slots, heaps or entries, and looks at every message at every step. How long a message waits and
what is free is said here once more, in other words than the code's.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from typing import NamedTuple

from penstock.engine.queues.answers import Want
from penstock.engine.queues.backoff import Backoff, Growth
from penstock.engine.queues.entries import Cause
from penstock.engine.queues.leases import ABORTED
from penstock.engine.queues.settings import OnExpiry, OnFull, QueueRules
from penstock.engine.queues.verdicts import By, Change, Receipt, Verdict, VerdictKind
from penstock.engine.queues.window import DELAYED, DYING, LEASED, READY, SETTLED
from penstock.errors import Code

CHUNK = 1024
LONGEST_LEASE_MS, LONGEST_DELAY_MS = 12 * 3_600_000, 7 * 24 * 3_600_000
FREE = 99
CHANCE = 0.5


class Held(NamedTuple):
    """A lease, or the part of one that was renewed by itself."""

    number: int
    lease_id: int
    consumer: str
    began: int
    deadline: int
    is_bound: bool
    producer: int | None = None
    """In whose transaction it is acknowledged; `ABORTED` when that has ended, until somebody looks."""

    @property
    def is_pending(self) -> bool:
        return self.producer not in (None, ABORTED)


class Message(NamedTuple):
    state: int = READY
    deliveries: int = 0
    attempts: int = 0
    freed: int = 0
    """How often it came back and nothing had failed."""
    held: Held | None = None
    since: int = 0
    due: int = 0
    is_shaken: bool = False
    cause: Cause | None = None
    reason: str = ""

    @property
    def tries(self) -> tuple[int, int, int, bool]:
        return self.state, self.deliveries, self.attempts, self.is_shaken


NEW, GONE = Message(), Message(SETTLED)


class QueueModel:
    """One group. `messages` has all from `start` to `next`, in order."""

    def __init__(self, rules: QueueRules, start: int) -> None:
        self.rules = rules
        self.restart(start)
        self._numbers = 0

    def restart(self, start: int) -> None:
        self.start = self.next = start
        self.messages: dict[int, Message] = {}
        self.burial: tuple[int, ...] = ()

    def copy(self) -> "QueueModel":
        other = copy(self)
        other.messages = dict(self.messages)
        return other

    def in_state(self, state: int) -> list[int]:
        return [offset for offset, message in self.messages.items() if message.state == state]

    def parts(self) -> dict[Held, list[int]]:
        """What is leased, by the lease or the part of one."""
        found: dict[Held, list[int]] = {}
        for offset in self.in_state(LEASED):
            held = self.messages[offset].held
            assert held is not None
            found.setdefault(held, []).append(offset)
        return found

    def deadlines(self) -> list[int]:
        held = [held.deadline for held in self.parts() if not held.is_pending]
        return held + [self.messages[each].due for each in self.in_state(DELAYED)]

    # --- leasing

    def lease(self, now: int, want: Want, end: int, lease_id: int) -> list[tuple[int, int, int]]:
        """Offsets with their counters."""
        parts, rules = self.parts(), self.rules
        theirs = sum(len(offsets) for held, offsets in parts.items() if held.consumer == want.consumer)
        all_leased = sum(map(len, parts.values()))
        room = min(want.most, rules.max_unacked - all_leased, rules.max_unacked_consumer - theirs)
        picked = self.pick(room, end) if room > 0 else []
        visibility_ms = rules.visibility_ms if want.visibility_ms is None else want.visibility_ms
        deadline = now + min(visibility_ms, LONGEST_LEASE_MS)
        held = Held(self._new_number(), lease_id, want.consumer, now, deadline, want.bound)
        for offset in picked:
            before = self._touch(offset)
            deliveries = min(before.deliveries + 1, 255)
            self.messages[offset] = Message(LEASED, deliveries, before.attempts, before.freed, held)
        return [(offset, self.messages[offset].deliveries, self.messages[offset].attempts) for offset in picked]

    def pick(self, room: int, end: int, *, is_last_known: bool = True) -> list[int]:
        """What came back, in order, then what is new. What was lost together comes by itself, in halves."""
        picked: list[int] = []
        for offset in self.in_state(READY):
            if self.messages[offset].is_shaken:
                return picked or self._half(offset, is_last_known=is_last_known)[:room]
            picked.append(offset)
            if len(picked) == room:
                return picked
        return picked + list(range(self.next, min(end, self.next + room - len(picked))))

    def _half(self, first: int, *, is_last_known: bool) -> list[int]:
        alike, like = [first], self.messages[first]
        while (alike[-1] + 1) % CHUNK and self.messages.get(alike[-1] + 1, GONE).tries == like.tries:
            alike.append(alike[-1] + 1)
        tries = like.deliveries if self.rules.by_deliveries else like.attempts
        is_last_chance = is_last_known and self.rules.limit - tries <= 1
        return alike[:1] if is_last_chance else alike[: max(1, len(alike) // 2)]

    def _touch(self, offset: int) -> Message:
        self.next = max(self.next, offset + 1)
        return self.messages.setdefault(offset, Message())

    def overflow(self, excess: int, end: int) -> None:
        while excess > 0 and (picked := self.pick(excess, end, is_last_known=False)):
            for offset in picked:
                self._touch(offset)
            if self.rules.on_full is OnFull.DEAD_LETTER:
                self._bury(picked, Cause.OVERFLOW, "")
            else:
                self._settle(picked)
            excess -= len(picked)

    def redrive(self, offsets: Iterable[int], queue: str) -> int:
        """How many go back to the queue they are from: those that nobody has."""
        free = [offset for offset in offsets if self.messages.get(offset, NEW).state == READY and offset >= self.start]
        for offset in range(self.next, max(free, default=-1) + 1):
            self._touch(offset)
        self._bury(free, Cause.REDRIVEN, queue)
        return len(free)

    # --- verdicts

    def settle(self, now: int, by: By, changes: Sequence[Change]) -> Code | None:
        offsets = [range(change.first, change.last + 1) for change in changes]
        every = [offset for each in offsets for offset in each]
        if not all(offsets) or len(every) > len(set(every)) or min(every, default=0) < 0:
            return Code.INVALID_REQUEST
        for each, change in zip(offsets, changes, strict=True):
            if each[-1] >= self.next:
                return Code.STALE_RECEIPT if isinstance(by, Receipt) else Code.INVALID_REQUEST
            if isinstance(by, Receipt) and each[0] < self.start:
                return Code.STALE_RECEIPT
            theirs = [self.messages[offset].held for offset in each if offset >= self.start]
            if not all(_is_by(held, by) for held in theirs):
                return Code.STALE_RECEIPT
            is_more = change.verdict.kind is not VerdictKind.RENEW
            if is_more and any(held is not None and held.is_pending for held in theirs):
                return Code.STALE_RECEIPT
        alike: dict[Verdict, list[int]] = {}
        for each, change in zip(offsets, changes, strict=True):
            alike.setdefault(change.verdict, []).extend(offset for offset in each if offset in self.messages)
        for verdict, chosen in alike.items():
            self._judge(now, chosen, verdict)
        return None

    def _judge(self, now: int, offsets: list[int], verdict: Verdict) -> None:
        match verdict.kind:
            case VerdictKind.RENEW:
                self._renew(now, offsets, verdict.delay_ms)
            case VerdictKind.NACK | VerdictKind.RELEASE:
                self._give_back(now, offsets, verdict.delay_ms, is_free=verdict.kind is VerdictKind.RELEASE)
            case VerdictKind.UNREAD:
                for offset in offsets:
                    before = self.messages[offset]
                    self.messages[offset] = Message(READY, before.deliveries - 1, before.attempts, before.freed)
            case VerdictKind.REJECT:
                self._bury(offsets, Cause.REJECTED, verdict.reason)
            case VerdictKind.EXPIRE if self.rules.on_expiry is OnExpiry.DEAD_LETTER:
                self._bury(offsets, Cause.EXPIRED, verdict.reason)
            case VerdictKind.ACK | VerdictKind.GONE | VerdictKind.EXPIRE:
                self._settle(offsets)

    def _renew(self, now: int, offsets: list[int], delay_ms: int | None) -> None:
        wanted = now + (self.rules.visibility_ms if delay_ms is None else max(delay_ms, 0))
        for held, had in self.parts().items():
            renewed = [offset for offset in had if offset in offsets]
            number = held.number if renewed == had else self._new_number()
            producer = held.producer if held.is_pending else None
            deadline = min(wanted, held.began + LONGEST_LEASE_MS)
            after = held._replace(number=number, deadline=deadline, producer=producer)
            for offset in renewed:
                self.messages[offset] = self.messages[offset]._replace(held=after)

    def _give_back(
        self, now: int, offsets: list[int], delay_ms: int | None, *, is_free: bool, is_shaken: bool = False
    ) -> None:
        by_deliveries = self.rules.by_deliveries
        for offset in offsets:
            before = self.messages[offset]
            failed = 0 if is_free and before.freed < FREE else 1
            attempts = before.attempts + failed
            if (before.deliveries if by_deliveries else attempts) >= self.rules.limit and (failed or by_deliveries):
                self._bury([offset], Cause.DELIVERIES if by_deliveries else Cause.ATTEMPTS, "", failed)
                continue
            backoff_ms = backed_off_ms(self.rules.backoff, attempts) if failed else 0
            wait_ms = min(backoff_ms if delay_ms is None else delay_ms, LONGEST_DELAY_MS)
            state, due = (DELAYED, now + wait_ms) if wait_ms > 0 else (READY, 0)
            freed = before.freed + 1 - failed
            self.messages[offset] = Message(state, before.deliveries, attempts, freed, None, now, due, is_shaken)

    def end(self, now: int, offsets: list[int], *, graceful: bool) -> int:
        """A lease, or a part of one."""
        self._give_back(now, offsets, None, is_free=graceful, is_shaken=not graceful and len(offsets) > 1)
        return len(offsets)

    def leave(self, now: int, consumer: str, *, graceful: bool) -> int:
        parts = self.parts().items()
        theirs = [offsets for held, offsets in parts if held.consumer == consumer and not held.is_pending]
        return sum(self.end(now, offsets, graceful=graceful) for offsets in theirs)

    def _bury(self, offsets: Iterable[int], cause: Cause, reason: str, failed: int = 0) -> None:
        if self.rules.dead_letter is None and cause is not Cause.REDRIVEN:
            self._settle(offsets)
            return
        for offset in offsets:
            _, deliveries, attempts, *_ = self.messages[offset]
            self.messages[offset] = Message(DYING, deliveries, attempts + failed, cause=cause, reason=reason)

    def buried(self) -> None:
        """What was lost meanwhile is told of by offsets below 0."""
        self._settle(offset for offset in self.burial if offset >= self.start)
        self.burial = ()

    def skip(self, before: int) -> None:
        """There are no messages from `next` on."""
        offsets = range(self.next, before)
        self.next = max(self.next, before)
        self._settle(offsets)

    def _settle(self, offsets: Iterable[int]) -> None:
        self.messages.update(dict.fromkeys(offsets, GONE))
        while self.messages.get(self.start) == GONE:
            del self.messages[self.start]
            self.start += 1

    # --- transactions

    def settle_in(self, producer: int, acks: Sequence[tuple[int, int, int]]) -> Code | None:
        every = [offset for first, last, _ in acks for offset in range(first, last + 1)]
        if any(first > last for first, last, _ in acks) or len(every) > len(set(every)) or min(every, default=0) < 0:
            return Code.INVALID_REQUEST
        for first, last, lease_id in acks:
            for offset in range(first, last + 1):
                held = self.messages.get(offset, NEW).held
                if held is None or not _is_by(held, Receipt(lease_id)):
                    return Code.STALE_RECEIPT
                if held.is_pending and held.producer != producer:
                    return Code.STALE_RECEIPT
        for held, had in self.parts().items():
            chosen = [] if held.is_pending else [offset for offset in had if offset in every]
            after = held._replace(number=held.number if chosen == had else self._new_number(), producer=producer)
            for offset in chosen:
                self.messages[offset] = self.messages[offset]._replace(held=after)
        return None

    def decide(self, producer: int, *, committed: bool) -> None:
        for held, offsets in self.parts().items():
            if held.producer == producer and committed:
                self._settle(offsets)
            elif held.producer == producer:
                for offset in offsets:
                    self.messages[offset] = self.messages[offset]._replace(held=held._replace(producer=ABORTED))

    def _look_after(self, now: int) -> None:
        """What came out of an aborted transaction: nothing has failed by that."""
        for held, offsets in self.parts().items():
            if held.producer == ABORTED and held.deadline > now:
                for offset in offsets:
                    self.messages[offset] = self.messages[offset]._replace(held=held._replace(producer=None))
            elif held.producer == ABORTED:
                self.end(now, offsets, graceful=True)

    # --- time and place

    def ripen(self, now: int) -> None:
        for offset in self.in_state(DELAYED):
            if self.messages[offset].due <= now:
                self.messages[offset] = self.messages[offset]._replace(state=READY)  # and `due` says since when

    def ripe(self) -> list[int]:
        """What is ready as its time has come, and no entry says so."""
        return [offset for offset in self.in_state(READY) if self.messages[offset].due]

    def note_ripe(self) -> None:
        """Something was leased, and who reads that knows what was ripe."""
        self.messages |= {offset: self.messages[offset]._replace(due=0) for offset in self.ripe()}

    def tick(self, now: int) -> None:
        self._look_after(now)
        parts = self.parts().items()
        for offsets in [offsets for held, offsets in parts if held.deadline <= now and not held.is_pending]:
            self.end(now, offsets, graceful=False)
        self.ripen(now)

    def purge(self, before: int) -> int:
        """How many were not settled."""
        gone = [self.messages.pop(offset) for offset in range(self.start, min(before, self.next))]
        count = sum(message != GONE for message in gone) + max(before - self.next, 0)
        self.start, self.next = max(self.start, before), max(self.next, before)
        self._settle(())
        return count

    def led(self, now: int) -> None:
        """A broker leads, perhaps with a clock that is behind."""
        for offset, message in list(self.messages.items()):
            state, *_, held, since, due, _, _, _ = message
            if held is not None:
                ahead = max(held.began - now, 0)
                after = held._replace(began=held.began - ahead, deadline=held.deadline - ahead)
                self.messages[offset] = message._replace(held=after)
                if held.is_bound:
                    self.messages[offset] = message._replace(state=READY, held=None, freed=message.freed + 1)
            elif state == DELAYED:
                ahead = max(since - now, 0)
                self.messages[offset] = message._replace(since=since - ahead, due=due - ahead)

    def cut(self, end: int) -> None:
        """The messages from there on are others than before."""
        if end >= self.next:
            return
        self.messages = {offset: message for offset, message in self.messages.items() if offset < end}
        self.start, self.next = min(self.start, end), end
        left = [offset for offset in self.burial if 0 <= offset < end]
        lost = len(self.burial) - len(left)
        self.burial = (*left, *range(-lost, 0)) if left else ()

    def _new_number(self) -> int:
        self._numbers += 1
        return self._numbers


def backed_off_ms(backoff: Backoff, attempts: int) -> int:
    """With half of what chance may add."""
    first = backoff.first_ms
    grown = {
        Growth.NONE: 0,
        Growth.FIXED: first,
        Growth.LINEAR: attempts * first,
        Growth.EXPONENTIAL: first * 2 ** (attempts - 1),
    }
    wait_ms = min(grown[backoff.kind], backoff.most_ms)
    return wait_ms + int(wait_ms * backoff.jitter * CHANCE)


def _is_by(held: Held | None, by: By) -> bool:
    if held is None:
        return False
    return (
        held.lease_id == by.lease_id and not held.is_bound if isinstance(by, Receipt) else held.consumer == by.consumer
    )
