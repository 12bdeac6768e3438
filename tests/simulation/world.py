"""One run of the simulation: a cluster, workloads, a nemesis, recovery, final reads, checks; all of it by one seed."""

import asyncio
import gc
import hashlib
import logging
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import orjson

from penstock.cluster import keys
from penstock.cluster.image import CORDON, DRAINED, BrokerRecord
from penstock.engine.partition import Partition
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.errors import Code, PenstockError, StartupError
from penstock.ports.metadata import Change
from penstock.storage.attached_names import split_name
from penstock.testing.virtual_clock import DeadlockError, run_virtual
from tests.simulation.attached import AttachedWorkload
from tests.simulation.cluster import SimulatedBroker, SimulatedCluster
from tests.simulation.groups import GroupsWorkload
from tests.simulation.log import LogWorkload
from tests.simulation.moves import Moves
from tests.simulation.nemesis import Nemesis
from tests.simulation.operator_acts import ACTS
from tests.simulation.planted import PLANTED
from tests.simulation.planted_attached import PLANTED_ATTACHED
from tests.simulation.planted_coordination import PLANTED_COORDINATION
from tests.simulation.planted_operations import PLANTED_OPERATIONS
from tests.simulation.planted_queues import PLANTED_QUEUES
from tests.simulation.planted_schedules import PLANTED_SCHEDULES
from tests.simulation.planted_transformers import PLANTED_TRANSFORMERS
from tests.simulation.queues import QueueWorkload
from tests.simulation.scenarios import SCENARIOS, WHOLE, Scenario
from tests.simulation.schedules import ScheduleWorkload
from tests.simulation.transactions import TransactionsWorkload
from tests.simulation.transformers import TransformWorkload
from tests.simulation.workload import WorkloadFactory

BUGS = (
    PLANTED
    | PLANTED_COORDINATION
    | PLANTED_OPERATIONS
    | PLANTED_ATTACHED
    | PLANTED_QUEUES
    | PLANTED_SCHEDULES
    | PLANTED_TRANSFORMERS
)
_LOG: Sequence[WorkloadFactory] = (LogWorkload,)
_ATTACHED_FROM = 250
_ATTACHED: Sequence[WorkloadFactory] = (AttachedWorkload,)
_QUEUES: Sequence[WorkloadFactory] = (QueueWorkload,)
_TRANSFORMERS: Sequence[WorkloadFactory] = (TransformWorkload,)
_SCHEDULES: Sequence[WorkloadFactory] = (ScheduleWorkload,)
_COORDINATION: Sequence[WorkloadFactory] = (TransactionsWorkload, GroupsWorkload)
RECOVERY_S = 30.0
_OPERATED = 0.5
_FOURTH = 0.8
_LOOK_S = 0.25


@dataclass(slots=True)
class Report:
    """What a run came to. `digest` is the same for the same seed, whatever the machine."""

    seed: int
    planted: str | None
    violations: list[str] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    steps: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    digest: str = ""
    trace: list[str] = field(default_factory=list)

    @property
    def replay(self) -> str:
        planted = f" --planted {self.planted}" if self.planted else ""
        return f"python -m tests.simulation{planted} {self.seed}"


class World:
    """What workloads and the nemesis see.

    Attributes:
        kinds: of faults and an operator's acts, if the run is narrowed to them.
        is_operated: an operator is at work too, more often than not with a fourth broker.
        is_over: the nemesis has stopped and everything is healed: begin nothing new.
        random: for what belongs to no workload.
    """

    def __init__(self, seed: int, scenario: Scenario = WHOLE) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.kinds = scenario.kinds
        self.is_operated = self.random.random() < _OPERATED
        if self.kinds:
            self.is_operated = any(kind in ACTS for kind in self.kinds)
        brokers = 4 if self.is_operated and self.random.random() < _FOURTH else 3
        self.cluster = SimulatedCluster(
            self.random.getrandbits(32), brokers=brokers, disk_delays_s=scenario.disk_delays_s
        )
        self.loop = self.cluster.loop
        self.is_over = False
        self.violations: list[str] = []
        self.trace: list[str] = []
        self._moves = Moves(self._is_live)
        self._in_sync: dict[str, tuple[int, ...]] = {}
        self._promised: dict[tuple[str, int], int] = {}
        self.cluster.etcd.state.on_change = self._on_change
        self.cluster.on_crash = self._on_crash
        self._allowed_crashes: set[int] = set()
        self._last_crash: dict[int, BaseException] = {}
        self._waiting: list[asyncio.Future[None]] = []

    # --- keeping a record

    def note(self, text: str) -> None:
        """Part of the trace, and of the digest: the same for the same seed."""
        self.trace.append(f"{self.loop.time():9.4f} {text}")

    def promised(self, place: tuple[str, int], end: int) -> None:
        """A client knows that everything below an offset is there to stay."""
        self._promised[place] = max(end, self._promised.get(place, 0))

    def acknowledged(self) -> None:
        """A client has just been promised something."""
        waiting, self._waiting = self._waiting, []
        for moment in waiting:
            if not moment.done():
                moment.set_result(None)

    async def next_promise(self, limit_s: float) -> None:
        """Wait for the moment at which a fault hurts most."""
        moment: asyncio.Future[None] = self.loop.create_future()
        self._waiting.append(moment)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await moment

    def violate(self, text: str) -> None:
        """A promise was broken just now."""
        self.note(f"VIOLATION {text}")
        self.violations.append(f"{text} (at {self.loop.time():.3f} s)")

    def _on_change(self, changes: list[Change]) -> None:
        for change in changes:
            if change.key.startswith(keys.PARTITIONS) and change.value is not None:
                state = PartitionState.decode(change.value, change.revision)
                index = keys.read_partition_key(change.key)[1]
                parts = [f"isr={list(state.isr)}", f"leader={state.leader}", f"epoch={state.leader_epoch}"]
                parts += [f"elr={list(state.elr)}"] if state.elr else []
                parts += [f"last={list(state.last)}"] if state.last else []
                parts += [f"of={list(state.replicas)} target={list(state.target)}"] if state.target else []
                wrong = self._moves.partition_changed(change.key, state)
                if wrong is not None:
                    self.violate(wrong)
                self._check_joined(change.key, state)
                self.note(
                    f"state {change.key[len(keys.PARTITIONS) :][:4]}-{index} r{change.revision} {' '.join(parts)}"
                )
            elif change.key.startswith((keys.BROKERS, keys.CONTROLLER, keys.ADMITTED)):
                value = "gone" if change.value is None else change.value.decode()[:80]
                self.note(f"etcd {change.key} {value}")
                if change.key.startswith((keys.BROKERS, keys.ADMITTED)):
                    self._moves.broker_changed(int(change.key.rpartition("/")[2]), change.revision)

    def _is_live(self, broker_id: int) -> bool:
        """By the store's own word."""
        there, admitted = map(self.cluster.etcd.state.get, (keys.broker_key(broker_id), keys.admitted_key(broker_id)))
        if there is None or admitted is None:
            return False
        return BrokerRecord.decode(there.value, 0).incarnation == orjson.loads(admitted.value)["incarnation"]

    def _check_joined(self, key: str, state: PartitionState) -> None:
        """Who comes into sync has all that was acknowledged."""
        before = self._in_sync.get(key, state.isr)
        self._in_sync[key] = state.isr
        topic_id, index = keys.read_partition_key(key)
        for node_id in [member for member in state.isr if member not in before]:
            broker = self.cluster.lives.get(node_id)
            topics = [topic for topic in broker.engine.topics if topic.topic_id == topic_id] if broker else []
            if not topics or index >= len(topics[0].partitions):
                continue
            for partition in topics[0].partitions[index].together:
                if partition.log is None:
                    continue  # it is being replaced, or of no use: then it serves nobody, and is given up
                end, least = partition.log.end_offset, self._promised.get((partition.topic, index), 0)
                if end < least:
                    self.violate(
                        f"{partition.name}: broker {node_id} is in sync and ends at {end}, {least} are promised"
                    )

    def _on_crash(self, node_id: int, error: BaseException) -> None:
        self._last_crash[node_id] = error
        frames = traceback.extract_tb(error.__traceback__)
        where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
        self.note(f"crash {node_id} {error!r} in {where}")

    # --- brokers

    def allow_crash(self, node_id: int) -> None:
        """A fault of the disk may make this broker stop by itself from now on."""
        self._allowed_crashes.add(node_id)

    def is_spoiled(self, node_id: int, error: PenstockError) -> bool:
        """Whether a broker refuses to use a partition because of a fault of its disk."""
        return node_id in self._allowed_crashes and error.code is Code.CORRUPT_LOG

    def unexpected_crashes(self) -> list[str]:
        """Each once."""
        crashes = [
            f"broker {node_id} stopped by itself: {error!r}"
            for node_id, error in self.cluster.crashes
            if not (node_id in self._allowed_crashes and isinstance(error, OSError | PenstockError | StartupError))
        ]
        return list(dict.fromkeys(crashes))

    def start(self, node_id: int) -> None:
        """Start a broker if it is not running; with a new disk if a spoiled one does not let it start."""
        cluster = self.cluster
        if node_id in cluster.processes:
            return
        self.note(f"start {node_id}")
        last_crash = self._last_crash.pop(node_id, None)
        if node_id in self._allowed_crashes and isinstance(last_crash, StartupError):
            self.replace_disk(node_id)
        cluster.start(node_id)

    def replace_disk(self, node_id: int) -> None:
        """Nothing is left of what the broker had."""
        self.note(f"new disk {node_id}")
        self.cluster.kill(node_id, power_cut=True)
        self.cluster.disks[node_id] = self.cluster.new_disk()

    def brokers(self) -> list[SimulatedBroker]:
        """Those that serve clients now."""
        cluster = self.cluster
        return [cluster.lives[node_id] for node_id in cluster.ids if cluster.is_up(node_id)]

    async def until(self, condition: Callable[[], object], limit_s: float) -> bool:
        """Whether it came true in time."""
        deadline = self.loop.time() + limit_s
        while not condition():
            if self.loop.time() >= deadline:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    def lacking(self) -> list[str]:
        """What keeps the cluster from being whole: every broker up, every partition led, all replicas in sync."""
        down = [f"broker {node_id} is down" for node_id in self.cluster.ids if not self.cluster.is_up(node_id)]
        if down:
            return down
        lacking = []
        prefix = keys.PARTITIONS
        drained = self._drained()
        holders: dict[tuple[str, int], tuple[int, ...]] = {}
        names = {topic.topic_id: topic.name for broker in self.brokers() for topic in broker.engine.topics}
        for entry in self.cluster.etcd.state.snapshot(prefix).entries:
            topic_id, index = keys.read_partition_key(entry.key)
            state = PartitionState.decode(entry.value, entry.revision)
            if topic_id not in names:
                continue
            name = f"{names[topic_id]}-{index}"
            holders[names[topic_id], index] = state.replicas
            if state.target:
                lacking.append(f"{name} moves to {list(state.target)}, isr {list(state.isr)}")
            elif state.leader in drained and not drained.issuperset(state.isr):
                lacking.append(f"{name} is led by broker {state.leader}, which is drained")
            elif state.leader == NOBODY or set(state.isr) != set(state.replicas):
                lacking.append(f"{name} has leader {state.leader}, isr {list(state.isr)} of {list(state.replicas)}")
            else:
                lacking += self._unsettled(name, state, names[topic_id], index)
        return lacking or [*self._strays(holders)]

    def _drained(self) -> set[int]:
        entries = self.cluster.etcd.state.snapshot(keys.CONFIGS).entries
        return {
            int(entry.key.removeprefix(keys.CONFIGS))
            for entry in entries
            if orjson.loads(entry.value).get(CORDON) == DRAINED
        }

    def _strays(self, holders: Mapping[tuple[str, int], tuple[int, ...]]) -> Iterable[str]:
        """Files of partitions that are not held here, or not any more; what was set aside among them."""
        for node_id in self.cluster.ids:
            directories = {
                path.split("/logs/")[1].rpartition("/")[0]
                for path in self.cluster.disks[node_id].files()
                if "/logs/" in path
            }
            for directory in sorted(directories):
                name, _, index = directory.partition("/")
                topic = (split_name(name) or (name, ""))[0]
                if not index.isdigit() or node_id not in holders.get((topic, int(index)), (node_id,)):
                    yield f"broker {node_id} has files in {directory}"

    def holders(self, topic: str, index: int) -> tuple[int, ...]:
        """Who holds a partition."""
        topic_id = next(found.topic_id for broker in self.brokers() if (found := broker.engine.topics.get(topic)))
        entry = self.cluster.etcd.state.get(keys.partition_key(topic_id, index))
        assert entry is not None, f"{topic}-{index} is gone"
        return PartitionState.decode(entry.value, entry.revision).replicas

    def _unsettled(self, name: str, state: PartitionState, topic: str, index: int) -> Iterable[str]:
        leader = self.partition(state.leader, topic, index)
        for at in range(len(leader.together) if leader is not None else 1):
            yield from self._unsettled_at(at, name, state, topic, index)

    def _unsettled_at(self, at: int, name: str, state: PartitionState, topic: str, index: int) -> Iterable[str]:
        """Of a partition, or of the log attached to it that comes so late."""
        replicas: list[Partition] = []
        for node_id in state.replicas:
            data = self.partition(node_id, topic, index)
            partition = data.together[at] if data is not None and at < len(data.together) else None
            if partition is None or partition.log is None:
                yield f"{name} has no log on broker {node_id}" + (
                    f": {partition.offline}" if partition is not None and partition.offline is not None else ""
                )
                return
            if partition.log.damage is not None:
                yield f"{name} is damaged on broker {node_id}: {partition.log.damage}"
                return
            replicas.append(partition)
        ends = {partition.log.visible_end for partition in replicas if partition.log is not None}
        led = self.partition(state.leader, topic, index)
        leader = led.together[at] if led is not None else None
        if leader is None or leader.led is None:
            yield f"{name} is not led by broker {state.leader} yet"
        elif len(ends) > 1 or leader.high_watermark not in ends:
            yield f"{name} ends at {sorted(ends)}, high watermark {leader.high_watermark}"

    def partition(self, node_id: int, topic: str, index: int) -> Partition | None:
        broker = self.cluster.lives.get(node_id)
        found = broker.engine.topics.get(topic) if broker is not None else None
        return found.partitions[index] if found is not None and index < len(found.partitions) else None


async def _play(seed: int, scenario: Scenario, report: Report) -> None:
    world = World(seed, scenario)
    report.trace = world.trace
    for node_id in world.cluster.ids:
        world.start(node_id)
    if not await world.until(lambda: not world.lacking(), RECOVERY_S):
        report.violations.append(f"never came up: {'; '.join(world.lacking())}")
        return
    factories = scenario.workloads or workloads_of(seed)
    workloads = [factory(world, Random(world.random.getrandbits(64))) for factory in factories]
    for workload in workloads:
        await workload.set_up()
    clients = [asyncio.create_task(client) for workload in workloads for client in workload.clients()]
    nemesis = Nemesis(world, Random(world.random.getrandbits(64)))
    await nemesis.run()
    report.faults = sorted(nemesis.kinds)
    for workload in workloads:
        report.counters.update({f"{name} during faults": n for name, n in workload.counters().items()})
    world.note("healed")
    world.is_over = True
    if not world.violations:
        await _recover(world, clients)
    if not world.violations:
        for workload in workloads:
            await workload.finish()
    for workload in workloads:
        world.violations += workload.check()
        report.counters.update(workload.counters())
    report.counters["crashes"] = len(world.cluster.crashes)
    report.violations += world.unexpected_crashes() + world.violations
    for task in clients:
        task.cancel()
    for context in world.loop.failures:
        report.violations.append(f"nobody handled {context.get('exception')!r}: {context.get('message')}")
    report.steps, report.virtual_s = world.loop.steps, world.loop.time()


async def _recover(world: World, clients: "list[asyncio.Task[None]]") -> None:
    def is_recovered() -> bool:
        return all(task.done() for task in clients) and not world.lacking()

    async def restart() -> None:
        while not is_recovered():
            for node_id in world.cluster.ids:
                world.start(node_id)
            await asyncio.sleep(_LOOK_S)

    restarting = asyncio.create_task(restart())
    recovered = await world.until(is_recovered, RECOVERY_S)
    restarting.cancel()
    for task in clients:
        error = task.exception() if task.done() and not task.cancelled() else None
        if error is not None:
            world.violate(f"a client failed: {error!r}")
    if not recovered:
        late = sum(not task.done() for task in clients)
        world.violate(f"not whole {RECOVERY_S:.0f} s after the last fault: {late} clients wait; {world.lacking()}")


def workloads_of(seed: int) -> Sequence[WorkloadFactory]:
    """Of every four seeds three are about the log, and one is about coordinators; later on, some are about what is
    attached to partitions: counters, queues and schedules.
    """
    if seed >= _ATTACHED_FROM and seed % 16 == 4:
        return _ATTACHED
    if seed >= _ATTACHED_FROM and seed % 32 == 12:
        return _SCHEDULES
    if seed >= _ATTACHED_FROM and seed % 16 in (8, 12):
        return _QUEUES
    return _COORDINATION if seed % 4 == 3 else _LOG


def scenario_of(planted: str) -> Scenario:
    """What a bug is looked for in. The same without the bug has to pass."""
    found = SCENARIOS.get(planted, WHOLE)
    if planted in PLANTED_QUEUES:
        return WHOLE._replace(workloads=_QUEUES)
    if planted in PLANTED_TRANSFORMERS:
        return WHOLE._replace(workloads=_TRANSFORMERS)
    if planted in PLANTED_SCHEDULES:
        return found if found.workloads else WHOLE._replace(workloads=_SCHEDULES)
    clients = _ATTACHED if planted in PLANTED_ATTACHED else _COORDINATION if planted in PLANTED_COORDINATION else _LOG
    return found if found.workloads else found._replace(workloads=clients)


def run(seed: int, planted: str | None = None, scenario: Scenario = WHOLE) -> Report:
    """Play one seed, perhaps with a planted bug. Whatever goes wrong is in the report."""
    report = Report(seed, planted)
    started = time.process_time()
    plant = BUGS[planted].plant() if planted else nullcontext()
    with _no_collection(), plant:
        _run(seed, lambda: _play(seed, scenario, report), report)
    report.cpu_s = time.process_time() - started
    digest = hashlib.sha256("\n".join(report.trace).encode())
    digest.update(f"{report.steps} {report.virtual_s} {sorted(report.counters.items())}".encode())
    report.digest = digest.hexdigest()[:16]
    return report


def _run(seed: int, function: Callable[[], Coroutine[Any, Any, None]], report: Report) -> None:
    try:
        run_virtual(function, seed)
    except DeadlockError as error:
        report.violations.append(f"stuck: {str(error)[:300]}")
    except Exception as error:  # noqa: BLE001 - a finding like any other
        report.violations.append(f"{type(error).__name__}: {error}")


@contextmanager
def _no_collection() -> Iterator[None]:
    """Let nothing that an earlier run has left be finalised inside of this one; and of this one, nothing be heard.

    The tasks of killed brokers are dropped as they are: their `finally` finds no loop any more.
    """
    hook, disabled = sys.unraisablehook, logging.root.manager.disable
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()  # so that a collection looks at what a run has left, and at nothing else
    gc.disable()
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
            gc.collect()
    finally:
        sys.unraisablehook = hook
        logging.disable(disabled)
        gc.enable()
