"""What one broker can be told at its start, typed, with its defaults.

Plain dataclasses, because reading settings is part of the start: pydantic-settings alone imports for longer than the
rest of the start takes.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

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


DEFAULT_KAFKA = Address("127.0.0.1", 9092)
DEFAULT_HTTP = Address("127.0.0.1", 8080)
DEFAULT_INTERNAL = Address("127.0.0.1", 9094)


@dataclass(frozen=True, slots=True)
class Node:
    id: int = 1
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Listeners:
    kafka: Address = DEFAULT_KAFKA
    http: Address = DEFAULT_HTTP
    advertised_kafka: Address | None = None  # what Metadata answers; the bound address when not given
    internal: Address = DEFAULT_INTERNAL
    advertised_internal: Address | None = None


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
    replication: int = 3
    lease_s: int = 4
    replica_lag_ms: int = 10_000
    preferred_leader_s: int = 60
    accept_older_store: bool = False
    accept_new_secret: bool = False


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
    logging: Logging = field(default_factory=Logging)
    ignored_env: tuple[str, ...] = ()  # PENSTOCK_ names that are no setting and resemble none
