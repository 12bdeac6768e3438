"""This broker's replica of one partition: whose it is, what was decided about it, its log, how far it is committed.

What is here holds whoever leads; a broker that follows needs no more. What a leader does is in `leader.py`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.engine.leadership import Leadership
from penstock.engine.partition_events import PartitionEvents
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.engine.topic_config import TopicConfig
from penstock.engine.waiters import Waiters
from penstock.errors import Code, PenstockError
from penstock.ports.clock import Clock
from penstock.storage.log.log import Floor, Log

if TYPE_CHECKING:
    from penstock.engine.elsewhere import Elsewhere
    from penstock.engine.needs import TellsNeeds
    from penstock.engine.once.once import Once
    from penstock.engine.partition import Partition


class Replica:
    """Args:
    events: told when this broker begins to lead it, and when it is about to stop.
    elsewhere: by which it is read while another broker leads it.
    """

    __slots__ = (
        "_clock",
        "_events",
        "_joining",
        "_leadership",
        "_node_id",
        "attached",
        "attached_to",
        "config",
        "elsewhere",
        "floor",
        "guards",
        "high_watermark",
        "index",
        "is_cut_off",
        "is_damaged",
        "leader_epoch",
        "led",
        "log",
        "may_decide_alone",
        "needs",
        "offline",
        "on_followers_moved",
        "once",
        "room",
        "state",
        "steps",
        "topic",
        "topic_id",
        "waiters",
        "waiting_producers",
    )

    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        index: int,
        state: PartitionState,
        config: TopicConfig,
        clock: Clock,
        node_id: int,
        events: PartitionEvents | None = None,
        elsewhere: "Elsewhere | None" = None,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.state = state
        self.leader_epoch = state.leader_epoch
        """Of `state`; of the leadership, while this broker leads."""
        self.config = config
        self.log: Log | None = None
        self.led: Log | None = None
        self.offline: PenstockError | None = None
        """Why this partition cannot be used, while the others can."""
        self.is_cut_off = False
        """Whether this broker leads, as far as it knows, but can commit nothing; another may have been elected."""
        self.is_damaged = False
        """Whether this replica lacks what it should have, so that it may only be made anew from another one."""
        self.steps = 0
        """Appends and reads here since the start: the broker's work is shared out among partitions by it."""
        self.room: Callable[[int, int], None] | None = None
        """Asked whether so many records of so many bytes may come; it raises PenstockError. None where all may."""
        self.once: Once | None = None
        """Who drops duplicates of what was appended lately; None where nobody has asked for that, or on a follower."""
        self.waiting_producers: set[int] = set()
        """Producers with a batch that is being opened, or waits for something; see `opener`."""
        self.guards: dict[int, object] = {}
        """By producer: stands for a transaction that is being looked up elsewhere; gone when a marker comes."""
        self.high_watermark = 0
        self.waiters = Waiters()
        self.may_decide_alone: Callable[[], bool] = _always
        """Whether this broker may commit by itself what others have replicas of; not if it may have been replaced."""
        self.on_followers_moved: Callable[[], None] = nothing
        """Called when a follower that is not in sync could be."""
        self.attached: tuple[Partition, ...] = ()
        """Those that take every role with this one, and count for who is in sync; see `attached.py`."""
        self.attached_to: Partition | None = None
        """Whose roles this one takes, if it is attached to another."""
        self.floor: Floor = _everything
        """Of one that is attached: the lowest offset of the data it still needs, None for nothing; see `Log.floors`."""
        self.needs: TellsNeeds | None = None
        """Of one that is attached: who can tell which offsets it needs above its floor; without it all are."""
        self._clock = clock
        self._node_id = node_id
        self._events = events
        self.elsewhere = elsewhere
        self._leadership: Leadership | None = None
        self._joining: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.index}"

    def hold(self, log: Log, high_watermark: int) -> None:
        """Have this log, of which so much is known to be committed."""
        self.have(log)
        self.high_watermark = max(self.high_watermark, min(high_watermark, log.end_offset), log.log_start)
        self._note_committed(log)

    def have(self, log: Log) -> None:
        """This is its log from now on; how far it is committed has to be said, too."""
        self.log = log
        log.floors += [attached.ask_floor for attached in self.attached]

    def ask_floor(self) -> int | None:
        """Asked by the retention of what this is attached to."""
        return self.floor()

    def hold_nothing(self) -> None:
        """This replica is made anew: nothing of what it had counts."""
        self.offline, self.is_damaged = None, False
        self.high_watermark = 0

    def told_committed(self, high_watermark: int) -> None:
        """The leader says how far everything is committed; this follower goes by it when it leads next."""
        log = self.log
        if log is None or self.led is not None:
            return
        known = min(high_watermark, log.visible_end)
        if known > self.high_watermark:
            self.high_watermark = known
            self._note_committed(log)

    def opened(self) -> Log:
        """This broker's replica, whoever leads. Raises PenstockError when there is none."""
        if self.log is None:
            raise (
                self._not_led()
                if self._node_id not in self.state.replicas
                else (self.offline or PenstockError(Code.NOT_AVAILABLE, f"{self.name} is not open yet"))
            )
        return self.log

    def _not_led(self) -> PenstockError:
        if self.offline is not None:
            return self.offline
        who = (
            f"broker {self.state.leader} leads it"
            if self.state.leader not in (NOBODY, self._node_id)
            else "nobody leads it now"
        )
        return PenstockError(Code.NOT_LEADER, f"{self.name} is not led here: {who} (epoch {self.state.leader_epoch})")

    def _note_committed(self, log: Log) -> None:
        log.committed_end = self.high_watermark
        if log.first_unstable >= 0:
            log.settle_transactions(self.high_watermark)

    # --- being asked

    @property
    def is_held(self) -> bool:
        """Whether this broker has a replica of it that can be used."""
        return self.log is not None

    @property
    def size_bytes(self) -> int:
        """Of this broker's replica. Raises PenstockError when there is none."""
        return self.opened().size_bytes

    @property
    def is_moving_here(self) -> bool:
        """Whether this replica is made because the partition moves here, and not in sync yet."""
        state = self.state
        return self._node_id in state.target and self._node_id not in (*state.isr, *state.origin)

    @property
    def is_shared(self) -> bool:
        """Whether other brokers take part in what becomes safe here, so that waiting for it needs a deadline."""
        return len(self.state.replicas) > 1 or self.may_decide_alone is not _always

    @property
    def is_elsewhere(self) -> bool:
        """Whether another broker leads it."""
        return self.led is None and self.state.leader not in (NOBODY, self._node_id)


def _always() -> bool:
    return True


def nothing() -> None:
    return None


def _everything() -> int:
    """Who has not said what it needs yet may need all there is."""
    return 0
