"""What a ledger is asked for, and what it answers."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.engine.queues import entries
from penstock.engine.queues.entries import Cause
from penstock.engine.queues.window import Counted, Run


class Want(NamedTuple):
    """Attributes:
    most: messages.
    visibility_ms: None for the queue's own.
    bound: see `entries.Leased.is_bound`.
    lane: only messages of this one; None for all.
    """

    group: str
    consumer: str
    most: int
    visibility_ms: int | None = None
    bound: bool = False
    lane: int | None = None


class Leased(NamedTuple):
    """What a consumer gets; no ranges if nothing is ready."""

    lease_id: int
    deadline: int
    ranges: tuple[Counted, ...]


class Figures(NamedTuple):
    """How one group stands in one partition."""

    group: str
    start: int
    next: int
    ready: int
    leased: int
    delayed: int
    dying: int
    settled_beyond: int
    """Above `start`."""
    in_transactions: int = 0
    """Of those that are leased."""


class Whereabouts(NamedTuple):
    """Of one offset: its state, and its lease if it is in one.

    Attributes:
    is_pending: it is acknowledged in a transaction that has not ended.
    """

    state: int
    deliveries: int
    attempts: int
    consumer: str | None = None
    deadline: int | None = None
    is_pending: bool = False


class DyingMessages(NamedTuple):
    """Messages of a group that are to become dead letters together.

    Attributes:
    begun: how, if that was noted before.
    """

    group: str
    begun: entries.Burying | None
    runs: Sequence[Run]


class DeadMessage(NamedTuple):
    cause: Cause
    reason: str
    deliveries: int
    attempts: int
