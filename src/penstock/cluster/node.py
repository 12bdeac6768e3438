"""One broker of a cluster: joins it, takes its roles, leaves it.

Start, in this order: what is on the disk is recovered; the broker says that it is there, and whether it stopped cleanly
before; the controller admits it; then it leads and follows by what is decided. Stop: it hands over what it leads, stops
following, takes its name off, and leaves its directory clean.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

import orjson

from penstock.cluster import keys
from penstock.cluster.broker_settings import THROTTLE, topic_defaults
from penstock.cluster.catalogue import ClusterCatalogue
from penstock.cluster.controller import Controller, ControllerSettings
from penstock.cluster.image import FEATURE_LEVEL, BrokerRecord, Image, Served, TopicEntry
from penstock.cluster.known_groups import KnownGroups
from penstock.cluster.member_file import MemberFile
from penstock.cluster.membership import Membership
from penstock.cluster.opening import Opening
from penstock.cluster.operations import Operations
from penstock.cluster.replication.following import Following, FollowingSettings
from penstock.cluster.replication.in_sync import InSync
from penstock.cluster.replication.source import Source
from penstock.cluster.replication.throttle import Throttle
from penstock.cluster.replication.watermarks import save_watermarks, watermark_key
from penstock.cluster.roles.roles import Roles
from penstock.cluster.secret import ClusterSecret, SecretCheck
from penstock.cluster.watcher import Watcher
from penstock.engine.engine import Engine
from penstock.engine.internal_settings import topic_config
from penstock.engine.settings import Ports
from penstock.errors import WrongSettings
from penstock.observe.logs import get_logger
from penstock.ports.disk import is_shortage
from penstock.ports.metadata import MetadataConflict, MetadataUnavailable
from penstock.ports.randomness import new_uuid
from penstock.storage.attached_names import split_name
from penstock.storage.data_directory import DataDirectory
from penstock.storage.log.options import Flush
from penstock.tasks import Tasks

T = TypeVar("T")
log_ = get_logger("cluster")
_RETRY_S = 0.5
_REFUSALS, _REFUSED_EVERY_S = 2, 0.05
_GRACE_S = 2.0
_REMEMBERED_S = 60.0
"""How long clients are told where a broker was that has gone."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    lease_s: int = 4
    relist_s: float = 10.0
    replica_lag_s: float = 10.0
    watermarks_s: float = 5.0
    leave_s: float = 10.0
    default_replication: int = 3
    default_partitions: int = 6
    internal_partitions: int = 16
    accept_older_store: bool = False
    accept_new_secret: bool = False
    store_name: str = "the metadata store"
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    following: FollowingSettings = field(default_factory=FollowingSettings)


async def _cannot_tell(_: BrokerRecord) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Others:
    """How other brokers are reached.

    Attributes:
        connect: a connection to another broker.
        probe: whether somebody listens at a host and port.
        refuses: whether a host says that nobody does.
        recognises: whether another broker takes this one for one of its cluster; None if that cannot be told.
    """

    connect: Callable[[BrokerRecord], Source]
    probe: Callable[[str, int], Awaitable[bool]]
    refuses: Callable[[str, int], Awaitable[bool]]
    recognises: Callable[[BrokerRecord], Awaitable[bool | None]] = _cannot_tell


class ClusterNode:
    """Args:
    me: where this broker is found; its incarnation is decided here.
    secret: what this broker proves itself by; None: by certificates alone.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        ports: Ports,
        directory: DataDirectory,
        me: BrokerRecord,
        others: Others,
        fail: Callable[[BaseException], None],
        secret: ClusterSecret | None = None,
        settings: NodeSettings | None = None,
    ) -> None:
        disk, clock, randomness, store = ports
        self._engine = engine
        self._store = store
        self._disk = disk
        self._directory = directory
        self._clock = clock
        self._randomness = randomness
        self._others = others
        self._looked_after: set[int] = set()
        self._remembered: set[int] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._fail = fail
        self._settings = settings = settings or NodeSettings()
        self._tasks = Tasks(fail)
        self._followings: dict[int, tuple[BrokerRecord, Following, asyncio.Task[None]]] = {}
        self._clean_incarnation: int | None = None
        self._secret = secret
        self._has_compared = False
        self._strangers: dict[int, BrokerRecord] = {}
        """Those that were told of."""
        self._check_secret = SecretCheck(
            secret,
            store,
            settings.store_name,
            me.broker_id,
            clock,
            randomness,
            others.recognises,
            settings.accept_new_secret,
            patience_s=settings.lease_s + _GRACE_S,
        )
        self.image = Image()
        self.watcher = Watcher(
            store, self.image, clock, self._refuse_store, settings.relist_s, name=settings.store_name
        )
        self._file = MemberFile(
            disk,
            directory.path,
            me.broker_id,
            accept_older=settings.accept_older_store,
            store_name=settings.store_name,
        )
        self.membership = Membership(
            store, self.watcher, clock, randomness, me, others.probe, settings.lease_s, self._prove
        )
        self.roles = Roles(
            engine=engine,
            image=self.image,
            store=store,
            disk=disk,
            directory=directory,
            following=self._following,
            incarnation=lambda: self.membership.incarnation,
            may_decide_alone=self.membership.holds,
            followers_moved=lambda partition: self.in_sync.look_at(partition),
            woken=self.watcher.wake,
            accepts_older=settings.accept_older_store,
        )
        self.in_sync = InSync(
            store,
            self.image,
            clock,
            engine.stats,
            self.roles.led,
            self._refresh_soon,
            engine.topics.changed,
            self.roles.give_away,
            settings.replica_lag_s,
        )
        engine.events.subscribe(self.in_sync)
        self.controller = Controller(
            store, self.image, clock, self._as_candidate, self._topic_rules, settings.controller
        )
        self.operations = Operations(store, self.watcher, self.image)
        self._throttle = Throttle(clock, self._throttled_rate)
        self._file_defaults = dict(engine.topic_defaults)
        self.watcher.listeners.append(self._image_changed)
        engine.group_configs.known = KnownGroups(self.image, self.watcher)
        engine.catalogue = ClusterCatalogue(
            store=store,
            watcher=self.watcher,
            image=self.image,
            topics=engine.topics,
            randomness=randomness,
            defaults=engine.topic_defaults,
            default_partitions=settings.default_partitions,
            internal_partitions=settings.internal_partitions,
            default_replication=settings.default_replication,
        )

    # --- coming

    async def start(self, listen: Callable[[], Awaitable[Served]]) -> None:
        """Join the cluster; returns when this broker has recovered and said that it is there. Raises `StartupError`.

        Args:
            listen: begins to listen for clients; where they are told to connect.
        """
        await self._engine.start(self._load)
        self.membership.serve_at(await listen())
        spawn = self._tasks.spawn
        spawn(self.watcher.run(), "watch the cluster")
        await self.membership.register(self._clean_incarnation)
        await self._disk.run(self._directory.remove_clean_mark)  # good for one start, and this one has begun
        spawn(self.membership.run(), "membership")
        spawn(self.controller.run(), "controller")
        spawn(self.roles.run(), "roles")
        spawn(self.in_sync.run(), "in-sync sets")
        spawn(self._file.run(lambda: self.image.revision), "note the revision")
        spawn(self._save_watermarks(), "high watermarks")
        self.roles.look_at_everything()
        self.controller.wake()

    @property
    def is_isolated(self) -> bool:
        """Whether what this broker says of the cluster is of no use: it is cut off, or has not joined yet.

        A client of librdkafka's that is told of no broker at all forgets every one it knew, and never finds another.
        """
        me = self._engine.node_id
        has_joined = me in self.image.brokers or me in self.image.departed
        return self.in_sync.is_isolated or not has_joined

    async def is_admitted(self, deadline_s: float) -> bool:
        """Wait until the controller has let this broker in."""
        return await self.watcher.until(lambda: self.image.is_live(self._engine.node_id), deadline_s)

    async def _load(self) -> str:
        remembered = await self._file.load()
        self.watcher.remember(remembered)
        await self.watcher.start()
        if self.image.level > FEATURE_LEVEL:
            raise WrongSettings(
                f"the brokers of the cluster in {self._settings.store_name} go by feature level {self.image.level}, "
                f"and this release knows {FEATURE_LEVEL}; start the broker with the release they have"
            )
        cluster_id = await self._answered(self._cluster_id)
        await self._answered(self._check_secret.run)
        self._has_compared = True
        if (secret := self._secret) is not None:
            self.image.trust(lambda broker: secret.proves(cluster_id, broker))
        await self._file.join(cluster_id, self.image.revision)
        clean = await self._disk.run(self._directory.read_clean_mark)
        self._clean_incarnation = (clean or {}).pop("", None)
        opening = Opening(self._engine, self.image, self._disk, self._directory, self.roles)
        if not await opening.run(clean or {}):
            self._clean_incarnation = None
        return cluster_id

    async def _cluster_id(self) -> str:
        while True:
            try:
                entry = await self._store.get(keys.CLUSTER)
                if entry is not None:
                    cluster_id: str = orjson.loads(entry.value)["id"]
                    return cluster_id
                made = orjson.dumps({"id": str(new_uuid(self._randomness)), "format": 1})
                await self._store.transact(expect={keys.CLUSTER: 0}, put={keys.CLUSTER: made})
            except MetadataConflict:
                continue  # another broker was quicker

    def _prove(self, me: BrokerRecord) -> BrokerRecord:
        if self._secret is None:
            return me
        of = self._engine.cluster_id
        return replace(me, proof=self._secret.prove(of, me), endpoints_proof=self._secret.prove_endpoints(of, me))

    async def _answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await ask()
            except MetadataUnavailable as error:
                log_.limited("store").warning("waits for the metadata store", error=str(error))
                await asyncio.sleep(_RETRY_S)

    # --- while it runs

    def _tell_of_strangers(self) -> None:
        for broker_id, broker in self.image.strangers.items():
            if self._strangers.get(broker_id) != broker:
                log_.warning(
                    "a registered broker is given nothing",
                    node=broker_id,
                    incarnation=broker.incarnation,
                    at=f"{broker.internal_host}:{broker.internal_port}",
                    why=broker.why_strange,
                )
        self._strangers = dict(self.image.strangers)

    def _compare_secret(self) -> None:
        """The verifier was replaced while this broker runs: whoever has the old secret cannot go on."""
        stored = self.image.verifier
        if self._secret is not None and stored is not None and not self._secret.fits(stored):
            self._fail(WrongSettings("the secret of the cluster was changed, and this broker has the old one"))

    def _refuse_store(self, older: BaseException) -> None:
        """The store went back: stop, and remember how far it was, or the next start would take it for good."""

        async def end() -> None:
            try:
                await self._file.save(self.image.revision)
            except OSError as error:
                log_.error("cannot note the revision of the metadata store", path=self._file.path, error=str(error))
            self._fail(older)

        self._tasks.spawn(end(), "end with the store")

    def _forget_departed(self, broker: BrokerRecord) -> None:
        if self.image.controller is None:  # it may be there all the same
            asyncio.get_running_loop().call_later(_REMEMBERED_S, self._forget_departed, broker)
            return
        self._remembered.discard(broker.broker_id)
        if self.image.departed.get(broker.broker_id) is broker:
            del self.image.departed[broker.broker_id]

    def _throttled_rate(self) -> int | None:
        text = self.image.config(self._engine.node_id, THROTTLE)
        return int(text) if text is not None else None

    def _use_settings(self) -> None:
        """Settings were changed for all brokers: topics go by other defaults."""
        defaults = self._file_defaults | topic_defaults(self.image.configs.get(None, {}))
        if self._engine.topic_defaults != defaults:
            self._engine.topic_defaults.clear()
            self._engine.topic_defaults.update(defaults)
            self.roles.use_defaults()

    def _image_changed(self, changed: list[str]) -> None:
        if any(key.startswith(keys.CONFIGS) for key in changed):
            self._use_settings()
        for broker_id, broker in self.image.departed.items():
            if broker_id not in self._remembered:
                self._remembered.add(broker_id)
                asyncio.get_running_loop().call_later(_REMEMBERED_S, self._forget_departed, broker)
        if keys.CONTROLLER in changed and self._is_named_controller():
            self._engine.stats.controller_terms += 1
        for key in changed:
            if key.startswith(keys.BROKERS) or key == keys.FEATURES:
                self._tell_of_strangers()
                break
        if keys.SECRET in changed and self._has_compared:
            self._compare_secret()
        self.roles.changed(changed)
        self.controller.wake()

    def _is_named_controller(self) -> bool:
        named = self.image.controller
        return named is not None and (named.broker_id, named.incarnation) == self._as_candidate()[:2]

    def _as_candidate(self) -> tuple[int, int, int]:
        return self._engine.node_id, self.membership.incarnation, self.membership.lease

    def _topic_rules(self, entry: TopicEntry, replicas: int) -> tuple[int, bool]:
        config = topic_config(entry.name, entry.record.settings, self._engine.topic_defaults)
        return config.least_in_sync(replicas), config.log.flush is Flush.COMMIT

    def _refresh_soon(self) -> None:
        self._tasks.spawn(self._refresh(), "look at the cluster")

    async def _refresh(self) -> None:
        with suppress(MetadataUnavailable):  # the watcher goes on trying
            await self.watcher.refresh()

    async def is_gone(self, topic: str) -> bool:
        """Whether there is no such topic, as of now; or nothing of the kind attached to it, where a name says that."""
        try:
            await self.watcher.refresh()
        except MetadataUnavailable:
            return False
        named = split_name(topic)
        if named is None:
            return topic not in self.image.topics
        entry = self.image.topics.get(named[0])
        return entry is None or named[1] not in entry.record.attached

    def _following(self, broker_id: int) -> Following | None:
        """What is followed of a broker, at the address it has now."""
        broker = self.image.brokers.get(broker_id)
        known = self._followings.get(broker_id)
        if known is not None and (broker is None or known[0].incarnation == broker.incarnation):
            return known[1]
        if known is not None:
            _, following, task = self._followings.pop(broker_id)
            following.close()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        if broker is None or broker_id == self._engine.node_id:
            return None
        following = Following(
            broker_id,
            self._others.connect(broker),
            self._engine.replicas,
            self._clock,
            self._engine.stats,
            self._fail,
            self._leader_lost,
            self.roles.damaged,
            self.roles.give_away,
            self.roles.lock_of,
            self._throttle,
            self._settings.following,
        )
        task = self._tasks.spawn(following.run(), f"follow broker {broker_id}")
        self._followings[broker_id] = broker, following, task
        return following

    async def _leader_lost(self, broker_id: int) -> None:
        known = self._followings.get(broker_id)
        if known is not None:
            await self.membership.suspect(broker_id, known[0].incarnation)

    def look_after(self, broker_id: int) -> None:
        """A broker that follows this one has closed its connection: has its process ended?"""
        broker = self.image.brokers.get(broker_id)
        if broker is not None and broker_id not in self._looked_after:
            self._looked_after.add(broker_id)
            self._tasks.spawn(self._look_after(broker), f"look after broker {broker_id}")

    async def _look_after(self, broker: BrokerRecord) -> None:
        try:
            for _ in range(_REFUSALS):
                await asyncio.sleep(_REFUSED_EVERY_S)
                if not await self._others.refuses(broker.internal_host, broker.internal_port):
                    return
            await self.membership.suspect(broker.broker_id, broker.incarnation)
        finally:
            self._looked_after.discard(broker.broker_id)

    async def _save_watermarks(self) -> None:
        saved: dict[str, int] = {}
        while True:
            await asyncio.sleep(self._settings.watermarks_s)
            self._look_for_damage()
            now = self._watermarks()
            if now != saved:
                try:
                    await self._disk.run(save_watermarks, self._disk, self._directory.path, now)
                    saved = now
                except OSError as error:
                    if not is_shortage(error):
                        raise

    def _look_for_damage(self) -> None:
        for partition in self._engine.topics.all_partitions():
            if partition.log is not None and partition.log.damage is not None:
                self.roles.damaged(partition)

    def _watermarks(self) -> dict[str, int]:
        return {
            watermark_key(partition): partition.high_watermark
            for partition in self._engine.topics.all_partitions()
            if partition.log is not None
        }

    # --- going

    async def leave(self) -> None:
        """Hand over what this broker leads, stop following, take the name off."""
        if not await self.membership.leave(self._settings.leave_s):
            log_.warning("stops although it leads partitions that nobody took over in time")
        await self.roles.stop()
        await self.membership.stop()

    async def stop(self) -> None:
        """Stop for good, the directory clean; `leave` first."""
        await self._stop_followings()
        await self._tasks.cancel_all()
        try:
            await self._disk.run(save_watermarks, self._disk, self._directory.path, self._watermarks())
        except OSError as error:
            log_.warning("high watermarks not saved", error=str(error))
        await self._engine.stop(self.membership.incarnation)

    async def abandon(self) -> None:
        """Stop without a word, as after a failure."""
        await self._tasks.cancel_all()
        self._close_followings()
        await self._engine.abandon()

    def _close_followings(self) -> None:
        for _, following, _ in self._followings.values():
            following.close()

    async def _stop_followings(self) -> None:
        """Let each finish its step: a thread may be writing for it, and who comes next must not write beside it."""
        self._close_followings()
        tasks = {task for _, _, task in self._followings.values()} | self._ending
        if tasks:
            await asyncio.wait(tasks)
