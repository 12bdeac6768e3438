"""One active consumer: it alone gets the messages of a partition, and the others wait until its time is over.

It stays the active one as long as it has messages, or has asked for some within the time of a lease. Nobody else can be
it before: whatever it had is settled or came back by then.
"""

from penstock.engine.queues.leases import Leases


class ActiveConsumer:
    """Of one group in one partition. Nothing of it is kept: after a failover whoever asks first is the next one."""

    __slots__ = ("_asked", "name")

    def __init__(self) -> None:
        self.name: str | None = None
        self._asked = 0

    def may_have(self, consumer: str, leases: Leases, now: int, patience_ms: int) -> bool:
        """Whether who asks is the active one, or becomes it now."""
        if consumer != self.name and self._is_there(leases, now, patience_ms):
            return False
        self.name, self._asked = consumer, now
        return not any(lease.consumer != consumer for lease in leases)

    def left(self, consumer: str) -> bool:
        """Whether another one may be it now."""
        if consumer != self.name:
            return False
        self.name = None
        return True

    def _is_there(self, leases: Leases, now: int, patience_ms: int) -> bool:
        if self.name is None:
            return False
        return leases.held_by(self.name) > 0 or 0 <= now - self._asked < patience_ms
