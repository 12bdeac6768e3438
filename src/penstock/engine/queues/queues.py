"""Queues as the doors use them, on the broker that leads the partition: lease, settle, and wait for more.

The ledger of a partition is a machine beside it (`machine.py`), attached when the first group reads the topic as a
queue. Leases are told at once; verdicts are told when they are as safe as the ledger's log makes them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from penstock.engine.coordination.attached_shards import AttachedShards
from penstock.engine.coordination.coordinators import Coordinators
from penstock.engine.coordination.outcome import Outcome, Reply, Token
from penstock.engine.coordination.registry import Attachment
from penstock.engine.coordination.shard import InTransaction, Shard
from penstock.engine.groups.group_config import GroupConfig
from penstock.engine.partition import Partition
from penstock.engine.queues.answers import Figures, Leased, Want, Whereabouts
from penstock.engine.queues.capacity import Capacity
from penstock.engine.queues.entries import LedgerCodec
from penstock.engine.queues.group import Group
from penstock.engine.queues.history import Event, read_history
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.rulebook import Rulebook
from penstock.engine.queues.saving import Saving
from penstock.engine.queues.settings import QueueRules
from penstock.engine.queues.sorting.indexer import Indexer
from penstock.engine.queues.sorting.later import Waiting
from penstock.engine.queues.sorting.standing import Standing, stand
from penstock.engine.queues.tally import Tally
from penstock.engine.queues.verdicts import Ack, By, Change
from penstock.engine.queues.window import Run
from penstock.engine.steady_clock import SteadyClock
from penstock.engine.topics import Topic, Topics
from penstock.errors import Code, PenstockError
from penstock.ports.randomness import Randomness
from penstock.tasks import Tasks
from penstock.turns import Turns

if TYPE_CHECKING:
    from penstock.engine.queues.burials import Burials

KIND: Final = "queue"
SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "segment.bytes": str(4 << 20),
        "compression.type": "producer",
    }
)
"""Of ledgers: nothing goes by age or size, but all that lies before a state that was saved (`saving.py`)."""
LEDGERS: Final = Attachment(KIND, LedgerCodec(), SETTINGS)
_LEASE_ID_BITS: Final = 63
_CHANCE_BITS: Final = 30

Attach = Callable[[Topic, Attachment], Awaitable[None]]
Wake = Callable[[], None]
Sight = tuple[int, int]
"""That nothing was forgotten in a partition since, and nobody else has led it."""


class Queues:
    """Of one broker. All verbs raise PenstockError; those about a partition need it to be led here.

    Args:
        attach: has the ledger be beside every partition of a topic.
        config_of: what is set for a group.
    """

    def __init__(
        self,
        coordinators: Coordinators,
        topics: Topics,
        randomness: Randomness,
        attach: Attach,
        saving: Saving,
        config_of: Callable[[str], GroupConfig],
        tally: Tally,
        clock: SteadyClock,
        tasks: Tasks,
        turns: Turns,
    ) -> None:
        self._topics = topics
        self._randomness = randomness
        self._attach = attach
        self._saving = saving
        self.rulebook = Rulebook(topics, config_of)
        self.tally = tally
        self._turns = turns
        self._indexer = Indexer(self.rulebook, clock, tasks)
        self.burials: Burials | None = None
        """Given by whoever makes both."""
        self._forgotten = 0
        """How often a share group was forgotten here, or was asked to be."""
        self._waiting: dict[tuple[Partition, str], dict[Wake, None]] = {}
        """Who waits, by the ledger and the group."""
        self.shards: AttachedShards[LedgerMachine] = coordinators.register_attached(
            LEDGERS, self._machines, LedgerMachine.floor, self._after_step, LedgerMachine.needed
        )

    # --- groups

    async def attach(self, topic: Topic) -> None:
        """Have a ledger beside every partition of a topic."""
        await self._attach(topic, LEDGERS)

    async def open(self, partition: Partition, group: str, start: int | None = None) -> None:
        """Have a group read a partition as a queue, from an offset on or from its first record; nothing if it does."""
        shard = await self._shard(partition)
        begin = partition.log_start if start is None else start
        await shard.ask(lambda machine, now, to: machine.open(now, to, group, begin))

    def sight(self, partition: Partition) -> Sight:
        """Taken before a share group's coordinator is asked where it begins."""
        return self._forgotten, partition.leader_epoch

    async def open_shared(self, partition: Partition, group: str, start: int, state_epoch: int, before: Sight) -> None:
        """Have a share group begin to read a partition; nothing if it does.

        Args:
            start, state_epoch: what its coordinator has said since `before`.

        Raises:
            PenstockError: COORDINATOR_LOADING if that may be void: the group was to be forgotten meanwhile.
        """
        shard = await self._shard(partition)

        def step(machine: LedgerMachine, now: int, to: Token) -> Outcome:
            if self.sight(partition) != before:
                raise PenstockError(
                    Code.COORDINATOR_LOADING, f"a group was forgotten in {partition.name} meanwhile; ask again"
                )
            return machine.open(now, to, group, start, state_epoch)

        await shard.ask(step)

    async def alter_shared(self, partition: Partition, group: str, start: int, state_epoch: int) -> None:
        """Have a share group begin anew, as its coordinator has decided; see `LedgerMachine.alter`."""
        shard = await self._shard(partition)
        self._forgotten += 1
        await shard.ask(lambda machine, now, to: machine.alter(now, to, group, start, state_epoch))

    async def forget_shared(self, partition: Partition, group: str, state_epoch: int) -> bool:
        """Forget a share group; whether it was known. See `LedgerMachine.forget`."""
        partition.leading()
        self._forgotten += 1
        if not self.has_ledger(partition):
            return False
        shard = await self._shard(partition)
        was_known: bool = await shard.ask(lambda machine, now, to: machine.forget(now, to, group, state_epoch))
        return was_known

    async def restart(self, partition: Partition, group: str, start: int) -> None:
        """Have a group begin anew at an offset."""
        shard = await self._shard(partition)
        await shard.ask(lambda machine, now, to: machine.restart(now, to, group, start))

    async def purge(self, partition: Partition, group: str, before: int | None = None) -> int:
        """Settle all messages below an offset, or all there are; returns how many were not settled."""
        shard = await self._opened(partition, group)
        end = partition.high_watermark if before is None else min(before, partition.high_watermark)
        count: int = await shard.ask(lambda machine, now, to: machine.purge(now, to, group, end))
        return count

    async def delete(self, partition: Partition, group: str) -> None:
        """Forget what a group has done."""
        shard = await self._shard(partition)
        await shard.ask(lambda machine, now, to: machine.delete(now, to, group))

    def rules(self, topic: str, group: str) -> QueueRules:
        """What is in force."""
        return self.rulebook.rules(topic, group)

    # --- messages

    async def lease(self, partition: Partition, want: Want, *, committed: bool = True) -> Leased:
        """Give a consumer what is ready, as soon as that is in the ledger's log, though it may not be synced yet.

        Where there are other replicas it waits for those in sync: a broker that leads no more, and does not know, would
        give out what was acknowledged to its successor.

        Args:
            committed: nothing of a transaction that is open or was aborted.
        """
        shard = await self._opened(partition, want.group)
        machine = await shard.machine()
        is_made = self.rulebook.is_known(partition.topic, want.group)
        if is_made:
            await self._indexer.ready(shard, machine, partition)
        if (group := machine.get(want.group)) is not None and group.window.start < partition.log_start:
            shard.step(lambda machine, now: machine.trim(partition.log_start))
        given = Leased(0, 0, ())

        def step(machine: LedgerMachine, now: int) -> Outcome:
            nonlocal given
            end = partition.stable_offset if committed else partition.high_watermark
            given, outcome = machine.lease(now, want, end)
            return outcome

        shard.step(step)
        while not given.ranges and shard.loaded is machine and machine.is_tired(want.group):
            await self._turns.next()
            shard.step(step)
        if is_made and shard.loaded is machine and machine.sorting.marks is None:
            await self._indexer.ready(shard, machine, partition)  # the group is where nobody has looked
            shard.step(step)
        await shard.turn_ended()  # what the step came to is appended then
        if given.ranges and shard.loaded is not machine:
            raise PenstockError(Code.COORDINATOR_NOT_AVAILABLE, f"the ledger of {partition.name} cannot be written now")
        if given.ranges and partition.is_shared:
            await shard.ask(lambda machine, now, to: Outcome(replies=(Reply(to, None),)))
        return given

    async def settle(self, partition: Partition, group: str, by: By, changes: Sequence[Change]) -> None:
        """Pass verdicts on what is leased: on all of it, or, with STALE_RECEIPT, on none. Returns when that is safe."""
        shard = await self._shard(partition)
        await shard.ask(lambda machine, now, to: machine.settle(now, to, group, by, changes))

    async def settle_in(
        self,
        partition: Partition,
        group: str,
        producer: InTransaction,
        acks: Sequence[Ack],
        check: Callable[[], None],
    ) -> None:
        """Acknowledge in a transaction of which the ledger is a part: all of it, or, with STALE_RECEIPT, nothing.

        Returns when that is safe.

        Args:
            check: raises PenstockError if the transaction has ended meanwhile; made when nothing can come in between.
        """
        shard = await self._opened(partition, group)

        def step(machine: LedgerMachine, now: int, to: Token) -> Outcome:
            check()
            return machine.settle_in(now, to, group, producer.producer_id, acks)

        await shard.ask(step, producer)

    def settle_soon(self, partition: Partition, group: str, by: By, changes: Sequence[Change]) -> None:
        """The same for verdicts nobody waits for; nothing where they are stale, or settled meanwhile."""

        def step(machine: LedgerMachine, now: int) -> Outcome:
            known = machine.get(group)
            start = 0 if known is None else known.window.start
            left = [each._replace(first=max(each.first, start)) for each in changes if each.last >= start]
            return Outcome(machine.settle(now, None, group, by, left).records)

        self.shards.of(partition).step(step)

    def skip_soon(self, partition: Partition, group: str, lease_id: int, behind: int, before: int) -> None:
        """There is nothing between two offsets, as was seen with a lease; see `LedgerMachine.skip`."""
        self.shards.of(partition).step(lambda machine, now: machine.skip(group, lease_id, behind, before))

    async def leave(self, partition: Partition, group: str, consumer: str, *, graceful: bool) -> int:
        """End all leases of a consumer; returns how many messages that were. A lost one has failed with them."""
        shard = await self._shard(partition)
        count: int = await shard.ask(
            lambda machine, now, to: machine.leave(now, to, group, consumer, graceful=graceful)
        )
        return count

    async def redrive(self, partition: Partition, queue: str, wanted: Sequence[Run]) -> int:
        """Have dead letters in a partition go back to the queue they are from; returns how many will."""
        group = partition.topic
        await self.open(partition, group)
        shard = await self._shard(partition)
        end = partition.stable_offset
        count: int = await shard.ask(lambda machine, now, to: machine.redrive(now, to, group, queue, wanted, end))
        return count

    # --- looking

    async def figures(self, partition: Partition, group: str) -> Figures:
        """How a group stands in a partition."""
        shard = await self._opened(partition, group)
        machine = await shard.machine()
        if self.rulebook.is_known(partition.topic, group):
            await self._indexer.ready(shard, machine, partition)
        return machine.figures(group, partition.stable_offset)

    async def whereabouts(self, partition: Partition, group: str, offset: int) -> Whereabouts:
        machine = await (await self._opened(partition, group)).machine()
        return machine.whereabouts(group, offset)

    async def standing(self, partition: Partition, group: str) -> Standing:
        """How a queue stands in the lanes of a partition; a group that was not made as one has none."""
        machine = await (await self._opened(partition, group)).machine()
        return await self.glance_closer(partition, machine.get(group))

    async def glance_closer(self, partition: Partition, group: Group | None) -> Standing:
        """The same for what is known already: see `glanced`."""
        machine = self.shards.of(partition).loaded
        if machine is None or group is None or not self.rulebook.is_known(partition.topic, group.name):
            return Standing()
        machine.sorting.sort_in(group, self.rules(partition.topic, group.name))
        return await stand(machine.sorting, group, partition, self._turns)

    def look_ahead(self, partition: Partition) -> None:
        """Have its records be looked at before anybody comes for them, where it is led here and read as a queue."""
        if partition.led is not None and self.has_ledger(partition) and self.shards.of(partition).loaded is not None:
            self._indexer.led(self.shards.of(partition), partition)

    def glanced(self, partition: Partition) -> list[Group]:
        """The groups of a partition that are known without waiting for anything."""
        machine = self.shards.of(partition).loaded if self.has_ledger(partition) else None
        return [] if machine is None else list(machine.groups)

    async def waiting(self, partition: Partition, group: str, after: Waiting, most: int) -> list[Waiting]:
        """What is due next, behind a moment and offset."""
        shard = await self._opened(partition, group)
        machine = await shard.machine()
        await self._indexer.ready(shard, machine, partition)
        known = machine.get(group)
        return [] if known is None else machine.sorting.waiting(known, after, most)

    async def is_waiting(self, partition: Partition, group: str, offset: int) -> bool:
        """Whether nobody has had or settled a message, given that it is not due yet; nothing waits in a share group."""
        machine = await (await self._opened(partition, group)).machine()
        known = machine.get(group)
        return (
            known is not None
            and self.rulebook.is_known(partition.topic, group)
            and machine.sorting.is_waiting(known, offset)
        )

    async def cancel(self, partition: Partition, group: str, wanted: Sequence[Waiting]) -> int:
        """Settle messages that are not due yet; returns how many of them were not."""
        shard = await self._opened(partition, group)
        count: int = await shard.ask(lambda machine, now, to: machine.cancel(now, to, group, wanted))
        return count

    async def deliver_now(self, partition: Partition, group: str, wanted: Sequence[Waiting]) -> int:
        """Have messages be ready that are not due yet; returns how many of them were not."""
        shard = await self._opened(partition, group)
        count: int = await shard.ask(lambda machine, now, to: machine.deliver_now(now, to, group, wanted))
        return count

    async def due_times(self, partition: Partition, group: str, first: int, last: int) -> Mapping[int, int]:
        """When those of a range are ready again that wait for it."""
        machine = await (await self._opened(partition, group)).machine()
        return machine.due_times(group, first, last)

    async def history(self, partition: Partition, group: str, offset: int, turns: Turns) -> list[Event]:
        """What became of a message, as far as the ledger's log has it."""
        shard = await self._opened(partition, group)
        known = (await shard.machine()).get(group)
        return [] if known is None else await read_history(shard.partition, known.number, offset, turns)

    async def ledger_of(self, partition: Partition) -> Partition:
        """What is attached to it, and has the ledger."""
        return (await self._shard(partition)).partition

    async def groups(self, partition: Partition) -> list[str]:
        """All that read a partition as a queue."""
        machine = await (await self._shard(partition)).machine()
        return [group.name for group in machine.groups]

    def glance(self, partition: Partition) -> list[Figures]:
        """How all queues stand in a partition that is led here, as far as that is known without waiting for anything.

        Those nobody has come for yet are there from its first record on.
        """
        topic = self._topics.get(partition.topic)
        made = topic.queues if topic is not None else ()
        start, end = partition.log_start, partition.stable_offset
        machine = None
        if self.has_ledger(partition):
            machine = self.shards.of(partition).loaded
            if machine is None:
                return []
        opened = [] if machine is None else [machine.figures(group.name, end) for group in machine.groups]
        known = {figures.group for figures in opened}
        ready = max(end - start, 0)
        return opened + [Figures(group, start, start, ready, 0, 0, 0, 0) for group in made if group not in known]

    # --- waiting

    def watch(self, partition: Partition, group: str, wake: Wake) -> None:
        """Call `wake` once, when something of a group may be ready that was not: also if there are new records."""
        self._waiting.setdefault((self._ledger(partition), group), {})[wake] = None
        partition.watch(wake)

    def unwatch(self, partition: Partition, group: str, wake: Wake) -> None:
        partition.unwatch(wake)
        key = (self._ledger(partition), group)
        waiting = self._waiting.get(key, {})
        waiting.pop(wake, None)
        if not waiting:
            self._waiting.pop(key, None)

    # --- inside

    async def _shard(self, partition: Partition) -> Shard[LedgerMachine]:
        partition.leading()
        if not self.has_ledger(partition):
            topic = self._topics.get(partition.topic)
            if topic is None:
                raise PenstockError(Code.UNKNOWN_TOPIC, f"topic {partition.topic!r} is unknown")
            await self.attach(topic)
        return self.shards.of(partition)

    @staticmethod
    def has_ledger(partition: Partition) -> bool:
        """Whether anybody reads the partition as a queue."""
        return any(each.topic.endswith(f"~{KIND}") for each in partition.attached)

    async def _opened(self, partition: Partition, group: str) -> Shard[LedgerMachine]:
        """The ledger; a queue of which it knows nothing yet, as nobody has come for it, is there."""
        shard = await self._shard(partition)
        if (await shard.machine()).get(group) is None and self.rulebook.is_known(partition.topic, group):
            await self.open(partition, group)
        return shard

    def _ledger(self, partition: Partition) -> Partition:
        return self.shards.of(partition).partition

    def _open_known(self, shard: Shard[LedgerMachine]) -> None:
        """Let the queues that were made of the topic be there, though nobody has come for them yet."""
        data = shard.partition.attached_to
        assert data is not None
        for group in self.rulebook.known(data.topic):
            shard.step(partial(_open, group, data.log_start))

    def _watch_size(self, shard: Shard[LedgerMachine]) -> None:
        """Have it be asked before anything more is published to the partition."""
        data = shard.partition.attached_to
        assert data is not None

        def overflow(group: str, excess: int) -> None:
            end = data.stable_offset
            shard.step(lambda machine, now: machine.overflow(now, group, excess, end))

        def opened(group: str) -> None:
            shard.step(partial(_open, group, data.log_start))

        data.room = Capacity(data, lambda: shard.loaded, self.rulebook, opened, overflow).check

    def _machines(self, ledger: Partition) -> Callable[[int], LedgerMachine]:
        data = ledger.attached_to
        assert data is not None
        topic = data.topic

        def make(now: int) -> LedgerMachine:
            return LedgerMachine(
                lambda group: self.rulebook.rules(topic, group),
                lambda: self.rulebook.durable(topic),
                self._new_lease_id,
                lambda: self._randomness.getrandbits(_CHANCE_BITS) / (1 << _CHANCE_BITS),
                self.tally,
                lambda: self.rulebook.known(topic),
            )

        return make

    def _new_lease_id(self) -> int:
        return self._randomness.getrandbits(_LEASE_ID_BITS) or 1

    def _after_step(self, shard: Shard[LedgerMachine], machine: LedgerMachine) -> None:
        """Begin to lead, if it is the first step; wake who waits; save the state, if it is time."""
        if not machine.has_begun:
            machine.has_begun = True
            data = shard.partition.attached_to
            assert data is not None
            end = max(data.end_of_epoch(machine.epoch).end_offset, 0)
            shard.step(lambda machine, now: machine.led(now, shard.partition.leader_epoch, end))
            self._open_known(shard)
            self._watch_size(shard)
            self._indexer.led(shard, data)
        if machine.stirred:
            stirred, machine.stirred = machine.stirred, set()
            for group in stirred:
                for wake in self._waiting.pop((shard.partition, group), {}):
                    wake()
        if self.burials is not None:
            self.burials.after_step(shard, machine)
        self._saving.after_step(shard)


def _open(group: str, start: int, machine: LedgerMachine, now: int) -> Outcome:
    return Outcome(machine.open(now, None, group, start).records)
