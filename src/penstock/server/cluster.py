"""A broker's part in a cluster, out of the configuration: its store, and its links to others."""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import obstacles
from penstock.cluster.image import BrokerRecord, Served
from penstock.cluster.metadata.etcd import EtcdStore, Tls
from penstock.cluster.metadata.etcd_member import EtcdMember, directory_in, parse_members, url_of
from penstock.cluster.node import ClusterNode, NodeSettings, Others
from penstock.cluster.secret import ClusterSecret
from penstock.cluster.term import ControllerSettings
from penstock.engine.engine import Engine
from penstock.engine.producer_ids import ProducerIds
from penstock.engine.settings import Ports
from penstock.errors import WrongSettings
from penstock.extras import install_line
from penstock.net.certificates import Certificates, ClientAuth, KeyPair, TlsSettings
from penstock.net.tcp import TcpNetwork
from penstock.observe.logs import get_logger
from penstock.ports.clock import Clock
from penstock.ports.disk import Disk
from penstock.ports.metadata import MetadataStore, MetadataUnavailable
from penstock.protocols.internal.broker_calls import BrokerCalls, GivenAcks
from penstock.protocols.internal.broker_certificate import check_files
from penstock.protocols.internal.forwarding import ForwardedCalls
from penstock.protocols.internal.identity import Identity, broker_name
from penstock.protocols.internal.peers import Peers
from penstock.protocols.internal.reading import AskedReads
from penstock.protocols.internal.reception import Reception
from penstock.protocols.internal.share_orders import GivenOrders
from penstock.protocols.internal.share_start import AskedStarts
from penstock.protocols.kafka.handlers import Context
from penstock.server.cluster_gauges import cluster_gauges
from penstock.server.config import EMBEDDED_STORE, ENV_SECRET, Cluster, Config
from penstock.server.doors.opening import Doors
from penstock.server.doors.table import Stage
from penstock.server.health import cluster_troubles, loneliness
from penstock.storage.data_directory import DataDirectory

if TYPE_CHECKING:
    from penstock.security.secret import Secret

log_ = get_logger("cluster")
_ADMITTED_S = 30.0
_KEEP_IDS_S = 10.0
_SHORTEST_SECRET = 16
_TOLD_FOR_S = 60.0
"""How long a login that failed is told of; a broker tries again each second."""


class ClusterMember:
    """Started in the order of its methods; stopped by `leave`, `stop`, `close`."""

    def __init__(
        self,
        config: Config,
        network: TcpNetwork,
        clock: Clock,
        disk: Disk,
        directory: DataDirectory,
        fail: Callable[[BaseException], None],
        leave_s: float,
        doors: Doors,
    ) -> None:
        self._config = config
        self._leave_s = leave_s
        self._doors = doors
        self._cluster = config.cluster
        self._network = network
        self._clock = clock
        self._disk = disk
        self._directory = directory
        self._fail = fail
        self._tls = _tls_settings(config.cluster)
        self._certificates: Certificates | None = None
        self._identity = _identity(config, needed=self._tls is None)
        self._etcd: EtcdMember | None = None
        self._store_url = config.cluster.store
        self._reception: Reception | None = None
        self._peers: Peers | None = None
        self.node: ClusterNode | None = None
        self._keeping_ids: asyncio.Task[None] | None = None
        self._engine: Engine | None = None

    def load_certificates(self) -> Certificates | None:
        """What brokers show each other; None if they go by a secret alone. Raises `WrongSettings`."""
        if self._tls is not None:
            self._certificates = Certificates(self._tls, self._clock)
            listed = self._config.listeners.listed(in_cluster=True)
            trusted = {each.key: _text(each.tls.authority) for each in listed if each.tls and each.tls.authority}
            check_files(self._tls.shown.certificate, _text(self._cluster.tls_ca), trusted)
        return self._certificates

    def sealing_key(self) -> "Secret | None":
        """Made of the cluster's secret, if there is one."""
        from penstock.security.sealing import derive_key
        from penstock.security.secret import Secret

        if self._identity is None:
            return None
        return derive_key(Secret(self._identity.store_key), "sealing 1")

    def make_reception(self, engine: Engine) -> Reception:
        """Who lets other brokers in."""
        self._engine = engine
        self._reception = Reception(engine, self._clock, self._identity, self._members)
        return self._reception

    def _members(self) -> Iterable[int]:
        return self.node.image.members if self.node is not None else ()

    async def open_store(self) -> MetadataStore:
        """The cluster's metadata, with an etcd member of our own beside it if that is wanted. Raises StartupError."""
        cluster, node_id = self._cluster, self._config.node.id
        tls = None
        if cluster.etcd_ca is not None or cluster.etcd_cert is not None:  # its key comes with it
            tls = Tls(_text(cluster.etcd_ca), _text(cluster.etcd_cert), _text(cluster.etcd_key))
        if cluster.store == EMBEDDED_STORE:
            members = parse_members(cluster.members)
            self._store_url = url_of(members, first=node_id, is_secure=tls is not None)
            if any(member.node_id == node_id for member in members):
                self._etcd = EtcdMember(
                    node_id, members, directory_in(self._directory.path), program=cluster.etcd_program, tls=tls
                )
                await self._etcd.start()
        password = _read_secret(cluster.etcd_password_file) if cluster.etcd_password_file is not None else ""
        patience_s = 120.0 if self._etcd is not None else 30.0  # the other members may start later
        try:
            return await EtcdStore.open(
                self._store_url, tls=tls, user=cluster.etcd_user, password=password, patience_s=patience_s
            )
        except BaseException:
            await self.close()
            raise

    async def join(
        self, engine: Engine, store: MetadataStore, context: Context, listen: Callable[[], Awaitable[Served]]
    ) -> None:
        """Recover, listen for the other brokers and for clients, and join the cluster. Raises StartupError.

        Args:
            listen: begins to listen for clients; where they are told to connect.
        """
        config, cluster = self._config, self._cluster
        context.file_defaults = dict(engine.topic_defaults)
        await self._doors.open(Stage.BROKERS)
        randomness = random.SystemRandom()
        internal = self._doors.advertised()["internal"]
        self._peers = peers = Peers(
            self._network,
            self._clock,
            config.node.id,
            lambda broker_id: node.image.reachable().get(broker_id),
            lambda: node.membership.incarnation,
            identity=self._identity,
            tls=self._certificates,
        )
        self.node = node = ClusterNode(
            engine=engine,
            ports=Ports(self._disk, self._clock, randomness, store),
            directory=self._directory,
            me=BrokerRecord(
                config.node.id, "", 0, internal.host, internal.port, config.node.rack, incarnation=0, clean=True
            ),
            others=Others(peers.source, peers.probe, peers.refuses, peers.recognises),
            fail=self._fail,
            secret=ClusterSecret(self._identity.store_key) if self._identity is not None else None,
            settings=NodeSettings(
                lease_s=cluster.lease_s,
                replica_lag_s=cluster.replica_lag_ms / 1000,
                leave_s=self._leave_s,
                default_replication=cluster.replication,
                default_partitions=config.defaults.partitions,
                internal_partitions=config.topics.internal_partitions,
                accept_older_store=cluster.accept_older_store,
                accept_new_secret=cluster.accept_new_secret,
                store_name=self._store_url,
                controller=ControllerSettings(preferred_after_s=cluster.preferred_leader_s),
            ),
        )
        engine.transactions.other_brokers = BrokerCalls(peers.to, node.is_gone)
        engine.forwarding.other_brokers = ForwardedCalls(peers.to_publish)
        engine.elsewhere.other_brokers = AskedReads(peers.to_read)
        engine.sharing.other_coordinators = AskedStarts(peers.to)
        engine.share_ledgers.other_leaders = GivenOrders(peers.to_order)
        engine.transactional_acks.other_leaders = GivenAcks(peers.to_order)
        engine.transactional_acks.check_all_know = node.image.check_acks_in_transactions
        context.image = node.image
        context.operations = node.operations
        context.is_isolated = lambda: node.is_isolated
        context.broker_lost = node.look_after
        context.refusals = self.refusals
        await node.start(listen)
        self._keeping_ids = asyncio.get_running_loop().create_task(_keep_ids(engine.producer_ids), name="keep ids")

    async def until_admitted(self) -> None:
        assert self.node is not None
        if not await self.node.is_admitted(_ADMITTED_S):
            log_.warning("not admitted by a controller yet; goes on waiting", waited_s=_ADMITTED_S)

    def not_ready(self) -> list[str]:
        """That no other broker takes this one for one of the cluster, and that it can serve nothing."""
        if self.node is None or self._peers is None or self._engine is None:
            return []
        is_admitted = self.node.image.is_live(self._config.node.id)
        return list(loneliness(self._peers.words(), self._engine, is_admitted=is_admitted))

    def refusals(self) -> list[str]:
        """Brokers that are not taken for ones of the cluster, here or by others."""
        if self.node is None or self._peers is None or self._reception is None:
            return []
        image, since = self.node.image, self._clock.monotonic() - _TOLD_FOR_S
        logins = self._reception.refused
        refused = [each for each in sorted(image.members) if logins.get(broker_name(each), since) > since]
        return list(cluster_troubles(self._config.node.id, image, self._peers.words(), refused))

    def gauges(self, engine: Engine) -> dict[str, float]:
        """What is true of the cluster now, as far as this broker knows."""
        if self.node is None:
            return {}
        return cluster_gauges(engine, self.node, self._cluster.lease_s)

    # --- going

    async def leave(self) -> None:
        if self.node is not None:
            await self.node.leave()

    async def stop(self, *, cleanly: bool) -> None:
        if self._keeping_ids is not None:
            self._keeping_ids.cancel()
        await self._doors.close(Stage.BROKERS)
        if self.node is not None:
            await (self.node.stop() if cleanly else self.node.abandon())
        if self._peers is not None:
            self._peers.close()

    async def close(self) -> None:
        """Let go of etcd, when nobody here needs the store any more."""
        if self._etcd is not None:
            await self._etcd.close()


def _tls_settings(cluster: Cluster) -> TlsSettings | None:
    if cluster.tls_cert is None or cluster.tls_key is None or cluster.tls_ca is None:
        return None
    shown = KeyPair(str(cluster.tls_cert), str(cluster.tls_key))
    revoked = str(cluster.tls_crl) if cluster.tls_crl is not None else None
    return TlsSettings(shown, authority=str(cluster.tls_ca), revoked=revoked, client_auth=ClientAuth.REQUIRE)


async def _keep_ids(producer_ids: ProducerIds) -> None:
    """Until cancelled."""
    while True:
        with suppress(MetadataUnavailable):
            await producer_ids.keep_some()
        await asyncio.sleep(_KEEP_IDS_S)


def _identity(config: Config, *, needed: bool) -> Identity | None:
    file = config.cluster.secret_file
    secret = _read_secret(file) if file is not None else os.environ.get(ENV_SECRET, "").strip()
    if not secret:
        if not needed:
            return None
        raise WrongSettings(
            "brokers of a cluster prove themselves to each other, and nothing says how: give all of them the same "
            f"secret (--cluster-secret-file FILE, or {ENV_SECRET}), or certificates (cluster.tls_ca, tls_cert, tls_key)"
        )
    if len(secret) < _SHORTEST_SECRET:
        where = str(file) if file is not None else ENV_SECRET
        raise WrongSettings(
            f"the cluster secret in {where} has {len(secret)} characters; use {_SHORTEST_SECRET} or more, such as "
            "`openssl rand -hex 24` makes"
        )
    try:
        return Identity(secret, broker_name(config.node.id))
    except ImportError as error:
        raise WrongSettings(f"{error}. Install what a cluster needs with {install_line('cluster')}") from error


def _read_secret(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise obstacles.refusal(f"cannot read {obstacles.tell_path(error, 'file')}", error) from error
    except UnicodeDecodeError as error:
        raise WrongSettings(f"cannot read {path}: it is no text; choose another file") from error


def _text(path: Path | None) -> str:
    return str(path) if path is not None else ""
