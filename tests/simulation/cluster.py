"""Three brokers in one process and in virtual time: real engine, real replication over a simulated network, disk, etcd.

Brokers talk to each other over the wire protocol, byte by byte. Clients do not: a test calls the engine's verbs on the
broker it has chosen, through `SimulatedCluster.call`, which loses questions and answers as a network does.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from functools import partial
from random import Random
from typing import Any, NamedTuple, TypeVar

from penstock.cluster.image import BrokerRecord, Served
from penstock.cluster.keys import partition_key
from penstock.cluster.node import ClusterNode, NodeSettings, Others
from penstock.cluster.replication.following import FollowingSettings
from penstock.cluster.secret import ClusterSecret
from penstock.cluster.term import ControllerSettings
from penstock.engine.engine import Engine
from penstock.engine.groups.classic_requests import GroupLimits
from penstock.engine.groups.groups import GroupSettings
from penstock.engine.partition import Partition
from penstock.engine.partition_state import PartitionState
from penstock.engine.settings import EngineSettings, Ports
from penstock.net.connection import Connections, Limits
from penstock.observe.stats import Stats
from penstock.protocols.internal.broker_calls import BrokerCalls, GivenAcks
from penstock.protocols.internal.forwarding import ForwardedCalls
from penstock.protocols.internal.peers import Peers
from penstock.protocols.internal.reading import AskedReads
from penstock.protocols.kafka.fetch_sessions import FetchSessions
from penstock.protocols.kafka.handlers import Context
from penstock.protocols.kafka.share_requests import Shares
from penstock.storage.data_directory import DataDirectory
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import SimulatedEtcd
from penstock.testing.memory_network import MemoryNetwork
from penstock.testing.virtual_clock import Process, VirtualClock, VirtualLoop
from tests.attached_counter import Counters
from tests.doors.trusted import trusted_session

T = TypeVar("T")
INTERNAL_PORT = 9093
DISK_DELAYS_S = (0.002, 0.002, 0.01, 0.05)
CLIENTS = "clients"
"""The host of all clients: block the way between it and a broker to cut the broker off from them."""
SETTINGS = NodeSettings(
    lease_s=4,
    relist_s=10.0,
    replica_lag_s=2.5,
    watermarks_s=1.0,
    leave_s=5.0,
    default_partitions=1,
    internal_partitions=1,
    controller=ControllerSettings(preferred_after_s=20.0, last_wait_s=10.0),
    following=FollowingSettings(max_wait_ms=500),
)


class SimulatedBroker:
    """One life of a broker. Made inside its process, so that everything it starts dies with it."""

    def __init__(self, cluster: "SimulatedCluster", node_id: int, disk: FaultyDisk, clock: VirtualClock) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.disk = disk
        self.clock = clock
        self.failures: list[BaseException] = []
        self.stats = Stats()
        cluster.stats.append(self.stats)
        self.ready = False
        self.stopping = False
        randomness = Random(cluster.random.getrandbits(64))
        network = cluster.network.of(host_of(node_id))
        store = cluster.etcd.client(host_of(node_id))
        directory = DataDirectory(disk, "data")
        self._directory = directory
        self._network = network
        self.engine = Engine(
            Ports(disk, clock, randomness, store),
            directory,
            self.stats,
            self._fail,
            EngineSettings(
                node_id=node_id,
                defaults=cluster.defaults,
                internal_partitions=1,
                groups=GroupSettings(GroupLimits(initial_rebalance_delay_ms=0)),
                upkeep_ms=2000,
                scrub_s=5.0,
                ledger_entries=30,
                thin_every_ms=2000,
            ),
        )
        self.counters = Counters(self.engine)
        peers = Peers(
            network,
            clock,
            node_id,
            lambda broker_id: self.node.image.brokers.get(broker_id),
            lambda: self.node.membership.incarnation,
        )
        self.node = ClusterNode(
            engine=self.engine,
            ports=Ports(disk, clock, randomness, store),
            directory=directory,
            me=BrokerRecord(
                node_id, host_of(node_id), 9092, host_of(node_id), INTERNAL_PORT, f"rack-{node_id}", 0, True
            ),
            others=Others(peers.source, peers.probe, peers.refuses, peers.recognises),
            fail=self._fail,
            secret=cluster.secrets.get(node_id),
            settings=cluster.settings,
        )
        self.engine.transactions.other_brokers = BrokerCalls(peers.to, self.node.is_gone)
        self.engine.transactional_acks.other_leaders = GivenAcks(peers.to_order)
        self.engine.transactional_acks.check_all_know = self.node.image.check_acks_in_transactions
        self.engine.forwarding.other_brokers = ForwardedCalls(peers.to_publish)
        self.engine.elsewhere.other_brokers = AskedReads(peers.to_read)
        context = Context(
            acting_as=self.engine.acting_as,
            turns=self.engine.turns,
            topic_defaults=self.engine.topic_defaults,
            default_partitions=self.engine.default_partitions,
            stats=self.stats,
            node_id=node_id,
            host=host_of(node_id),
            port=9092,
            auto_create=False,
            fetch_sessions=FetchSessions(randomness),
            shares=Shares(self.engine.acting_as),
            cluster=True,
            broker_lost=self.node.look_after,
        )
        self._connections = Connections(
            Limits(),
            self.stats,
            clock,
            partial(trusted_session, context, self.engine, clock),
            asyncio.get_running_loop().call_soon,
        )

    def _fail(self, error: BaseException) -> None:
        """Fail-stop: the process ends at once, as the server's does."""
        self.failures.append(error)
        self.cluster.ended(self.node_id, error)

    async def start(self) -> None:
        await self.disk.run(self._directory.open)
        await self._network.listen(host_of(self.node_id), INTERNAL_PORT, self._connections.accept)
        await self.node.start(self._listen)
        self.ready = True

    async def _listen(self) -> Served:
        return Served(host_of(self.node_id), 9092)

    async def stop(self) -> None:
        """A clean stop, as after SIGTERM."""
        self.stopping = True
        await self.node.leave()
        self.ready = False
        await self.node.stop()
        self._directory.release()


class SimulatedCluster:
    """The world that outlives brokers: disks, network, etcd.

    Attributes:
        crashes: what made brokers stop by themselves.
        secrets: what brokers prove themselves by in the store; none for those that go by certificates.
        make_broker: of which release the next start of a broker is.
        stats: of every life of every broker.
    """

    def __init__(
        self,
        seed: int,
        *,
        brokers: int = 3,
        settings: NodeSettings = SETTINGS,
        defaults: dict[str, str] | None = None,
        disk_delays_s: Sequence[float] = DISK_DELAYS_S,
    ) -> None:
        self.random = Random(seed)
        self._disk_delays_s = disk_delays_s
        self.settings = settings
        self.defaults = defaults or {}
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.etcd = SimulatedEtcd(self.random.getrandbits(32))
        self.network = MemoryNetwork(self.random.getrandbits(32), max_piece_bytes=None, max_delay_s=0.002)
        self.ids = list(range(1, brokers + 1))
        self.disks = {node_id: self.new_disk() for node_id in self.ids}
        self.clocks = {node_id: VirtualClock(loop) for node_id in self.ids}
        self.secrets: dict[int, ClusterSecret] = {}
        self.make_broker: type[SimulatedBroker] = SimulatedBroker
        self.lives: dict[int, SimulatedBroker] = {}
        self.stats: list[Stats] = []
        self.processes: dict[int, Process] = {}
        self.tasks: dict[int, asyncio.Task[Any]] = {}
        self.crashes: list[tuple[int, BaseException]] = []
        self.on_crash: Callable[[int, BaseException], None] = lambda node_id, error: None
        self._asked: dict[int, dict[asyncio.Future[Any], None]] = {}
        self._context = copy_context()

    def new_disk(self) -> FaultyDisk:
        """Some are slower than others: what is not synced yet is what a power cut takes."""
        return FaultyDisk(self.random.getrandbits(32), max_delay_s=self.random.choice(self._disk_delays_s))

    # --- lives

    def start(self, node_id: int) -> "asyncio.Task[None]":
        process = self.processes[node_id] = self.loop.process(host_of(node_id))

        async def live() -> None:
            broker = self.lives[node_id] = self.make_broker(self, node_id, self.disks[node_id], self.clocks[node_id])
            await broker.start()

        task = process.create_task(live())
        task.add_done_callback(lambda done: self._started(node_id, process, done))
        self.tasks[node_id] = task
        return task

    def _started(self, node_id: int, process: Process, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not process.killed:
            self.ended(node_id, error)

    def ended(self, node_id: int, error: BaseException) -> None:
        """A broker stops by itself rather than guess."""
        self.crashes.append((node_id, error))
        self.on_crash(node_id, error)
        self.kill(node_id)

    def kill(self, node_id: int, *, power_cut: bool = False) -> None:
        """kill -9, or a power cut of its machine: what was not synced may be gone then."""
        self.lives.pop(node_id, None)
        process = self.processes.pop(node_id, None)
        if process is None:
            return
        process.kill()
        self.network.cut(host_of(node_id))
        self._reset_clients(node_id)
        disk = self.disks[node_id]
        if power_cut:
            disk.cut_power()
            self.disks[node_id] = disk.after_power_cut()
        else:
            self.disks[node_id] = disk.abandon()

    async def stop(self, node_id: int) -> None:
        broker = self.lives.get(node_id)
        if broker is None or not broker.ready:
            return
        process = self.processes[node_id]
        task = process.create_task(broker.stop())
        await asyncio.wait({task})
        error = None if task.cancelled() else task.exception()
        if self.processes.get(node_id) is process:
            if error is not None:
                self.ended(node_id, error)
            else:
                self.kill(node_id)

    def is_up(self, node_id: int) -> bool:
        broker = self.lives.get(node_id)
        return broker is not None and broker.ready

    def is_deposed(self, partition: Partition) -> bool:
        """Whether a partition has got a later epoch than the broker knows that this is of."""
        entry = self.etcd.state.get(partition_key(partition.topic_id, partition.index))
        return entry is None or PartitionState.decode(entry.value, 0).leader_epoch > partition.leader_epoch

    # --- calls of clients

    async def call(
        self,
        node_id: int,
        work: Callable[[SimulatedBroker], Awaitable[T]],
        timeout_s: float,
        line: "Line | None" = None,
    ) -> T:
        """Have a broker do something, as a client asks for it; in the order of calls if they go over one line.

        Raises:
            TimeoutError: no answer came in time. What was asked may have been done all the same.
            ConnectionError: nobody listens there, or the broker is gone. As above.
            Exception: what `work` raised.
        """
        answer: asyncio.Future[T] = self.loop.create_future()
        line = line or Line()
        delay = line.next_at(self.loop.time(), self.network.delay())
        self.loop.call_later(delay, self._arrive, line, _Question(node_id, work, answer))
        async with asyncio.timeout(timeout_s):
            return await answer

    def _arrive(self, line: "Line", question: "_Question") -> None:
        node_id = question.node_id
        host = host_of(node_id)
        broker, process = self.lives.get(node_id), self.processes.get(node_id)
        if not (self.network.is_open(CLIENTS, host) and self.network.is_open(host, CLIENTS)):
            return  # nobody answers
        if broker is None or process is None or not broker.ready:
            self._settle(question.answer, None, ConnectionRefusedError(f"broker {node_id} does not listen"))
            return
        line.use(broker).append(question)
        self._asked.setdefault(node_id, {})[question.answer] = None
        process.create_task(self._serve(broker, line))

    async def _serve(self, broker: SimulatedBroker, line: "Line") -> None:
        """Do what came first over a line; as often called as something came."""
        question = line.use(broker).popleft()
        result: Any = None
        error: Exception | None = None
        try:
            result = await question.work(broker)
        except Exception as raised:  # noqa: BLE001 - the caller's to look at
            error = raised
        self._asked.get(broker.node_id, {}).pop(question.answer, None)
        if self.network.is_open(host_of(broker.node_id), CLIENTS):
            self._settle(question.answer, result, error)

    def _settle(self, answer: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
        self.loop.call_later(self.network.delay(), _settle, answer, result, error, context=self._context)

    def _reset_clients(self, node_id: int) -> None:
        asked = self._asked.pop(node_id, {})
        if self.network.is_open(host_of(node_id), CLIENTS):
            for answer in asked:
                self._settle(answer, None, ConnectionResetError(f"broker {node_id} is gone"))


class Line:
    """What goes over it to one broker arrives there in order, as over a connection."""

    def __init__(self) -> None:
        self._inbox: deque[_Question] = deque()
        self._broker: SimulatedBroker | None = None
        self._last_at = 0.0

    def use(self, broker: SimulatedBroker) -> "deque[_Question]":
        """What waits at the broker's end; what waited in an earlier life of it is gone."""
        if broker is not self._broker:
            self._broker = broker
            self._inbox = deque()
        return self._inbox

    def next_at(self, now: float, delay: float) -> float:
        """In how many seconds what is sent now is there."""
        self._last_at = max(now + delay, self._last_at + 1e-6)
        return self._last_at - now


class _Question(NamedTuple):
    node_id: int
    work: Callable[[SimulatedBroker], Awaitable[Any]]
    answer: "asyncio.Future[Any]"


def _settle(answer: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)


def host_of(node_id: int) -> str:
    return f"b{node_id}"
