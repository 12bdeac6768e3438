"""One broker out of a configuration: builds the rooms, starts them in order, stops them in reverse."""

import asyncio
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock import obstacles
from penstock.cluster.metadata.embedded import EmbeddedStore
from penstock.engine.engine import Engine
from penstock.engine.groups.classic_requests import GroupLimits
from penstock.engine.groups.consumer_requests import ConsumerLimits
from penstock.engine.groups.groups import GroupSettings
from penstock.engine.topic_config import check_settings
from penstock.engine.transactions.requests import TransactionLimits
from penstock.errors import Code, PenstockError, StartupError, WrongSettings
from penstock.net.connection import Connection, Connections, Limits
from penstock.net.tcp import TcpNetwork
from penstock.observe.logs import Logger, get_logger
from penstock.observe.metrics import Exposition
from penstock.observe.stats import Stats
from penstock.ports.disk import is_shortage
from penstock.ports.metadata import MetadataStore
from penstock.ports.network import Listener
from penstock.protocols.kafka.fetch_sessions import FetchSessions
from penstock.protocols.kafka.handlers import Context
from penstock.protocols.kafka.session import KafkaSession
from penstock.server import kafka_names
from penstock.server.config import Address, Config
from penstock.server.config import Groups as GroupConfig
from penstock.server.descriptors import descriptors_allowed, share_out
from penstock.server.front_page import Whereabouts
from penstock.server.health import Health, coordinator_troubles, partition_troubles
from penstock.server.http import HttpDoor, create_app
from penstock.server.listening import cannot_listen
from penstock.server.survey import Survey
from penstock.server.system_clock import SystemClock
from penstock.storage.compaction.process import CompactionProcess
from penstock.storage.data_directory import METADATA_FILE, DataDirectory
from penstock.storage.local_disk import LocalDisk
from penstock.storage.log.options import Flush

if TYPE_CHECKING:
    from penstock.server.cluster import ClusterMember

_SWEEP_S = 2.0
_LEAVE_S = 10.0


class Broker:
    """A broker in this process and event loop.

    `failed` gets the exception when the broker must stop rather than guess; whoever runs it ends the process then.
    """

    def __init__(self, config: Config, stats: Stats | None = None, log: Logger | None = None) -> None:
        self._config = config
        self._log = log or get_logger("broker")
        self.stats = stats or Stats()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.health = Health(closed=[self._not_ready], troubled=[self._troubles])
        self._clock = SystemClock()
        self._disk = LocalDisk()
        self._network = TcpNetwork()
        self._compactor = CompactionProcess()
        self._descriptors = share_out(descriptors_allowed(), config.limits.max_connections)
        self._directory = DataDirectory(self._disk, str(config.data_dir))
        self._store: MetadataStore | None = None
        self._member: ClusterMember | None = None
        self._engine: Engine | None = None
        self._kafka: Listener | None = None
        self._connections: Connections | None = None
        self._http: HttpDoor | None = None
        self._survey: Survey | None = None
        self._running: list[asyncio.Task[None]] = []
        self._advertised = ""
        self._recovered = False
        self._stopped = False

    @property
    def kafka_address(self) -> tuple[str, int]:
        assert self._kafka is not None
        return self._kafka.address

    @property
    def http_address(self) -> tuple[str, int]:
        assert self._http is not None
        return self._http.address

    @property
    def partition_count(self) -> int:
        return self._engine.topics.partition_count if self._engine is not None else 0

    @property
    def leaving_s(self) -> float:
        """How long handing over may take, when it stops."""
        return _LEAVE_S if self._member is not None else 0.0

    @property
    def cluster_line(self) -> str:
        """For who reads the line that says that the broker is ready."""
        return f" internal={self._member.address} node={self._config.node.id}" if self._member is not None else ""

    async def start(self) -> None:
        """Recover, then listen. Raises `StartupError` with the way out."""
        try:
            await self._start()
        except (PenstockError, OSError) as error:
            raise self._refusal(error) from error

    async def _start(self) -> None:
        config = self._config
        try:
            check_settings(config.defaults.topic)
        except PenstockError as error:
            raise WrongSettings(f"defaults.topic: {error}") from error
        await self._disk.run(lambda: self._directory.check_owner(is_member=bool(config.cluster.store)))
        await self._disk.run(self._directory.open)
        exposition = Exposition(self.stats, self.gauges)
        app = create_app(
            health=self.health,
            summary=self._summary,
            scrape=exposition.render,
            whereabouts=lambda: Whereabouts(config.node.id, self._advertised),
            stats=self.stats,
        )
        self._http = HttpDoor(*config.listeners.http, app, self._descriptors.http_connections)
        await self._http.start()
        if config.cluster.store:
            from penstock.server.cluster import ClusterMember  # a broker on its own needs none of it

            self._member = ClusterMember(
                config,
                self._network,
                self._clock,
                self._disk,
                self._directory,
                self._fail,
                _LEAVE_S,
                self._descriptors.broker_connections,
            )
        self._store = await (self._open_store() if self._member is None else self._member.open_store())
        self._engine = Engine(
            disk=self._disk,
            clock=self._clock,
            randomness=random.SystemRandom(),
            store=self._store,
            directory=self._directory,
            stats=self.stats,
            fail=self._fail,
            defaults=config.defaults.topic,
            default_partitions=config.defaults.partitions,
            upkeep_ms=config.storage.upkeep_ms,
            internal_partitions=config.topics.internal_partitions,
            group_settings=_group_settings(config.groups),
            compactor=self._compactor,
            compaction_bytes_per_second=config.storage.compaction_bytes_per_second,
            scrub_s=config.storage.scrub_hours * 3600,
            scrub_bytes_per_second=config.storage.scrub_bytes_per_second,
            transaction_limits=TransactionLimits(
                timeout_ms=config.transactions.max_timeout_ms, expiration_ms=config.transactions.id_expiration_ms
            ),
            node_id=config.node.id,
            segment_files=self._descriptors.segment_files,
        )
        context = self._make_context(self._engine)
        if self._member is not None:
            await self._member.join(self._engine, self._store, context, lambda: self._listen(context))
        else:
            await self._engine.start()
            await self._listen(context)
        self._recovered = True
        if self._member is not None:
            await self._member.until_admitted()
        self._survey = Survey(self._engine)
        loop = asyncio.get_running_loop()
        self._running = [loop.create_task(self._sweep()), loop.create_task(self._survey.run())]

    def _refusal(self, error: PenstockError | OSError) -> BaseException:
        """A start that only lacks space, descriptors or rights says so in one line; other errors stay what they are."""
        if isinstance(error, PermissionError):
            return WrongSettings(f"cannot recover {self._directory.path}: {obstacles.tell_path(error, '--data-dir')}")
        full = error.code is Code.STORAGE_FULL if isinstance(error, PenstockError) else is_shortage(error)
        if not full:
            return error
        return StartupError(f"cannot recover {self._directory.path}: {error}; make room and start again")

    async def _open_store(self) -> EmbeddedStore:
        path = f"{self._directory.metadata_path}/{METADATA_FILE}"
        if not await self._disk.run(self._disk.exists, path):
            orphans = await self._disk.run(self._directory.partitions)
            if orphans:  # found before an empty store is made, so that nothing is touched
                raise self._directory.metadata_lost(orphans)
        return await EmbeddedStore.open(path, self._fail)

    def _make_context(self, engine: Engine) -> Context:
        return Context(
            engine=engine,
            stats=self.stats,
            node_id=self._config.node.id,
            host="",
            port=0,
            auto_create=self._config.topics.auto_create,
            fetch_sessions=FetchSessions(random.SystemRandom()),
            cluster=self._member is not None,
        )

    async def _listen(self, context: Context) -> Address:
        """Begin to listen for clients; where they are told to connect."""
        config = self._config

        def make_session(connection: Connection) -> KafkaSession:
            return KafkaSession(context, connection, self._clock)

        limits = Limits(
            frame_bytes=config.limits.max_request_bytes,
            in_flight=config.limits.max_in_flight_requests,
            connections=self._descriptors.connections,
            receive_bytes=config.limits.max_receive_bytes,
            answer_bytes=config.limits.max_answer_bytes,
        )
        loop = asyncio.get_running_loop()
        self._connections = Connections(limits, self.stats, self._clock, make_session, loop.call_soon)
        host, port = config.listeners.kafka
        try:
            self._kafka = await self._network.listen(host, port, self._connections.accept)
        except OSError as error:
            raise cannot_listen("kafka", host, port, error) from error
        if limits.connections < config.limits.max_connections:
            self._log.info(
                "descriptors are too few for limits.max_connections; raise their limit, or lower the setting",
                descriptors=self._descriptors.allowed,
                max_connections=config.limits.max_connections,
                connections=limits.connections,
            )
        bound = Address(*self._kafka.address)
        advertised = config.listeners.advertised_kafka or bound
        context.host, context.port = advertised
        self._advertised = str(advertised)
        context.broker_settings = kafka_names.describe(config, bound, advertised, limits.connections)
        return advertised

    async def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> None:
        """For who runs a broker and is no client of it. Raises `PenstockError`; -1 partitions are the default."""
        assert self._engine is not None
        await self._engine.create_topic(name, partitions, settings)

    async def stop(self, *, cleanly: bool = True) -> None:
        """Stop accepting, finish what is under way, leave the data directory clean.

        Safe on a half-started broker; on one that failed, nothing is promised about the directory.

        Args:
            cleanly: otherwise what is under way is given up and the next start looks at everything, as after a kill.
        """
        if self._stopped:
            return
        self._stopped = True
        cleanly = cleanly and self._recovered and not self.failed.done()
        if self._member is not None and cleanly:
            await self._member.leave()
        if self._kafka is not None:
            await self._kafka.close()
        for task in self._running:
            task.cancel()
        if self._member is not None:
            await self._member.stop(cleanly=cleanly)
        elif self._engine is not None:
            if cleanly:
                await self._engine.stop()
            else:
                await self._engine.abandon()
        self._compactor.close()
        if self._connections is not None:
            self._connections.close_all()
        if self._http is not None:
            await self._http.stop()
        if self._store is not None:
            await self._store.close()
        if self._member is not None:
            await self._member.close()
        self._disk.close()  # threads may still write: the directory is ours until they have ended
        self._directory.release()

    def gauges(self) -> dict[str, float | Mapping[str, float]]:
        engine = self._engine
        if engine is None:
            return {"topics": 0, "partitions": 0, "segments": 0, "log_bytes": 0}
        partitions = [partition for topic in engine.topics for partition in topic.partitions]
        logs = [partition.log for partition in partitions if partition.log is not None]
        return {
            **(self._member.gauges(engine) if self._member is not None else {}),
            **(self._survey.figures() if self._survey is not None else {}),
            "topics": len(engine.topics),
            "partitions": len(partitions),
            "offline": sum(partition.offline is not None for partition in partitions),
            "topics_flush_os": sum(topic.config.log.flush is Flush.OS for topic in engine.topics),
            "segments": sum(len(log.segments) for log in logs),
            "log_bytes": sum(log.size_bytes for log in logs),
            "connections_max": self._descriptors.connections,
        }

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            assert self._connections is not None
            self._connections.sweep()
            if self._member is not None:
                self._member.sweep()

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self._log.critical("the broker stops rather than guess", error=error)
            self.failed.set_exception(error)

    def _not_ready(self) -> list[str]:
        reasons = []
        if not self._recovered:
            reasons.append("logs are being recovered")
        if self._kafka is None:
            reasons.append("the Kafka listener is not open yet")
        if self._member is not None:
            reasons += self._member.not_ready()
        return reasons

    def _troubles(self) -> list[str]:
        if self._engine is None:
            return []
        refusals = self._member.refusals() if self._member is not None else []
        return [*partition_troubles(self._engine), *coordinator_troubles(self._engine), *refusals]

    def _summary(self) -> dict[str, object]:
        offline = []
        if self._engine is not None:
            offline = [
                partition.name
                for topic in self._engine.topics
                for partition in topic.partitions
                if partition.offline is not None
            ]
        return {"node": self._config.node.id, "offline_partitions": offline, **self.gauges()}


def _group_settings(groups: GroupConfig) -> GroupSettings:
    return GroupSettings(
        GroupLimits(
            min_session_timeout_ms=groups.min_session_timeout_ms,
            max_session_timeout_ms=groups.max_session_timeout_ms,
            initial_rebalance_delay_ms=groups.initial_rebalance_delay_ms,
            max_size=groups.max_size,
        ),
        ConsumerLimits(
            session_timeout_ms=groups.consumer_session_timeout_ms,
            heartbeat_interval_ms=groups.consumer_heartbeat_interval_ms,
            max_size=groups.max_size,
        ),
        groups.offsets_retention_ms,
    )
