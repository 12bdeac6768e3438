"""Leading and following: what a replica needs on the disk first, then the role.

Whatever roles need there (a directory, the epoch on record, no epochs without records) is done for many partitions
together; then each takes its role at once.
"""

from contextlib import AsyncExitStack

from penstock.cluster.roles.handover import Handover
from penstock.cluster.roles.holdings import Holdings
from penstock.cluster.roles.removal import Removal
from penstock.cluster.roles.standing import Standing
from penstock.engine.partition import Partition
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.engine.replicas import OPENED_AT_ONCE
from penstock.engine.topics import Topic
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.storage.log.log import Log

log_ = get_logger("cluster")
_FAR = 100_000
"""Epochs that the decisions which an old store has forgotten cannot have come to."""


class Taking:
    """Args:
    accepts_older: the metadata store may be older than the logs here, and an operator has said so.
    """

    def __init__(
        self, holdings: Holdings, standing: Standing, handover: Handover, removal: Removal, *, accepts_older: bool
    ) -> None:
        self._holdings = holdings
        self._standing = standing
        self._handover = handover
        self._removal = removal
        self._accepts_older = accepts_older
        self._engine = holdings.engine
        self._me = holdings.me

    # --- logs

    async def open(self, topic: Topic, partitions: list[Partition]) -> None:
        """Logs for replicas that are new here, and for what is attached to them."""
        async with AsyncExitStack() as held:
            missing = []
            for partition in partitions:
                if _missing(partition):
                    await held.enter_async_context(self._holdings.lock_of(partition))  # its log may be being replaced
                    missing += _missing(partition)
            if missing:
                # Until there is a log: if a shortage is in the way, it may move on with its directory half made.
                owners = dict.fromkeys(each.attached_to or each for each in missing)
                self._holdings.leaving.update(owners)
                for holder in topic.with_attached:
                    await self.make(holder, [each for each in missing if each.topic_id == holder.topic_id])
                for owner in owners:
                    if not _missing(owner):
                        self._holdings.leaving.pop(owner, None)

    async def make(self, topic: Topic, missing: list[Partition]) -> None:
        """Empty logs; their partitions are locked."""
        if not missing:
            return
        try:
            made = await self._holdings.disk.run(
                self._engine.replicas.make,
                topic.name,
                topic.topic_id,
                [partition.index for partition in missing],
                topic.config,
                None,
                lambda: False,
            )
        except FileExistsError as error:
            for partition in missing:
                partition.offline = PenstockError(
                    Code.CORRUPT_LOG, f"{partition.name}: {error}", help="move that directory away, and start again"
                )
            log_.error("another topic's records are in the way", topic=topic.name, error=str(error))
            return
        for partition, recovered in zip(missing, made, strict=True):
            partition.hold(self._engine.replicas.open(partition, recovered), 0)

    # --- roles

    async def take_roles(self, moved: list[tuple[Partition, PartitionState]]) -> None:
        leading: list[tuple[Partition, PartitionState]] = []
        for partition, state in moved:
            with self._holdings.agenda.short_of_room():
                async with self._holdings.lock_of(partition):
                    if await self._prepare(partition, state):
                        leading.append((partition, state))
                    if partition.offline is not None and self._me in (*state.isr, *state.elr, state.leader):
                        await self._handover.resign(partition, state)
        for at in range(0, len(leading), OPENED_AT_ONCE):
            group = leading[at : at + OPENED_AT_ONCE]
            for partition, _ in group:
                self._handover.give(partition)  # unless there is room for the epoch
            epochs = [
                (each.log, state.leader_epoch)
                for partition, state in group
                for each in partition.together
                if each.led is None and each.log is not None
            ]
            with self._holdings.agenda.short_of_room():
                await self._engine.replicas.begin_epochs(epochs)
                self._lead(group)

    async def _prepare(self, partition: Partition, state: PartitionState) -> bool:
        """Take any role but a new leader's, which needs its epoch on record first: then whether that is to be taken."""
        is_leader = state.leader == self._me
        if partition.offline is not None:
            self._standing.stand_down(partition, state)
        elif is_leader and partition.led is not None and state.leader_epoch == partition.leader_epoch:
            partition.use_state(state)
            return partition.lacks_attached
        elif is_leader:
            log = self._standing.stand_down(partition, state)
            return log is not None and self._is_latest(partition, state) and await self._may_lead(partition, state)
        else:
            await self.become_follower(partition, state)
        return False

    # --- leading

    def _lead(self, group: list[tuple[Partition, PartitionState]]) -> None:
        """Lead partitions whose epochs are on record."""
        for partition, state in group:
            self._handover.keep(partition)
            if not self._is_latest(partition, state):
                continue  # taken away while the epoch was put on record; the news is here already
            if partition.led is not None:
                partition.lead_attached()
                continue
            partition.lead(state)
            self._engine.stats.leaderships_taken += 1
            log_.info("leads", partition=partition.name, epoch=state.leader_epoch, isr=list(state.isr))

    def _is_latest(self, partition: Partition, state: PartitionState) -> bool:
        """Whether a state that names us is still so, as far as is known, and about this life of ours.

        One from before this broker was admitted may be about an earlier life. The controller takes it back first; but
        we may have waited for the disk since we read it.
        """
        known = self._holdings.decided(partition)
        is_so = known is not None and (known.leader, known.leader_epoch) == (state.leader, state.leader_epoch)
        return is_so and self._holdings.image.admitted.get(self._me) == self._holdings.incarnation()

    async def _may_lead(self, partition: Partition, state: PartitionState) -> bool:
        logs = [each.log for each in partition.together if each.log is not None]
        latest = max(log.state.epochs.latest for log in logs)
        if self._accepts_older and not self._handover.has_raised_epoch(partition):
            await self._handover.raise_epoch(partition, state, max(latest, state.leader_epoch) + _FAR)
            return False
        if latest < state.leader_epoch:
            return True
        partition.offline = PenstockError(
            Code.CORRUPT_LOG,
            f"{partition.name} has records of epoch {latest}, the cluster says it is in epoch {state.leader_epoch}",
            help="the metadata store is older than this log: restore it from a later copy",
        )
        log_.error("partition is offline", partition=partition.name, error=str(partition.offline))
        return False

    # --- following

    async def become_follower(self, partition: Partition, state: PartitionState) -> None:
        if self._standing.is_followed(partition, state) and self._me in state.replicas:
            partition.use_state(state)
            self._follow_attached(partition)
            return
        was_led = partition.led is not None
        log = self._standing.stand_down(partition, state)
        if was_led:
            log_.info("leads no more", partition=partition.name, epoch=state.leader_epoch, leader=state.leader)
        if self._me not in state.replicas and partition.has_any_log:
            await self._removal.drop_if_safe(partition, state)
        if self._me not in state.replicas or log is None:
            return
        await self._forget_empty_epochs(partition)
        if state.leader != NOBODY:
            self._standing.follow(partition)
        elif self._me in state.last:
            await self._report(partition, log)

    async def _report(self, partition: Partition, log: Log) -> None:
        """How far this log goes; nothing of that, if it lacks what is attached to it and somebody else may have that.

        Where it is there, it has all that was acknowledged in it as surely as the data does: both are synced first.
        """
        if len(partition.state.last) > 1 and any(attached.offline is not None for attached in partition.attached):
            await self._handover.report_damaged(partition)
        else:
            await self._handover.report(partition, log)

    def _follow_attached(self, partition: Partition) -> None:
        """What was attached since this broker began to follow."""
        for attached in partition.attached:
            if attached.log is not None and not attached.log.follows:
                attached.follow(partition.state)
        self._standing.follow(partition)

    async def _forget_empty_epochs(self, partition: Partition) -> None:
        for each in partition.together:
            if each.log is not None:
                await self._engine.replicas.forget_empty_epochs(each.log)

    async def follow_again(self) -> None:
        """Brokers have come or gone: follow what could not be followed, and those that listen elsewhere now."""
        for topic in self._engine.topics:
            for partition in topic.partitions:
                if partition.led is not None:
                    continue
                if self._me not in partition.state.replicas and partition.has_any_log:
                    async with self._holdings.lock_of(partition):
                        await self._removal.drop_if_safe(partition, partition.state)
                is_here = self._me in partition.state.replicas
                if not is_here or partition.log is None or partition.offline is not None:
                    continue
                if self._standing.must_follow(partition):
                    await self._follow_late(partition)
                if partition.state.leader == NOBODY and self._me in partition.state.last:
                    await self._report(partition, partition.log)

    async def _follow_late(self, partition: Partition) -> None:
        with self._holdings.agenda.short_of_room():
            async with self._holdings.lock_of(partition):
                if partition.log is not None and partition.led is None:
                    await self._forget_empty_epochs(partition)
                    self._standing.follow(partition)


def _missing(partition: Partition) -> list[Partition]:
    """This one and what is attached to it, as far as there is no log of it and nothing keeps one from being made."""
    return [each for each in partition.together if each.log is None and each.offline is None]
