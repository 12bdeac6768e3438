"""The in-sync sets of what this broker leads: who lags is taken out, who has caught up is let in, by compare-and-swap.

Whoever is let in counts from the moment the change is sent: it may take effect although no answer comes. That stays so
until the partition's key has a later revision, from which on the change could not be made any more. So after an
unknown outcome the next attempt writes in any case, be it the same set again.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from penstock.cluster import keys
from penstock.cluster.image import Image
from penstock.engine.leadership import Follower, Leadership
from penstock.engine.partition import Partition
from penstock.engine.partition_events import PartitionSubscriber
from penstock.engine.partition_state import PartitionState
from penstock.errors import PenstockError
from penstock.observe.logs import get_logger
from penstock.observe.stats import Stats
from penstock.ports.clock import Clock
from penstock.ports.metadata import MetadataConflict, MetadataStore, MetadataUnavailable

log_ = get_logger("replication")
_AT_ONCE = 16
_PAUSE_S = 0.2
_NOBODY_FOLLOWS = Leadership(-1, 0)


class InSync(PartitionSubscriber):
    """Args:
    led: the partitions this broker leads that have other replicas.
    refresh: has the image brought up to date.
    changed: told that a partition has another in-sync set.
    lag_s: how long a follower may be behind before it is taken out.
    """

    def __init__(
        self,
        store: MetadataStore,
        image: Image,
        clock: Clock,
        stats: Stats,
        led: Callable[[], Iterable[Partition]],
        refresh: Callable[[], None],
        changed: Callable[[], None],
        full: Callable[[Partition], None],
        lag_s: float = 10.0,
        look_s: float = 1.0,
    ) -> None:
        self._store = store
        self._image = image
        self._clock = clock
        self._stats = stats
        self._led = led
        self._refresh = refresh
        self._changed = changed
        self._full = full
        self._lag_s = lag_s
        self._look_s = look_s
        self._wanted: dict[Partition, None] = {}
        self._unknown: set[Partition] = set()
        """Those with a change whose outcome is not known."""
        self._wake = asyncio.Event()
        self.is_isolated = False
        """Whether nothing that this broker leads can be committed: what it says about leaders is of no use."""

    def look_at(self, partition: Partition) -> None:
        """A follower could be let in: do not wait for the round."""
        self._wanted[partition] = None
        self._wake.set()

    def lost(self, partition: Partition) -> None:
        """See `PartitionSubscriber`."""
        self._unknown.discard(partition)
        self._wanted.pop(partition, None)

    async def run(self) -> None:
        next_look = self._clock.monotonic()
        while True:
            now = self._clock.monotonic()
            if now >= next_look:
                next_look = now + self._look_s
                led = list(self._led())
                for partition in led:
                    was_cut_off = partition.is_cut_off
                    partition.look_again()
                    if partition.is_cut_off != was_cut_off:
                        self._changed()
                    if partition.is_cut_off and not was_cut_off:
                        log_.warning("cut off from followers and store; sends clients away", partition=partition.name)
                    self._wanted[partition] = None
                    if any(each.led is not None and each.led.out_of_room for each in partition.together):
                        self._full(partition)
                self.is_isolated = bool(led) and all(partition.is_cut_off for partition in led)
            wanted = [partition for partition in self._wanted if self._is_due(partition)]
            self._wanted = {}
            for at in range(0, len(wanted), _AT_ONCE):
                await asyncio.gather(*(self._tend(partition) for partition in wanted[at : at + _AT_ONCE]))
            try:
                async with asyncio.timeout(max(0.0, next_look - self._clock.monotonic())):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    def _is_due(self, partition: Partition) -> bool:
        try:
            return self._change(partition) is not None
        except PenstockError:
            return False  # led no more

    async def _tend(self, partition: Partition) -> None:
        try:
            change = self._change(partition)
        except PenstockError:
            return
        if change is None:
            return
        state, epoch = partition.state, partition.leader_epoch
        expect = {keys.partition_key(partition.topic_id, partition.index): state.revision}
        joining = [member for member in change.isr if member not in state.isr]
        for member in joining:
            expect[keys.broker_key(member)] = self._image.brokers[member].revision
        if joining:
            partition.let_join(joining)
        key = keys.partition_key(partition.topic_id, partition.index)
        try:
            revision = await self._store.transact(expect=expect, put={key: change.encode()})
        except MetadataUnavailable as error:
            self._unknown.add(partition)
            log_.limited("isr").warning("in-sync set not changed for now", partition=partition.name, error=str(error))
            await asyncio.sleep(_PAUSE_S)
            return
        except MetadataConflict as error:
            log_.info("in-sync set was changed by somebody else", partition=partition.name, error=str(error))
            if error.key != key and joining:
                self._unknown.add(partition)  # written again, without the one that has gone
            self._refresh()
            return
        self._unknown.discard(partition)
        self._stats.isr_changes += 1
        log_.info(
            "in-sync set", partition=partition.name, isr=list(change.isr), elr=list(change.elr), was=list(state.isr)
        )
        if partition.led is not None and partition.leader_epoch == epoch and partition.state.revision < revision:
            partition.use_state(replace(change, revision=revision))
            self._changed()

    def _change(self, partition: Partition) -> PartitionState | None:
        """The state that should be, if it is another. Raises PenstockError NOT_LEADER."""
        state, now = partition.state, self._clock.monotonic()
        lagging: list[int] = []
        lacking: list[int] = []
        joinable: list[set[int]] = []
        for leadership, committed in self._counted(partition):
            lagging += leadership.lagging(state.isr, committed, self._lag_s, now)
            lacking += leadership.lacking(state.isr, committed)
            followers = leadership.joinable(state.isr, committed)
            joinable.append({each.broker_id for each in followers if self._may_join(each, now)})
        members = [member for member in state.isr if member not in lagging]
        members += sorted(set.intersection(*joinable))
        change = state.with_isr(members, partition.config.least_in_sync(state.width))
        change = change.without(lacking)
        if change == state and partition not in self._unknown:
            return None
        return change

    def _counted(self, partition: Partition) -> list[tuple[Leadership, int]]:
        """All that a follower must have to be in sync, and how far each is committed: what is attached, too.

        Raises PenstockError NOT_LEADER.
        """
        counted = [(partition.leadership, partition.high_watermark)]
        for attached in partition.attached:
            if attached.led is not None:
                counted.append((attached.leadership, attached.high_watermark))
            else:  # this broker cannot use its own, so nobody can be as far as that
                counted.append((_NOBODY_FOLLOWS, 0))
        return counted

    def _may_join(self, follower: Follower, now: float) -> bool:
        if now - follower.fetched_at > self._lag_s:
            return False  # it has what is committed, and asks no more: it would be taken out again at once
        broker = self._image.brokers.get(follower.broker_id)
        return (
            broker is not None
            and broker.incarnation == follower.incarnation
            and self._image.is_live(follower.broker_id)
            and not broker.leaving
        )
