"""What this broker says of its replicas in the store: that others should lead, how far a log goes, what epoch is over.

Each is one compare-and-swap. Who loses it looks again, when the news of what was decided instead has come.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace

from penstock.cluster import keys
from penstock.cluster.image import End
from penstock.cluster.roles.agenda import PAUSE_S
from penstock.cluster.roles.holdings import Holdings
from penstock.engine.partition import Partition
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.observe.logs import get_logger
from penstock.ports.metadata import MetadataConflict, MetadataUnavailable
from penstock.storage.log.log import Log

log_ = get_logger("cluster")
_GIVEN_FOR_S = 10.0
"""A partition that was given away for want of room is not given away again so soon: others may have no more of it."""


class Handover:
    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._me = holdings.me
        self._giving: dict[Partition, None] = {}
        self._given_at: dict[Partition, float] = {}
        self._reported: dict[Partition, End] = {}
        self._resigned: dict[Partition, int] = {}
        """The epoch that began when this broker gave up a replica it could not use."""
        self._raised: set[Partition] = set()
        """Whose epoch is later than any that an old store has forgotten."""

    def forget(self, partition: Partition) -> None:
        """It is gone, with its topic."""
        self._reported.pop(partition, None)
        self._given_at.pop(partition, None)
        self._raised.discard(partition)

    # --- for want of room

    def give(self, partition: Partition) -> None:
        """This broker has no room for it: another one should lead, and nobody wait for this one; see `give_all`."""
        self._giving[partition] = None

    def keep(self, partition: Partition) -> None:
        """There is room after all."""
        self._giving.pop(partition, None)

    async def give_all(self) -> None:
        while self._giving:
            partition = self._giving.popitem()[0]
            async with self._holdings.lock_of(partition):
                await self._give(partition)

    async def _give(self, partition: Partition) -> None:
        """Let another broker in sync lead; out of those in sync, if enough of them stay."""
        state = self._holdings.decided(partition)
        if partition.log is None or state is None or self._me not in state.isr:
            return
        now = self._holdings.engine.clock.monotonic()
        if now - self._given_at.get(partition, -_GIVEN_FOR_S) < _GIVEN_FOR_S:
            return
        for each in partition.together:
            if each.log is not None:
                each.log.out_of_room = False
        live = self._holdings.image.live()
        others = [each for each in state.isr if each in live and each != self._me and not live[each].leaving]
        least = partition.config.least_in_sync(state.width)
        after = state.led_by(others[0]) if others and state.leader == self._me else state
        if state.leader != self._me and len(state.isr) > least:
            after = state.with_isr(set(state.isr) - {self._me}, least)
        if after is state:
            return
        log_.limited("no room").error(
            "no room for a partition", partition=partition.name, leader=after.leader, isr=list(after.isr)
        )
        with suppress(MetadataConflict, MetadataUnavailable):  # tried again when the next append finds no room
            await self._decide(partition, state, after)
            self._given_at[partition] = now

    # --- for damage

    async def resign(self, partition: Partition, state: PartitionState) -> bool:
        """This replica cannot be used: say so, that others lead. Whether that is done.

        In the epoch that begins with it, no leader has heard how far this replica was; so none takes it for in sync.
        """
        resigned = state.without({self._me}).led_by(NOBODY if state.leader == self._me else state.leader)
        try:
            await self._decide(partition, state, resigned)
            self._resigned[partition] = resigned.leader_epoch
            log_.error("gives a partition up that it cannot use", partition=partition.name)
        except (MetadataConflict, MetadataUnavailable) as error:
            log_.limited("resign").warning("not given up yet", partition=partition.name, error=str(error))
            self._holdings.agenda.add_again(keys.partition_key(partition.topic_id, partition.index))
            return False
        return True

    def has_resigned(self, partition: Partition, state: PartitionState) -> bool:
        """Whether the epoch of `state` began when this broker gave the replica up, or later."""
        return self._resigned.get(partition, state.leader_epoch + 1) <= state.leader_epoch

    def made_anew(self, partition: Partition) -> None:
        """The replica that was given up is another one now."""
        self._resigned.pop(partition, None)

    # --- how far a log goes

    async def report(self, partition: Partition, log: Log) -> None:
        """Nobody clean is left: say how far this log goes."""
        beside = [attached.log for attached in partition.attached if attached.log is not None]
        end = End(
            self._holdings.incarnation(),
            _last_epoch(log),
            log.end_offset,
            sum(_last_epoch(each) for each in beside if each.end_offset),
            sum(each.end_offset for each in beside),
        )
        await self._tell_end(partition, end)

    async def report_damaged(self, partition: Partition) -> None:
        await self._tell_end(partition, End.damaged(self._holdings.incarnation()))

    async def _tell_end(self, partition: Partition, end: End) -> None:
        if self._reported.get(partition) == end:
            return
        key = keys.end_key(partition.topic_id, partition.index, self._me)
        try:
            await self._holdings.store.transact(put={key: end.encode()})
            self._reported[partition] = end
        except MetadataUnavailable as error:
            log_.limited("report").warning("end of a log not reported", partition=partition.name, error=str(error))
            self._holdings.agenda.add_everything()
            await asyncio.sleep(PAUSE_S)

    # --- epochs

    def has_raised_epoch(self, partition: Partition) -> bool:
        return partition in self._raised

    async def raise_epoch(self, partition: Partition, state: PartitionState, epoch: int) -> None:
        """An operator has taken an older store for good: the epochs that any log has seen are over as well.

        Which those are only the brokers know that led in them, and they may come later. If one of them had led in an
        epoch by the number of this one, their records would be taken for the same.
        """
        log_.warning("goes on in a later epoch than the store's", partition=partition.name, epoch=epoch)
        try:
            await self._decide(partition, state, replace(state, leader_epoch=epoch))
            self._raised.add(partition)
        except (MetadataConflict, MetadataUnavailable):
            self._holdings.agenda.add_again(keys.partition_key(partition.topic_id, partition.index))

    async def _decide(self, partition: Partition, before: PartitionState, after: PartitionState) -> None:
        key = keys.partition_key(partition.topic_id, partition.index)
        await self._holdings.store.transact(expect={key: before.revision}, put={key: after.encode()})


def _last_epoch(log: Log) -> int:
    return log.state.epochs.at(log.end_offset - 1)
