"""One broker out of a configuration: builds the rooms, starts them in order, stops them in reverse."""

import asyncio
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock import obstacles
from penstock.cluster.image import Served
from penstock.cluster.metadata.embedded import EmbeddedStore
from penstock.engine.engine import Engine
from penstock.engine.groups.classic_requests import GroupLimits
from penstock.engine.groups.consumer_requests import ConsumerLimits
from penstock.engine.groups.groups import GroupSettings
from penstock.engine.settings import EngineSettings, Ports
from penstock.engine.topic_config import check_settings
from penstock.engine.transactions.requests import TransactionLimits
from penstock.errors import Code, PenstockError, StartupError, WrongSettings
from penstock.net.tcp import TcpNetwork
from penstock.observe.logs import Logger, get_logger
from penstock.observe.meanings import BROKER_GAUGES
from penstock.observe.metrics import Exposition, Gauge
from penstock.observe.stats import Stats
from penstock.ports.disk import is_shortage
from penstock.ports.metadata import MetadataStore
from penstock.protocols.kafka.fetch_sessions import FetchSessions
from penstock.protocols.kafka.handlers import BrokerSetting, Context
from penstock.protocols.kafka.share_requests import Shares
from penstock.server import kafka_names
from penstock.server.config import WILDCARDS, Config, Listener
from penstock.server.config import Groups as GroupConfig
from penstock.server.descriptors import descriptors_allowed, share_out
from penstock.server.doors.door import House
from penstock.server.doors.opening import Doors
from penstock.server.doors.table import Stage
from penstock.server.front_page import Whereabouts
from penstock.server.health import (
    Health,
    certificate_troubles,
    coordinator_troubles,
    partition_troubles,
    revocation_troubles,
)
from penstock.server.survey import Survey
from penstock.server.system_clock import SystemClock
from penstock.storage.compaction.process import CompactionProcess
from penstock.storage.data_directory import METADATA_FILE, DataDirectory
from penstock.storage.local_disk import LocalDisk
from penstock.storage.log.options import Flush

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from penstock.security.guard import Guard
    from penstock.security.secret import Secret
    from penstock.server.cluster import ClusterMember

_SWEEP_S = 2.0
_LEAVE_S = 10.0
_INSECURE_WARNING_S = 3600.0
_SEALING_KEY = "sealing.key"
_ONLY_SCRAPED = frozenset(meaning.field for meaning in BROKER_GAUGES if meaning.labels)
"""Told apart by several labels, which /health has no form for."""


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
        self._house = House(config, self._network, self._clock, self.stats, self._descriptors, self._make_app)
        self._doors = Doors(
            self._house,
            config.listeners.listed(in_cluster=bool(config.cluster.store)),
            may_lack=config.listeners.is_standard,
            log=self._log,
        )
        self._survey: Survey | None = None
        self._running: list[asyncio.Task[None]] = []
        self._broker_settings: list[BrokerSetting] = []
        """Empty until the listeners among them are open."""
        self.first_admin_password: Secret | None = None
        """Of user `admin`, if it was made now: to be shown once."""
        self._recovered = False
        self._stopped = False

    @property
    def kafka_address(self) -> tuple[str, int]:
        return self._doors.bound()["kafka"]

    @property
    def partition_count(self) -> int:
        return self._engine.topics.partition_count if self._engine is not None else 0

    @property
    def leaving_s(self) -> float:
        """How long handing over may take, when it stops."""
        return _LEAVE_S if self._member is not None else 0.0

    @property
    def ready_words(self) -> dict[str, str]:
        """What the line says that tells that the broker is ready: each listener and its address, and which node it is.

        Listeners tell what they are bound to; the one for brokers, where the others are told to connect.
        """
        addresses = self._doors.bound()
        words = {name: str(address) for name, address in addresses.items()}
        if self._member is not None:
            told = self._doors.advertised()
            words |= {name: str(told[name]) for name in self._doors.of("internal")}
            words["node"] = str(self._config.node.id)
        return words

    async def start(self) -> None:
        """Recover, then listen. Raises `StartupError` with the way out."""
        try:
            await self._start()
        except (PenstockError, OSError) as error:
            raise self._refusal(error) from error

    async def _start(self) -> None:
        config = self._config
        self._warn_if_insecure()
        try:
            check_settings(config.defaults.topic)
        except PenstockError as error:
            raise WrongSettings(f"defaults.topic: {error}") from error
        await self._disk.run(lambda: self._directory.check_owner(is_member=bool(config.cluster.store)))
        await self._disk.run(self._directory.open)
        await self._doors.open(Stage.FIRST)
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
                self._doors,
            )
        self._store = await (self._open_store() if self._member is None else self._member.open_store())
        self._engine = Engine(
            Ports(self._disk, self._clock, random.SystemRandom(), self._store),
            self._directory,
            self.stats,
            self._fail,
            self._engine_settings(),
            self._compactor,
        )
        self._house.engine = self._engine
        self._house.context = context = self._make_context(self._engine)
        if config.has_guard:
            self._house.guard = context.guard = await self._make_guard(self._engine, self._store)
        if self._member is not None:
            certificates = await self._disk.run(self._member.load_certificates)
            if certificates is not None:
                self._house.brokers_tls = certificates
                self._house.certificates.append(certificates)
            self._house.reception = self._member.make_reception(self._engine)
            await self._member.join(self._engine, self._store, context, self._listen)
        else:
            await self._engine.start()
            await self._listen()
        self._recovered = True
        if self._member is not None:
            await self._member.until_admitted()
        self._survey = Survey(self._engine)
        loop = asyncio.get_running_loop()
        self._running = [loop.create_task(self._sweep()), loop.create_task(self._survey.run())]
        self._running.append(loop.create_task(self._keep_warning()))
        self._running += [loop.create_task(each.keep_looking()) for each in self._house.certificates]

    async def _make_guard(self, engine: Engine, store: MetadataStore) -> "Guard":
        """Users and rules, in force. Raises `StartupError`."""
        from penstock.security.guard import Guard  # who asks nobody needs none of it
        from penstock.security.modes import Mode
        from penstock.server.sealing_keys import load_sealing_keys

        config, randomness = self._config, random.SystemRandom()
        is_alone = self._member is None
        sealing = await self._disk.run(
            load_sealing_keys,
            config.security,
            randomness,
            own=f"{self._directory.metadata_path}/{_SEALING_KEY}" if is_alone else None,
            of_cluster=self._member.sealing_key() if self._member is not None else None,
        )
        guard = Guard(
            store,
            engine.access,
            self._clock,
            randomness,
            self._disk.run,
            self._fail,
            mode=Mode(config.security_mode),
            supers=config.security.super_users,
            sealing=sealing,
        )
        guard.authenticator.logins = self.stats.logins
        await guard.start()
        return guard

    async def _make_first_admin(self, guard: "Guard") -> None:
        """Somebody who can log in, before anybody may try to; the file is needed for that alone.

        Raises `WrongSettings`: nobody could mend a cluster without users from outside.
        """
        from penstock.security.secret_files import read_secret_file

        if guard.has_users:
            return
        path, password = self._config.security.admin_password_file, None
        try:
            if path is not None:
                password = await self._disk.run(read_secret_file, str(path))
            self.first_admin_password = await guard.make_first_admin(password)
        except WrongSettings as error:
            raise WrongSettings(f"security.admin_password_file: {error}") from error
        except PenstockError as error:
            raise WrongSettings(f"security.admin_password_file: {path}: {error}") from error

    def _engine_settings(self) -> EngineSettings:
        config = self._config
        return EngineSettings(
            node_id=config.node.id,
            defaults=config.defaults.topic,
            default_partitions=config.defaults.partitions,
            internal_partitions=config.topics.internal_partitions,
            groups=_group_settings(config.groups),
            transactions=TransactionLimits(
                timeout_ms=config.transactions.max_timeout_ms, expiration_ms=config.transactions.id_expiration_ms
            ),
            upkeep_ms=config.storage.upkeep_ms,
            compaction_bytes_per_second=config.storage.compaction_bytes_per_second,
            scrub_s=config.storage.scrub_hours * 3600,
            scrub_bytes_per_second=config.storage.scrub_bytes_per_second,
            segment_files=self._descriptors.segment_files,
        )

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
            acting_as=engine.acting_as,
            turns=engine.turns,
            topic_defaults=engine.topic_defaults,
            default_partitions=engine.default_partitions,
            stats=self.stats,
            node_id=self._config.node.id,
            host="",
            port=0,
            auto_create=self._config.topics.auto_create,
            fetch_sessions=FetchSessions(random.SystemRandom()),
            shares=Shares(engine.acting_as),
            broker_settings=self._broker_settings,
            cluster=self._member is not None,
        )

    def _make_app(self, listener: Listener) -> "ASGIApp":
        from penstock.server.doors.recognition import Recogniser
        from penstock.server.http import create_app  # when it is known that somebody is to be answered
        from penstock.server.http_login import HttpLogin

        is_metrics = listener.protocol == "metrics"
        login = HttpLogin(
            listener.name,
            listener.auth,
            lambda: self._house.guard,
            lambda: self._engine.access if self._engine is not None else None,
            Recogniser(listener, lambda: self._house.guard).recognise,
            is_closed=self._config.security_mode == "closed",
        )
        return create_app(
            health=self.health,
            summary=self._summary,
            scrape=Exposition(self.stats, self.gauges).render,
            whereabouts=lambda: Whereabouts(self._config.node.id, str(self._doors.advertised().get("kafka", ""))),
            stats=self.stats,
            login=None if is_metrics and not listener.auth else login,
            has_front_page=not is_metrics,
        )

    async def _listen(self) -> Served:
        """Begin to listen for clients; where they are told to connect."""
        if self._house.guard is not None:
            await self._make_first_admin(self._house.guard)
        await self._doors.open(Stage.CLIENTS)
        config, most = self._config, self._descriptors.connections
        if most < config.limits.max_connections:
            self._log.info(
                "descriptors are too few for limits.max_connections; raise their limit, or lower the setting",
                descriptors=self._descriptors.allowed,
                max_connections=config.limits.max_connections,
                connections=most,
            )
        bound, told = self._doors.bound(), self._doors.advertised()
        places = {name: (bound[name], told[name]) for name in self._doors.of("kafka")}
        self._broker_settings[:] = kafka_names.describe(config, places, most)
        endpoints = {name: place for name, place in told.items() if place.host not in WILDCARDS}
        return Served(*told["kafka"], endpoints)

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
        await self._doors.close(Stage.CLIENTS)
        for task in self._running:
            task.cancel()
        if self._member is not None:
            await self._member.stop(cleanly=cleanly)
        elif self._engine is not None:
            if cleanly:
                await self._engine.stop()
            else:
                await self._engine.abandon()
        if self._house.guard is not None:
            await self._house.guard.stop()
        self._compactor.close()
        await self._doors.end()
        if self._store is not None:
            await self._store.close()
        if self._member is not None:
            await self._member.close()
        self._disk.close()  # threads may still write: the directory is ours until they have ended
        self._directory.release()

    @property
    def has_certificates(self) -> bool:
        """Whether there is anything that `reload` loads."""
        return bool(self._house.certificates)

    async def reload(self) -> None:
        """Load all certificates again; those with anything wrong stay as they are, and the log says what it is."""
        for certificates in self._house.certificates:
            await certificates.reload()

    def gauges(self) -> dict[str, Gauge]:
        engine = self._engine
        if engine is None:
            return {"topics": 0, "partitions": 0, "segments": 0, "log_bytes": 0, **self._security_gauges()}
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
            **self._security_gauges(),
            **self._certificate_gauges(),
        }

    def _security_gauges(self) -> dict[str, Gauge]:
        guard = self._house.guard
        mode = self._config.security_mode if guard is None else guard.loader.mode
        return {
            "insecure": self._insecure,
            "security_mode": {each: float(mode == each) for each in ("open", "watch", "closed")},
            "watch_refusals": 0 if guard is None else guard.loader.refusals.total,
            "rules_age_s": 0.0 if guard is None else guard.loader.age_s(),
        }

    def _certificate_gauges(self) -> dict[str, Mapping[str, float]]:
        now_ms = self._clock.now_ms()
        ends_ms = {
            "certificate_left_s": self._house.certificates_end_ms(),
            "revocation_list_left_s": self._house.revocation_lists_end_ms(),
        }
        return {
            gauge: {path: (end_ms - now_ms) / 1000 for path, end_ms in ends.items()}
            for gauge, ends in ends_ms.items()
            if ends
        }

    @property
    def _insecure(self) -> int:
        return int(bool(self._config.exposed) or self._config.exposed_store is not None)

    def _warn_if_insecure(self) -> None:
        """Said at the start, and again every hour."""
        if self._config.exposed:
            self._log.warning(
                "INSECURE: these listeners reach beyond this machine without TLS and logins, as --insecure allows; "
                "give them tls and auth",
                listeners=" ".join(map(str, self._config.exposed)),
            )
        if self._config.exposed_store is not None:
            self._log.warning(
                "INSECURE: the metadata store is reached in plain beyond this machine, as --insecure allows: keys of "
                "passwords and rules can be read and changed on the way; give it TLS",
                store=self._config.cluster.store,
                host=self._config.exposed_store,
            )

    async def _keep_warning(self) -> None:
        while True:
            await asyncio.sleep(_INSECURE_WARNING_S)
            self._warn_if_insecure()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._doors.sweep()

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self._log.critical("the broker stops rather than guess", error=error)
            self.failed.set_exception(error)

    def _not_ready(self) -> list[str]:
        reasons = []
        if not self._recovered:
            reasons.append("logs are being recovered")
        reasons += self._doors.not_open()
        if self._member is not None:
            reasons += self._member.not_ready()
        return reasons

    def _troubles(self) -> list[str]:
        if self._engine is None:
            return []
        refusals = self._member.refusals() if self._member is not None else []
        guard = self._house.guard
        if guard is not None and guard.loader.problem:
            refusals = [*refusals, f"users and rules are not the newest: {guard.loader.problem}"]
        now_ms = self._clock.now_ms()
        return [
            *partition_troubles(self._engine),
            *coordinator_troubles(self._engine),
            *refusals,
            *certificate_troubles(self._house.certificates_end_ms(), now_ms),
            *revocation_troubles(self._house.revocation_lists_end_ms(), now_ms),
        ]

    def _summary(self) -> dict[str, object]:
        offline = []
        if self._engine is not None:
            offline = [
                partition.name for partition in self._engine.topics.all_partitions() if partition.offline is not None
            ]
        insecure = {"insecure": bool(self._insecure)}
        gauges = {name: value for name, value in self.gauges().items() if name not in _ONLY_SCRAPED}
        return {"node": self._config.node.id, "offline_partitions": offline, **gauges, **insecure}


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
