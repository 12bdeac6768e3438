"""What one broker can be told at its start, typed, with its defaults.

Plain dataclasses, because reading settings is part of the start: pydantic-settings alone imports for longer than the
rest of the start takes.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, cast

from penstock.server.doors.table import KINDS, Opens

MIB = 1024 * 1024
EMBEDDED_STORE = "embedded"
ENV_SECRET = "PENSTOCK_CLUSTER_SECRET"  # noqa: S105 - the name of one
WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - named here to be refused


class Address(NamedTuple):
    """Where to listen, or what to tell clients; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name can point anywhere, tomorrow even elsewhere than today


def standard_address(protocol: str) -> Address:
    """Where a start that does not say listens: on this machine only."""
    return Address("127.0.0.1", KINDS[protocol].port)


DEFAULT_KAFKA = standard_address("kafka")
DEFAULT_HTTP = standard_address("http")
DEFAULT_INTERNAL = standard_address("internal")
ADVERTISED = "advertised_"


@dataclass(frozen=True, slots=True)
class Node:
    id: int = 1
    rack: str | None = None


class ShownTls(NamedTuple):
    """A certificate and its key, for who asks for one name."""

    certificate: Path
    key: Path
    password_file: Path | None = None


@dataclass(frozen=True, slots=True)
class ListenerTls:
    """What a listener shows, and whom it trusts; see `net.certificates.TlsSettings`.

    Attributes:
        names: rules from the name in a client's certificate to a user's (`security.certificate_rules`).
        sni: what is shown instead to who asks for a name; `*.example.com` is any name one level below.
    """

    certificate: Path
    key: Path
    password_file: Path | None = None
    authority: Path | None = None
    revoked: Path | None = None
    client_auth: str = "none"
    names: str = "DEFAULT"
    sni: Mapping[str, ShownTls] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Listener:
    """One place where a broker listens.

    Attributes:
        name: that of its protocol for those with a short form (`listeners.kafka`, `--kafka`).
        advertised: the address peers are told, when it is not the one bound.
        auth: by what peers may prove who they are; nobody is asked if there is nothing.
        tls: None in plain.
    """

    name: str
    protocol: str
    address: Address
    advertised: Address | None = None
    auth: tuple[str, ...] = ()
    tls: ListenerTls | None = None

    def __str__(self) -> str:
        told = f" (advertised {self.advertised})" if self.advertised is not None else ""
        return f"{self.name}={self.protocol}://{self.address}{told}"

    @property
    def is_guarded(self) -> bool:
        """Whether its protocol always asks who comes."""
        return KINDS[self.protocol].is_guarded

    @property
    def key(self) -> str:
        """What it is called in errors."""
        return f"listeners.{self.name}" if self.name in KINDS else f"listener {self.name}"


@dataclass(frozen=True, slots=True)
class Listeners:
    """Those that every broker has, or every one of a cluster, and `more`.

    Attributes:
        is_named: whether anybody has named one, if only by what it is anyway.
        auth, tls: see `Listener`, of those that every broker has, by name.
    """

    kafka: Address = DEFAULT_KAFKA
    http: Address = DEFAULT_HTTP
    advertised_kafka: Address | None = None  # what Metadata answers; the bound address when not given
    internal: Address = DEFAULT_INTERNAL
    advertised_internal: Address | None = None
    advertised_http: Address | None = None
    more: tuple[Listener, ...] = ()
    is_named: bool = False
    auth: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    tls: Mapping[str, ListenerTls] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_standard(self) -> bool:
        """Whether it is left to the broker where to listen: at the standard port of each protocol."""
        return self == Listeners()

    def short_form(self, form: str) -> Address | None:
        """The value of `listeners.FORM`: where a listener with a protocol's name listens, or what peers are told."""
        if form in Listeners.__dataclass_fields__:
            return cast(Address | None, getattr(self, form))
        name = form.removeprefix(ADVERTISED)
        found = next((each for each in self.more if each.name == name), None)
        if found is None:
            return None
        return found.address if form == name else found.advertised

    def listed(self, *, in_cluster: bool) -> tuple[Listener, ...]:
        """All that a broker opens, in the order in which it tells of them."""
        found = [
            Listener("kafka", "kafka", self.kafka, self.advertised_kafka),
            Listener("http", "http", self.http, self.advertised_http),
            *self.more,
        ]
        if self.is_standard:
            unnamed = [name for name, kind in KINDS.items() if kind.opens is Opens.IF_NAMED]
            found += [Listener(name, name, standard_address(name)) for name in unnamed]
        found.append(Listener("internal", "internal", self.internal, self.advertised_internal))
        found = [
            replace(each, auth=self.auth.get(each.name, each.auth), tls=self.tls.get(each.name, each.tls))
            for each in found
        ]
        return tuple(each for each in found if in_cluster or KINDS[each.protocol].opens is not Opens.IN_CLUSTER)

    @property
    def ask(self) -> bool:
        """Whether peers of any of them have to say who they are, besides brokers."""
        return any(each.auth for each in self.listed(in_cluster=False))


@dataclass(frozen=True, slots=True)
class Cluster:
    """How brokers find and trust each other; a broker without a `store` is on its own."""

    store: str = ""
    members: tuple[str, ...] = ()
    secret_file: Path | None = None
    etcd_program: str = ""
    etcd_ca: Path | None = None
    etcd_cert: Path | None = None
    etcd_key: Path | None = None
    etcd_user: str = ""
    etcd_password_file: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_crl: Path | None = None
    replication: int = 3
    lease_s: int = 4
    replica_lag_ms: int = 10_000
    preferred_leader_s: int = 60
    accept_older_store: bool = False
    accept_new_secret: bool = False

    @property
    def store_in_plain(self) -> str | None:
        """A host beyond this one by which the metadata store is reached without TLS, if there is one."""
        if self.etcd_ca is not None or self.etcd_cert is not None or self.store.startswith("etcds://"):
            return None
        if self.store == EMBEDDED_STORE:
            hosts = [member.partition("@")[2].rsplit(":", 2)[0] for member in self.members]
        else:
            places = self.store.partition("://")[2].partition("/")[0]
            hosts = [re.sub(r":[0-9]+$", "", place) for place in places.split(",") if place]
        hosts = [host.removeprefix("[").removesuffix("]") for host in hosts]
        return next((host for host in hosts if not Address(host, 0).is_loopback), None)


@dataclass(frozen=True, slots=True)
class Security:
    """Who may do what."""

    mode: str = ""
    super_users: tuple[str, ...] = ()
    admin_password_file: Path | None = None
    seal_key_file: Path | None = None
    other_seal_key_files: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Topics:
    auto_create: bool = True
    internal_partitions: int = 16


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a topic gets when its creator does not say: `defaults.topic.*`, with `partitions` apart."""

    topic: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    partitions: int = 6


@dataclass(frozen=True, slots=True)
class Limits:
    max_connections: int = 10_000
    max_request_bytes: int = 100 * MIB
    max_in_flight_requests: int = 64
    max_receive_bytes: int = 512 * MIB
    max_answer_bytes: int = 512 * MIB


@dataclass(frozen=True, slots=True)
class Storage:
    upkeep_ms: int = 5000
    compaction_bytes_per_second: int = 32 * MIB
    scrub_hours: int = 24
    scrub_bytes_per_second: int = 16 * MIB


@dataclass(frozen=True, slots=True)
class Groups:
    initial_rebalance_delay_ms: int = 300
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 5_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_session_timeout_ms: int = 45_000
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Transactions:
    max_timeout_ms: int = 15 * 60 * 1000
    id_expiration_ms: int = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Logging:
    level: str = "info"
    format: str = "text"


@dataclass(frozen=True, slots=True)
class Config:
    """Everything one broker is told at its start."""

    data_dir: Path = Path("data")
    insecure: bool = False
    node: Node = field(default_factory=Node)
    listeners: Listeners = field(default_factory=Listeners)
    topics: Topics = field(default_factory=Topics)
    defaults: Defaults = field(default_factory=Defaults)
    limits: Limits = field(default_factory=Limits)
    storage: Storage = field(default_factory=Storage)
    groups: Groups = field(default_factory=Groups)
    transactions: Transactions = field(default_factory=Transactions)
    cluster: Cluster = field(default_factory=Cluster)
    security: Security = field(default_factory=Security)
    logging: Logging = field(default_factory=Logging)
    ignored_env: tuple[str, ...] = ()  # PENSTOCK_ names that are no setting and resemble none

    @property
    def exposed(self) -> tuple[Listener, ...]:
        """Listeners that other machines can reach, and that lack TLS or a login: `insecure` has to allow them."""
        return tuple(each for each in self._reachable if not (each.is_guarded or (each.tls is not None and each.auth)))

    @property
    def exposed_store(self) -> str | None:
        """A host by which the metadata store is reached in plain, although users and rules are kept there: likewise."""
        return self.cluster.store_in_plain if self.security_mode == "closed" else None

    @property
    def _reachable(self) -> list[Listener]:
        listed = self.listeners.listed(in_cluster=bool(self.cluster.store))
        return [each for each in listed if not each.address.is_loopback]

    @property
    def security_mode(self) -> str:
        """As it was set; else `closed` if any listener asks who somebody is, or if other machines can reach one.

        Where `insecure` lets them in without asking anybody, rules have nobody to decide about.
        """
        is_closed = self.listeners.ask or (bool(self._reachable) and not self.exposed)
        return self.security.mode or ("closed" if is_closed else "open")

    @property
    def has_guard(self) -> bool:
        """Whether there are users and rules."""
        return self.security_mode != "open" or self.listeners.ask
