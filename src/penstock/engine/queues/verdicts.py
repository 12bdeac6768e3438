"""What consumers say of messages they have leased, and what follows from each verdict: entries of the ledger."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from operator import itemgetter
from typing import Final, NamedTuple, cast

from penstock.engine.queues import entries
from penstock.engine.queues.entries import Cause, How, Value
from penstock.engine.queues.group import Group
from penstock.engine.queues.leases import Lease
from penstock.engine.queues.settings import OnExpiry, QueueRules
from penstock.engine.queues.window import LEASED, Run
from penstock.errors import Code, PenstockError

LONGEST_LEASE_MS: Final = 12 * 3_600_000
LONGEST_DELAY_MS: Final = 7 * 86_400_000
"""Of a message that comes back."""
FREE_RELEASES: Final = 99
"""Of one message; the next one counts as a failed attempt."""
_LONGEST_REASON: Final = 250
Chance = Callable[[], float]
"""At least 0, less than 1, for backoff."""


class VerdictKind(IntEnum):
    """What becomes of a message that is leased."""

    ACK = 1
    RELEASE = 2
    NACK = 3
    REJECT = 4
    RENEW = 5
    GONE = 6
    """There is no such record."""
    EXPIRE = 7
    """The time it was to be kept for is over."""
    UNREAD = 8
    """Nobody has seen it; the lease does not count."""


class Verdict(NamedTuple):
    """Attributes:
    delay_ms: of a nack or release, how long it waits instead of the backoff; of a renewal, from now on.
    """

    kind: VerdictKind
    delay_ms: int | None = None
    reason: str = ""


class Change(NamedTuple):
    """Offsets of a range, both ends in it, and the verdict on them."""

    first: int
    last: int
    verdict: Verdict


class Receipt(NamedTuple):
    """Who has been told the lease."""

    lease_id: int


class Holder(NamedTuple):
    """Who has it by name."""

    consumer: str


By = Receipt | Holder


class Ack(NamedTuple):
    """Offsets of a range, both ends in it, that are acknowledged by their receipts."""

    first: int
    last: int
    lease_id: int


def check_apart(changes: Sequence[Change | Ack]) -> None:
    """Raises PenstockError INVALID_REQUEST for ranges that are none, or share an offset."""
    behind = -1
    for change in sorted(changes, key=itemgetter(0, 1)):
        if not behind < change.first <= change.last:
            raise PenstockError(
                Code.INVALID_REQUEST, f"offsets {change.first} to {change.last}: no range, or one that was given twice"
            )
        behind = change.last


def leased_parts(group: Group, by: By, change: Change) -> list[Run]:
    """What of a change is still open: all of it, or STALE_RECEIPT; for who has it by name, what is not settled.

    Whoever asks by a receipt is told of a verdict of its own, and what lies below the window may have had another.
    """
    window = group.window
    if isinstance(by, Receipt) and change.first < window.start:
        raise _stale(group, change.first)
    first, last = max(change.first, window.start), change.last
    if last >= window.next and isinstance(by, Receipt):
        raise _stale(group, last)
    if last >= window.next:
        raise PenstockError(Code.INVALID_REQUEST, f"offset {last} was not given to anybody in group {group.name!r}")
    if first > last:
        return []
    runs, count = [], 0
    for run, slot in window.leased_in(first, last):
        lease = group.leases.in_slot(slot)
        if lease is None or not is_by(lease, by):
            raise _stale(group, run.first)
        if lease.is_pending and change.verdict.kind is not VerdictKind.RENEW:
            raise _pending(group, run.first)
        runs.append(run)
        count += run.size
    if count < last - first + 1:
        raise _stale(group, next(at for at in range(first, last + 1) if window.state_of(at) != LEASED))
    return runs


def settled_in(group: Group, producer_id: int, acks: Sequence[Ack]) -> list[Value]:
    """Have all of it be acknowledged if a producer's transaction commits, or raise STALE_RECEIPT.

    What is so by the same transaction already is well: whoever had no answer asks again.
    """
    check_apart(acks)
    window, runs = group.window, []
    for first, last, lease_id in acks:
        count = 0
        for run, slot in window.leased_in(first, last):
            lease = group.leases.in_slot(slot)
            if lease is None or not is_by(lease, Receipt(lease_id)):
                raise _stale(group, run.first)
            if lease.is_pending and lease.producer != producer_id:
                raise _pending(group, run.first)
            if not lease.is_pending:
                runs.append(run)
            count += run.size
        if count < last - first + 1:
            raise _stale(group, next(at for at in range(first, last + 1) if window.state_of(at) != LEASED))
    return [entries.SettledIn(producer_id, False, tuple(runs))] if runs else []


def after_abort(now: int, group: Group, rules: QueueRules, lease: Lease, chance: Chance) -> list[Value]:
    """What comes of a lease that a transaction has left which aborted: nothing has failed by that."""
    runs = list(group.left_of(lease.slot, lease.runs))
    if lease.deadline > now:
        return [entries.Renewed(lease.lease_id, lease.deadline, tuple(runs))]
    return give_back(now, group, rules, runs, chance, None, is_free=True)


def judge(
    now: int, group: Group, rules: QueueRules, verdict: Verdict, runs: Sequence[Run], chance: Chance
) -> list[Value]:
    """What comes of a verdict on what is leased."""
    match verdict.kind:
        case VerdictKind.ACK:
            return [entries.Settled(How.ACKED, tuple(runs))]
        case VerdictKind.GONE:
            return [entries.Settled(How.GONE, tuple(runs))]
        case VerdictKind.EXPIRE:
            if rules.on_expiry is OnExpiry.DEAD_LETTER:
                return bury(rules, Cause.EXPIRED, How.EXPIRED, 0, verdict.reason, runs)
            return [entries.Settled(How.EXPIRED, tuple(runs))]
        case VerdictKind.REJECT:
            return bury(rules, Cause.REJECTED, How.REJECTED, 0, verdict.reason, runs)
        case VerdictKind.RENEW:
            return _renew(now, group, rules, verdict, runs)
        case VerdictKind.RELEASE:
            return give_back(now, group, rules, runs, chance, verdict.delay_ms, is_free=True)
        case VerdictKind.UNREAD:
            return [entries.Returned(0, now, 0, False, True, False, tuple(runs))]
        case VerdictKind.NACK:
            return give_back(now, group, rules, runs, chance, verdict.delay_ms, is_free=False)


def bury(rules: QueueRules, cause: Cause, how: How, attempts: int, reason: str, runs: Sequence[Run]) -> list[Value]:
    """They become dead letters, or are dropped if the queue has none."""
    if rules.dead_letter is None:
        return [entries.Settled(how, tuple(runs))]
    return [entries.Dying(cause, attempts, reason[:_LONGEST_REASON], False, tuple(runs))]


def _renew(now: int, group: Group, rules: QueueRules, verdict: Verdict, runs: Sequence[Run]) -> list[Value]:
    wanted = now + (rules.visibility_ms if verdict.delay_ms is None else max(verdict.delay_ms, 0))
    renewed: dict[tuple[int, int], list[Run]] = {}
    for run in runs:
        for part, slot in group.window.leased_in(run.first, run.last):
            lease = cast(Lease, group.leases.in_slot(slot))
            deadline = min(wanted, lease.began + LONGEST_LEASE_MS)
            renewed.setdefault((lease.lease_id, deadline), []).append(part)
    return [entries.Renewed(lease_id, deadline, tuple(parts)) for (lease_id, deadline), parts in renewed.items()]


def give_back(
    now: int,
    group: Group,
    rules: QueueRules,
    runs: Sequence[Run],
    chance: Chance,
    delay_ms: int | None,
    *,
    is_free: bool,
    is_shaken: bool = False,
) -> list[Value]:
    """What was leased can be had again, unless it was tried too often.

    Args:
        delay_ms: how long it waits instead of the backoff.
        is_free: it is no failed attempt.
        is_shaken: its consumer was lost with it.
    """
    back: dict[tuple[int, int], list[Run]] = {}
    dying: dict[int, list[Run]] = {}
    for run in runs:
        for part in group.window.counted(run.first, run.last):
            attempts = 0 if is_free and part.deliveries - part.attempts <= FREE_RELEASES else 1
            failed = part.attempts + attempts
            tries = part.deliveries if rules.by_deliveries else failed
            if tries >= rules.limit and (attempts or rules.by_deliveries) and not rules.blocks_keys:
                dying.setdefault(attempts, []).append(Run(part.first, part.last))
                continue
            wait_ms = delay_ms
            if wait_ms is None:
                wait_ms = rules.backoff.delay_ms(failed, chance()) if attempts else 0
            due = now + min(wait_ms, LONGEST_DELAY_MS) if wait_ms > 0 else 0
            back.setdefault((attempts, due), []).append(Run(part.first, part.last))
    values: list[Value] = [
        entries.Returned(attempts, now, due, is_shaken, False, False, tuple(parts))
        for (attempts, due), parts in back.items()
    ]
    cause = Cause.DELIVERIES if rules.by_deliveries else Cause.ATTEMPTS
    for attempts, parts in dying.items():
        values += bury(rules, cause, How.EXHAUSTED, attempts, "", parts)
    return values


def is_by(lease: Lease, by: By) -> bool:
    """Whether a lease is theirs who ask."""
    match by:
        case Receipt(lease_id):
            return lease.lease_id == lease_id and not lease.is_bound
        case Holder(consumer):
            return lease.consumer == consumer


def _stale(group: Group, offset: int) -> PenstockError:
    return PenstockError(
        Code.STALE_RECEIPT,
        f"offset {offset} of group {group.name!r} is not leased under this receipt any more",
        help="its time was up, or it was settled; it is delivered again if it was not",
    )


def _pending(group: Group, offset: int) -> PenstockError:
    return PenstockError(
        Code.STALE_RECEIPT,
        f"offset {offset} of group {group.name!r} is acknowledged in a transaction that has not ended",
        help="if that aborts, the message is under this receipt again, or is delivered again",
    )
