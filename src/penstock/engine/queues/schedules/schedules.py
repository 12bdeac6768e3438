"""The schedules of queues, on the broker that leads partition 0 of their topic: add, list, pause, resume, remove."""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from penstock.engine.coordination.attached_shards import AttachedShards
from penstock.engine.coordination.coordinators import Coordinators
from penstock.engine.coordination.outcome import Outcome, Token
from penstock.engine.coordination.registry import Attachment
from penstock.engine.coordination.shard import Shard
from penstock.engine.partition import Partition
from penstock.engine.queues.schedules.cron import Cron
from penstock.engine.queues.schedules.entries import ScheduleCodec
from penstock.engine.queues.schedules.firing import Firing, why_never
from penstock.engine.queues.schedules.machine import ScheduleMachine, Standing
from penstock.engine.queues.schedules.schedule import Definition, check_definition
from penstock.engine.queues.schedules.zones import Zones
from penstock.engine.topics import Topic, Topics
from penstock.errors import Code, PenstockError
from penstock.ports.clock import Clock
from penstock.records.record import Headers
from penstock.storage.attached_names import attached_name

KIND: Final = "cron"
SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {"cleanup.policy": "compact", "segment.bytes": str(4 << 20), "compression.type": "producer"}
)
SCHEDULES: Final = Attachment(KIND, ScheduleCodec(), SETTINGS)
AT: Final = 0
"""The partition of a topic beside which all schedules of its queues are."""
MOST_LISTED: Final = 30
"""At a time: the next times of each are looked for."""

Attach = Callable[[Topic, Attachment], Awaitable[None]]
Step = Callable[[ScheduleMachine, int, Token], Outcome]


class NewSchedule(NamedTuple):
    """As a client wants it; see `Definition`."""

    name: str
    cron: str
    zone: str
    value: bytes
    key: bytes | None = None
    headers: Headers = ()


class Schedules:
    """Of one broker. All verbs raise PenstockError, and need partition 0 of the topic to be led here.

    Args:
        attach: has a log be beside every partition of a topic.
    """

    def __init__(
        self, coordinators: Coordinators, topics: Topics, attach: Attach, clock: Clock, zones: Zones, firing: Firing
    ) -> None:
        self._topics = topics
        self._attach = attach
        self._clock = clock
        self._zones = zones
        self._firing = firing
        self.shards: AttachedShards[ScheduleMachine] = coordinators.register_attached(
            SCHEDULES,
            lambda partition: lambda now: ScheduleMachine(zones.cron),
            lambda machine: None,
            self._after_step,
        )

    def check_known(self, topic: Topic, group: str) -> None:
        """Whether somebody has made such a queue. Raises PenstockError UNKNOWN_QUEUE."""
        self._firing.check_known(topic, group)

    async def add(self, topic: Topic, group: str, wanted: NewSchedule) -> Standing:
        """Returns how it stands, once it is safe. Raises also INVALID_SCHEDULE, EXISTS, LIMIT_EXCEEDED."""
        partition = topic.partitions[AT]
        partition.leading()
        name, expression, zone, value, key, headers = wanted
        definition = Definition(group, name, Cron(expression).text, zone, key, value, headers, 0)
        check_definition(definition)
        _check_fits(topic, definition)
        await self._zones.check(zone)
        await self._attach(topic, SCHEDULES)

        def add(machine: ScheduleMachine, now: int, to: Token) -> Outcome:
            self._firing.check_known(topic, group)  # it may have been deleted meanwhile
            return machine.add(to, definition._replace(made_ms=self._clock.now_ms()))

        standing: Standing = await self._ask(partition, add)
        return standing

    async def pause(self, topic: Topic, group: str, name: str) -> Standing:
        """Plan nothing for it until it is resumed. Raises also NOT_FOUND, as all of these."""
        standing: Standing = await self._change(topic, lambda machine, now, to: machine.pause(to, group, name), name)
        return standing

    async def resume(self, topic: Topic, group: str, name: str) -> Standing:
        """Go on with the first time from now on."""
        standing: Standing = await self._change(
            topic, lambda machine, now, to: machine.resume(self._clock.now_ms(), to, group, name), name
        )
        return standing

    async def remove(self, topic: Topic, group: str, name: str) -> bool:
        """Returns whether a message of it is under way, which comes all the same."""
        is_under_way: bool = await self._change(topic, lambda machine, now, to: machine.remove(to, group, name), name)
        return is_under_way

    async def forget_with(self, partition: Partition, group: str) -> int:
        """Remove all schedules of a queue that are kept beside a partition; returns how many."""
        partition.leading()
        if partition.index != AT or not _is_attached(partition):
            return 0
        count: int = await self._ask(partition, lambda machine, now, to: machine.forget(to, group))
        return count

    async def list(self, topic: Topic, group: str, after: str, most: int) -> tuple[list[Standing], bool]:
        """Some of a queue's, by their names from the one behind `after` on, and whether there are more."""
        partition = topic.partitions[AT]
        partition.leading()
        if not _is_attached(partition):
            return [], False
        _, machine = await self._ready(partition)
        names = [name for name in machine.names(group) if name > after]
        return [machine.standing(group, name) for name in names[:most]], len(names) > most

    # --- inside

    async def _change(self, topic: Topic, step: Step, name: str) -> Any:
        partition = topic.partitions[AT]
        partition.leading()
        if not _is_attached(partition):
            raise PenstockError(
                Code.NOT_FOUND,
                f"there is no schedule {name[:60]!r}",
                help="'penstock queue schedule add' makes one",
            )
        return await self._ask(partition, step)

    async def _ask(self, partition: Partition, step: Step) -> Any:
        shard, _ = await self._ready(partition)
        return await shard.ask(step)

    async def _ready(self, partition: Partition) -> tuple[Shard[ScheduleMachine], ScheduleMachine]:
        """With all zones known that there are, so that steps may be taken; until the next await."""
        shard = self.shards.of(partition)
        while True:
            machine = await shard.machine()
            await self._zones.load(machine.zones)
            if shard.loaded is machine:
                return shard, machine

    def _after_step(self, shard: Shard[ScheduleMachine], machine: ScheduleMachine) -> None:
        self._firing.after_step(shard, machine)


def _is_attached(partition: Partition) -> bool:
    return any(each.topic == attached_name(partition.topic, KIND) for each in partition.attached)


def _check_fits(topic: Topic, definition: Definition) -> None:
    """Whether the topic takes such messages, as it is set now."""
    why = why_never(topic, definition)
    if why is not None:
        raise PenstockError(Code.INVALID_SCHEDULE, f"schedule {definition.name!r}: {why}")
