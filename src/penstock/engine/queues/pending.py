"""What is acknowledged in transactions that have not ended: by a producer, as one thing with what it writes.

A message is leased, and its receipt comes with the offsets of a producer's transaction. From then on it is pending:

                 SettledIn, as a batch of the transaction            commit marker
    leased ----------------------------------------------> pending ----------------> settled
      ^                                                      |
      |   its time is not over: Renewed, as it was           | abort marker
      +------------------------------------------------------+
    ready, or dying  <-------------------------------------- its time is over: Returned, and nothing has failed

The marker is a batch of the ledger's log like those that other partitions of the transaction get, so a message is
settled if, and only if, what was written with it can be read. While it is pending it stays in its lease, in a slot of
its own (`leases.py`): it counts as leased, is nobody else's, and no verdict on it is taken but that it be extended. The
end of its time changes nothing. Only whoever ends the transaction does, and a coordinator ends each: at its time-out,
if the producer is gone.

A marker says no more than that a transaction has ended, and is read again with the log; what becomes of a message that
comes back depends on the time and on the queue's rules, and so is said by an entry, in the next tick.

An operator's word goes before a transaction's. What is purged, or lost with its record, is settled, and the commit
finds nothing to do; a queue that begins anew, or is deleted, has forgotten the transaction.

Which offsets a transaction has is kept here beside the leases, as a state that is saved in pieces names it in the
first: the marker may stand in the log before the leases do.
"""

from collections.abc import Sequence

from penstock.engine.queues.window import Run


class Pending:
    """Of one group: what each producer's transaction has. Some of it may be settled, by an operator."""

    def __init__(self) -> None:
        self._runs: dict[int, list[Run]] = {}

    def add(self, producer_id: int, runs: Sequence[Run]) -> None:
        self._runs.setdefault(producer_id, []).extend(runs)

    def take(self, producer_id: int) -> Sequence[Run]:
        """What it has; nothing any more."""
        return self._runs.pop(producer_id, ())

    def cut(self, end: int) -> None:
        """From there on the offsets are other messages'."""
        for producer_id, runs in self._runs.items():
            self._runs[producer_id] = [Run(first, min(last, end - 1)) for first, last in runs if first < end]

    def clear(self) -> None:
        self._runs.clear()
