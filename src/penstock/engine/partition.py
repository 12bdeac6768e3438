"""One partition on this broker: what it is here, and what may be read.

This broker leads it, follows its leader, or has nothing to do with it but knows who has. Clients are served by the
leader alone. What it does as the leader is in `leader.py`, what any replica has in `replica.py`.
"""

from collections.abc import Callable

from penstock.engine.leader import NO_OFFSET, EpochEnd, KnownProducer, Leader
from penstock.engine.leadership import Leadership
from penstock.engine.partition_state import PartitionState
from penstock.engine.replica import nothing
from penstock.engine.topic_config import TopicConfig
from penstock.storage.log.log import Log
from penstock.storage.log.reading import aborted_in, read_slice
from penstock.storage.log.segment import FileSlice
from penstock.storage.log.transactions import AbortedTransaction

__all__ = ["NO_OFFSET", "EpochEnd", "KnownProducer", "Partition"]


class Partition(Leader):
    """The only writer of its log.

    `log` is this broker's replica, if it has one; `led` is the same while this broker leads, and None otherwise.
    """

    __slots__ = ()

    # --- roles

    def use(self, log: Log) -> None:
        """Have this log, all of which is committed, and lead: for a broker on its own."""
        self.have(log)
        self.high_watermark = log.visible_end
        self.lead(self.state)

    def attach(self, other: "Partition") -> None:
        """Let another one take every role with this one from now on. Which one it has now, the caller takes for it."""
        self.attached = (*self.attached, other)
        other.attached_to = self
        if self.log is not None:
            self.log.floors.append(other.ask_floor)

    @property
    def together(self) -> "tuple[Partition, ...]":
        """This one and what is attached to it."""
        return (self, *self.attached)

    def lead(self, state: PartitionState, joining: tuple[int, ...] = ()) -> None:
        """Lead from now on. The epoch must have been noted in the log, durably: it begins at the log's end.

        Args:
            joining: see `let_join`; of an epoch in which this broker leads already what this one is attached to.
        """
        log = self.opened()
        self.state, self.leader_epoch = state, state.leader_epoch
        self._joining = joining
        self._leadership = Leadership(self._node_id, log.end_offset)
        self._use_members()
        log.follows, log.out_of_room, self.is_cut_off = False, False, False
        log.on_visible = self._advance
        log.on_start_moved = self.waiters.wake_readers
        self.led = log
        self._note_committed(log)
        self._advance()
        self.waiters.wake_readers()  # those of an earlier epoch
        if self._events is not None:
            self._events.led(self)
        for attached in self.attached:
            if attached.log is not None:
                attached.lead(state)

    def lead_attached(self) -> None:
        """Lead what was attached since this broker began to lead."""
        for attached in self.attached:
            if attached.led is None and attached.log is not None:
                attached.lead(self.state, self._joining)

    @property
    def has_any_log(self) -> bool:
        """Whether there is a log here of it or of anything attached to it."""
        return any(each.log is not None for each in self.together)

    @property
    def lacks_attached(self) -> bool:
        """Whether something attached has no log although this one has, or is not led although this one is."""
        return self.log is not None and any(
            attached.offline is None and (attached.log is None or (self.led is not None and attached.led is None))
            for attached in self.attached
        )

    def follow(self, state: PartitionState) -> None:
        """Lead no more, or not yet: another broker does, or nobody."""
        for attached in self.attached:
            attached.follow(state)
        was_led = self.led is not None
        if was_led and self._events is not None:
            self._events.lost(self)
        self.led, self._leadership, self._joining, self.is_cut_off = None, None, (), False
        self.state, self.leader_epoch = state, state.leader_epoch
        if self.log is not None:
            self.log.follows = True
            self.log.on_visible = self.log.on_appended = self.log.on_start_moved = nothing
        if was_led:
            self.guards.clear()
            self.waiters.abandon(self._not_led())
        else:
            self.waiters.wake_readers()  # those that read elsewhere, and may have to ask another broker

    def use_state(self, state: PartitionState) -> None:
        """Others are in sync than before, in the same epoch."""
        for attached in self.attached:
            attached.use_state(state)
        self.state = state
        if self._leadership is not None:
            self._joining = ()
            self._use_members()
            self._advance()

    def use_config(self, config: TopicConfig) -> None:
        """Go by other settings from now on."""
        self.config = config
        if self.log is not None:
            self.log.use_options(config.log)
        if self._leadership is not None:
            self._use_members()
            self._advance()  # with flush=commit no more, nobody waits for a sync

    # --- reading

    def read(
        self, offset: int, max_bytes: int, *, committed: bool, at_least_one: bool, warmed: bool = False
    ) -> FileSlice | None:
        """See `read_slice`; stops at the high watermark, or at the last stable offset when `committed`."""
        log = self.led if self.led is not None else self.leading()
        self.steps += 1
        limit = self.stable_offset if committed else self.high_watermark
        return read_slice(log, offset, limit, max_bytes, at_least_one, warmed)

    def watch(self, moved: Callable[[], None], *, as_replica: bool = False) -> None:
        """Call `moved` once, when a reader may find something else than before; for a replica, at any append."""
        if as_replica:
            self.waiters.add_follower(moved)
        else:
            self.waiters.add_reader(moved)

    def unwatch(self, moved: Callable[[], None]) -> None:
        self.waiters.remove_reader(moved)

    def aborted_in(self, offset: int, data: FileSlice) -> list[AbortedTransaction]:
        """See `reading.aborted_in`."""
        return aborted_in(self.leading(), offset, data, self.stable_offset)
