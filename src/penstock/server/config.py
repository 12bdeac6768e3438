"""The broker's settings, typed: defaults, then a YAML file, then the environment, then flags; the last wins.

Every layer is first flattened to dotted keys, each value keeping the place it came from, so an error can
always name the key, the value and the source. Plain dataclasses, because reading settings is part of the
start: pydantic-settings alone imports for longer than the rest of the start takes. YAML is imported only when
there is YAML to read.
"""

import difflib
import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, cast

from penstock.server.config_layers import ConfigError, Given, read_file, read_map, show

ENV_PREFIX = "PENSTOCK_"
ENV_CONFIG_FILE = "PENSTOCK_CONFIG"
TOPIC_PREFIX = "defaults.topic."
PARTITIONS_KEY = "defaults.topic.partitions"
DEFAULT_SOURCE = "default"

MIB = 1024 * 1024
ENV_SECRET = "PENSTOCK_CLUSTER_SECRET"  # noqa: S105 - the name of one
EMBEDDED_STORE = "embedded"

# The client side of the command reads these; a broker started from the same shell must not stumble over them.
_CLIENT_ENV = frozenset({"PENSTOCK_SERVER", "PENSTOCK_CONTEXT", "PENSTOCK_API_KEY", ENV_CONFIG_FILE, ENV_SECRET})
# Kubernetes adds such names to every container when a Service is called penstock or penstock-something.
_SERVICE_LINK_ENV = re.compile(r"^PENSTOCK_(.*_)?(SERVICE_(HOST|PORT)(_.*)?|PORT(_\d+_(TCP|UDP|SCTP)(_.*)?)?)$")
_TOPIC_KEY = re.compile(r"^[a-z][a-z0-9]*([.-][a-z0-9]+)*$")
_WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - named here to be refused


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


@dataclass(frozen=True, slots=True)
class Storage:
    upkeep_ms: int = 5000
    compaction_bytes_per_second: int = 32 * MIB


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


class Setting(NamedTuple):
    """One key: how its value is read (raises ValueError), what is allowed, what it does."""

    key: str
    parse: Callable[[object], object]
    allowed: str
    purpose: str


def _parse_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("true", "yes", "on", "1"):
        return True
    if text in ("false", "no", "off", "0"):
        return False
    raise ValueError


def _parse_path(value: object) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError
    return Path(value)


def _parse_text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value.strip()


def _parse_store(value: object) -> str:
    text = _parse_text(value)
    if text != EMBEDDED_STORE and not re.match(r"etcds?://[^/\s]+(/\S*)?$", text):
        raise ValueError
    return text


def _parse_list(value: object) -> tuple[str, ...]:
    items = value if isinstance(value, list) else str(value).split(",")
    texts = tuple(_parse_text(item) for item in items)
    if not texts:
        raise ValueError
    return texts


def _whole(low: int, high: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, bool | float) or not isinstance(value, int | str):
            raise ValueError
        number = int(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return parse


def _one_of(*choices: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        text = str(value).lower()
        if text not in choices:
            raise ValueError
        return text

    return parse


def parse_address(value: object, *, lowest_port: int = 0) -> Address:
    """Read `host:port` or `[v6]:port`.

    Raises:
        ValueError: The text is neither.
    """
    if not isinstance(value, str):
        raise ValueError("not text")
    host, colon, port_text = value.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or not host or (":" in host) != bracketed or re.search(r"[\s/\[\]@]", host):
        raise ValueError("not host:port")
    if not re.fullmatch(r"[0-9]{1,5}", port_text) or not lowest_port <= int(port_text) <= 65535:
        raise ValueError("port out of range")
    return Address(host, int(port_text))


def _parse_advertised(value: object) -> Address:
    address = parse_address(value, lowest_port=1)
    if address.host in _WILDCARDS:
        raise ValueError("clients cannot connect to a wildcard")
    return address


_INT32 = (1 << 31) - 1
_MILLISECONDS = "a whole number of milliseconds"
_ADDRESS = "host:port, such as 127.0.0.1:9092 or [::1]:9092 (port 0: any free one)"

SETTINGS: tuple[Setting, ...] = (
    Setting("data_dir", _parse_path, "a directory path", "where logs and metadata are kept"),
    Setting("insecure", _parse_bool, "true or false", "allow listeners beyond loopback without authentication"),
    Setting("node.id", _whole(0, 2**31 - 1), "a whole number from 0 to 2147483647", "this broker's id"),
    Setting("listeners.kafka", parse_address, _ADDRESS, "where Kafka clients connect"),
    Setting("listeners.http", parse_address, _ADDRESS, "where health and metrics answer"),
    Setting(
        "listeners.advertised_kafka",
        _parse_advertised,
        "host:port that clients can reach, no wildcard, port 1 to 65535",
        "the address clients are told to use, when it is not the one bound",
    ),
    Setting("listeners.internal", parse_address, _ADDRESS, "where the other brokers of a cluster connect"),
    Setting(
        "listeners.advertised_internal",
        _parse_advertised,
        "host:port that brokers can reach, no wildcard, port 1 to 65535",
        "the address other brokers are told to use, when it is not the one bound",
    ),
    Setting("node.rack", _parse_text, "a name", "which rack or zone this broker is in; replicas are kept apart by it"),
    Setting(
        "cluster.store",
        _parse_store,
        "etcd://host:port,host:port/prefix (etcds:// with TLS), or embedded",
        "where a cluster keeps its metadata; embedded: etcd members that the brokers start themselves",
    ),
    Setting(
        "cluster.members",
        _parse_list,
        "node-id@host:client-port:peer-port, separated by commas",
        "with embedded: which brokers run an etcd member, the same for all",
    ),
    Setting(
        "cluster.secret_file",
        _parse_path,
        "a file path",
        f"holds what brokers prove themselves to each other by, unless {ENV_SECRET} does",
    ),
    Setting("cluster.etcd_program", _parse_text, "a path", "with embedded: the etcd to run, if not the one in PATH"),
    Setting("cluster.etcd_ca", _parse_path, "a file path", "certificates that etcd's must come from"),
    Setting("cluster.etcd_cert", _parse_path, "a file path", "our certificate for etcd"),
    Setting("cluster.etcd_key", _parse_path, "a file path", "its private key"),
    Setting("cluster.etcd_user", _parse_text, "a name", "our user in etcd"),
    Setting("cluster.etcd_password_file", _parse_path, "a file path", "holds that user's password"),
    Setting("cluster.tls_ca", _parse_path, "a file path", "certificates that other brokers' must come from"),
    Setting("cluster.tls_cert", _parse_path, "a file path", "our certificate for other brokers"),
    Setting("cluster.tls_key", _parse_path, "a file path", "its private key"),
    Setting(
        "cluster.replication",
        _whole(1, 100),
        "a whole number from 1 to 100",
        "replicas of a new topic, if there are as many brokers",
    ),
    Setting(
        "cluster.lease_s",
        _whole(2, 600),
        "a whole number of seconds from 2 to 600",
        "a broker that is silent for so long is taken for dead",
    ),
    Setting(
        "cluster.replica_lag_ms",
        _whole(1000, _INT32),
        _MILLISECONDS,
        "a replica that is behind for so long is in sync no more",
    ),
    Setting(
        "cluster.preferred_leader_s",
        _whole(1, _INT32),
        "a whole number of seconds",
        "after so long without changes partitions go back to the brokers that should lead them",
    ),
    Setting(
        "cluster.accept_older_store",
        _parse_bool,
        "true or false",
        "go on although the metadata store is older than this broker remembers: changes since then are lost",
    ),
    Setting("topics.auto_create", _parse_bool, "true or false", "create a topic when a client first asks for it"),
    Setting(
        "topics.internal_partitions",
        _whole(1, 1000),
        "a whole number from 1 to 1000",
        "partitions of each internal topic, when it is first created",
    ),
    Setting(PARTITIONS_KEY, _whole(1, 10_000), "a whole number from 1 to 10000", "partitions of a new topic"),
    Setting(
        "limits.max_connections",
        _whole(1, 1_000_000),
        "a whole number from 1 to 1000000",
        "client connections held at once",
    ),
    Setting(
        "limits.max_request_bytes",
        _whole(1024, 1024 * MIB),
        "a number of bytes from 1024 to 1073741824",
        "the largest request a client may send",
    ),
    Setting(
        "limits.max_in_flight_requests",
        _whole(1, 10_000),
        "a whole number from 1 to 10000",
        "requests one connection may have open before the broker stops reading from it",
    ),
    Setting(
        "storage.upkeep_ms",
        _whole(10, 3_600_000),
        "a whole number of milliseconds from 10 to 3600000",
        "how often logs are looked at for retention, checkpoints and old segments",
    ),
    Setting(
        "storage.compaction_bytes_per_second",
        _whole(64 * 1024, 1 << 40),
        "a whole number of bytes from 65536",
        "what compaction may read and write together",
    ),
    Setting(
        "groups.initial_rebalance_delay_ms",
        _whole(0, 3_600_000),
        _MILLISECONDS,
        "how long an empty classic group waits for more members after one has come",
    ),
    Setting(
        "groups.min_session_timeout_ms",
        _whole(1, _INT32),
        _MILLISECONDS,
        "the shortest session time-out a member of a classic group may ask for",
    ),
    Setting(
        "groups.max_session_timeout_ms",
        _whole(1, _INT32),
        _MILLISECONDS,
        "the longest session time-out a member of a classic group may ask for",
    ),
    Setting("groups.max_size", _whole(1, 100_000), "a whole number from 1 to 100000", "members one group may have"),
    Setting(
        "groups.consumer_heartbeat_interval_ms",
        _whole(50, _INT32),
        _MILLISECONDS,
        "how often members of groups with the consumer protocol report; a rebalance takes some of these",
    ),
    Setting(
        "groups.consumer_session_timeout_ms",
        _whole(100, _INT32),
        _MILLISECONDS,
        "a member of a group with the consumer protocol that is silent for so long is taken for dead",
    ),
    Setting(
        "groups.offsets_retention_ms",
        _whole(1, 1 << 53),
        _MILLISECONDS,
        "how long committed offsets are kept when their group has no members",
    ),
    Setting(
        "transactions.max_timeout_ms",
        _whole(1, _INT32),
        _MILLISECONDS,
        "the longest transaction time-out a producer may ask for",
    ),
    Setting(
        "transactions.id_expiration_ms",
        _whole(1, 1 << 53),
        _MILLISECONDS,
        "a transactional id nobody used for so long is forgotten",
    ),
    Setting(
        "logging.level",
        _one_of("debug", "info", "warning", "error"),
        "one of debug, info, warning, error",
        "how much is logged",
    ),
    Setting("logging.format", _one_of("text", "json"), "one of text, json", "the form of a log line"),
)
_BY_KEY: Mapping[str, Setting] = {setting.key: setting for setting in SETTINGS}
_GROUPS = frozenset(key.rpartition(".")[0] for key in _BY_KEY if "." in key) | {"defaults"}
_ALL_NAMES = (*_BY_KEY, *sorted(_GROUPS))


def load(
    *,
    file: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Given] | None = None,
) -> Config:
    """Read and check all settings.

    Args:
        file: A YAML file; `PENSTOCK_CONFIG` names one when this is not given.
        env: The environment; the process's own when not given.
        flags: Dotted keys given on the command line, each with the flag as its source.

    Raises:
        ConfigError: One setting is wrong, or a listener reaches beyond loopback without `insecure`.
    """
    given, ignored = _gather(file, env, flags)
    return _check_exposure(_build(given, ignored))


class Effective(NamedTuple):
    """One setting as a broker would have it, and where that was said."""

    key: str
    value: object
    source: str
    """`default`, or the file, environment variable or flag it came from."""
    purpose: str

    @property
    def is_default(self) -> bool:
        return self.source == DEFAULT_SOURCE


def explain(
    *,
    file: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Given] | None = None,
) -> list[Effective]:
    """Every setting that `load` would return, topic defaults that were given included.

    Raises:
        ConfigError: as `load` does.
    """
    given, ignored = _gather(file, env, flags)
    config = _check_exposure(_build(given, ignored))
    found = []
    for setting in SETTINGS:
        source = given[setting.key].source if setting.key in given else DEFAULT_SOURCE
        found.append(Effective(setting.key, _value_of(config, setting.key), source, setting.purpose))
    for name, value in sorted(config.defaults.topic.items()):
        key = TOPIC_PREFIX + name
        found.append(Effective(key, value, given[key].source, f"default of the topic setting {name}"))
    return found


def find_problems(
    *,
    file: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Given] | None = None,
) -> tuple[list[ConfigError], dict[str, Given]]:
    """All that is wrong, where `load` stops at the first; and the settings given that are right by themselves."""
    problems: list[ConfigError] = []
    try:
        given, ignored = _gather(file, env, flags, problems)
    except ConfigError as error:
        return [*problems, error], {}
    sound: dict[str, Given] = {}
    for key, each in given.items():
        try:
            _build({key: each}, ())
        except ConfigError as error:
            problems.append(error)
        else:
            sound[key] = each
    try:
        _check_exposure(_build(sound, ignored))
    except ConfigError as error:
        problems.append(error)
    return problems, sound


def _gather(
    file: Path | str | None,
    env: Mapping[str, str] | None,
    flags: Mapping[str, Given] | None,
    problems: list[ConfigError] | None = None,
) -> tuple[dict[str, Given], tuple[str, ...]]:
    """All layers, flattened, the last one winning, and the environment variables that are no setting."""
    env = os.environ if env is None else env
    file = file or env.get(ENV_CONFIG_FILE) or None
    given: dict[str, Given] = {}
    if file is not None:
        given.update(read_file(Path(file), env, problems))
    from_env, ignored = _read_env(env)
    given.update(from_env)
    given.update(flags or {})
    return given, ignored


def _value_of(config: Config, key: str) -> object:
    if key == PARTITIONS_KEY:
        return config.defaults.partitions
    value: object = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _build(given: Mapping[str, Given], ignored_env: tuple[str, ...]) -> Config:
    values: dict[str, object] = {}
    topic: dict[str, str] = {}
    for key, (value, source) in given.items():
        setting = _BY_KEY.get(key)
        if setting is not None:
            values[key] = _parse(setting, value, source)
        elif key.startswith(TOPIC_PREFIX):
            topic[key.removeprefix(TOPIC_PREFIX)] = _topic_value(key, value, source)
        else:
            raise _unknown(key, value, source)

    def group(prefix: str) -> dict[str, object]:
        return {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}

    top = {key: value for key, value in values.items() if "." not in key}
    partitions = cast(int, values.get(PARTITIONS_KEY, Defaults.__dataclass_fields__["partitions"].default))
    return Config(
        **top,  # type: ignore[arg-type]  # each value came out of its own parser
        node=Node(**group("node.")),  # type: ignore[arg-type]
        listeners=Listeners(**group("listeners.")),  # type: ignore[arg-type]
        topics=Topics(**group("topics.")),  # type: ignore[arg-type]
        defaults=Defaults(topic=MappingProxyType(topic), partitions=partitions),
        limits=Limits(**group("limits.")),  # type: ignore[arg-type]
        storage=Storage(**group("storage.")),  # type: ignore[arg-type]
        groups=Groups(**group("groups.")),  # type: ignore[arg-type]
        transactions=Transactions(**group("transactions.")),  # type: ignore[arg-type]
        cluster=Cluster(**group("cluster.")),  # type: ignore[arg-type]
        logging=Logging(**group("logging.")),  # type: ignore[arg-type]
        ignored_env=ignored_env,
    )


def _parse(setting: Setting, value: object, source: str) -> object:
    try:
        return setting.parse(value)
    except ValueError:
        raise ConfigError(
            f"{setting.key} = {show(value)} (from {source}) is not allowed: expected {setting.allowed}"
        ) from None


def topic_value(key: str, given: Given) -> str:
    """A topic default as the text the engine gets. Raises `ConfigError`."""
    return _topic_value(key, given.value, given.source)


def _topic_value(key: str, value: object, source: str) -> str:
    """A topic default as the text a Kafka client would send for it; the engine checks key and value."""
    name = key.removeprefix(TOPIC_PREFIX)
    if not _TOPIC_KEY.match(name):
        raise ConfigError(
            f"{key} = {show(value)} (from {source}): {name!r} is no topic setting's name; "
            "expected lower-case words joined by dots, such as retention.ms"
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and value and all(isinstance(item, str | int) for item in value):
        return ",".join(str(item) for item in value)
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"{key} = {show(value)} (from {source}) is not allowed: expected a text, number, true or false")


def _unknown(key: str, value: object, source: str) -> ConfigError:
    if key in _GROUPS:
        members = ", ".join(name for name in _BY_KEY if name.startswith(key + "."))
        return ConfigError(f"{key} = {show(value)} (from {source}) is a group, not a setting; it holds {members}")
    close = _nearest(key)
    if close:
        hint = f"did you mean {close}?"
    else:
        group = key.rpartition(".")[0]
        names = [name for name in _BY_KEY if group in _GROUPS and name.startswith(group + ".")]
        hint = "there is " + ", ".join(names or _ALL_NAMES)
    return ConfigError(f"{key} = {show(value)} (from {source}): no such setting; {hint}")


def _nearest(key: str) -> str | None:
    """The key that was probably meant. A mistyped first word is mended alone, whatever follows it."""
    head, _, rest = key.partition(".")
    for known in difflib.get_close_matches(head, {name.partition(".")[0] for name in _ALL_NAMES}, n=1):
        mended = f"{known}.{rest}"
        if mended in _BY_KEY or (mended.startswith(TOPIC_PREFIX) and head != known):
            return mended
    return next(iter(difflib.get_close_matches(key, _BY_KEY, n=1)), None)


def _check_exposure(config: Config) -> Config:
    """A door without a lock is for this machine only, unless somebody said otherwise."""
    for name, address in (("kafka", config.listeners.kafka), ("http", config.listeners.http)):
        if not address.is_loopback and not config.insecure:
            raise ConfigError(
                f"listeners.{name} = {address} reaches beyond this machine and has no authentication. Either "
                f"bind it to loopback (--{name} 127.0.0.1:{address.port}), or accept that whoever connects "
                f"reads and writes everything (--insecure, {ENV_PREFIX}INSECURE=true or insecure: true)"
            )
    kafka = config.listeners.kafka
    if kafka.host in _WILDCARDS and config.listeners.advertised_kafka is None:
        raise ConfigError(
            f"listeners.kafka = {kafka} is a wildcard, which clients cannot connect to: say which address "
            f"they should use with listeners.advertised_kafka (flag --advertise HOST:PORT)"
        )
    return _check_cluster(config)


def _check_cluster(config: Config) -> Config:
    """What belongs together."""
    cluster, internal = config.cluster, config.listeners.internal
    if (cluster.store == EMBEDDED_STORE) != bool(cluster.members):
        raise ConfigError(
            f"cluster.store = {cluster.store or 'none'} and cluster.members = {','.join(cluster.members) or 'none'} do "
            f"not fit: cluster.members is for cluster.store = {EMBEDDED_STORE}, and needed there"
        )
    for names in (("tls_ca", "tls_cert", "tls_key"), ("etcd_cert", "etcd_key")):
        given = [name for name in names if getattr(cluster, name) is not None]
        if given and len(given) < len(names):
            raise ConfigError(f"cluster.{given[0]} needs {' and '.join(f'cluster.{name}' for name in names)} too")
    if cluster.store and internal.host in _WILDCARDS and config.listeners.advertised_internal is None:
        raise ConfigError(
            f"listeners.internal = {internal} is a wildcard, which brokers cannot connect to: say which address they "
            "should use with listeners.advertised_internal"
        )
    return config


def _read_env(env: Mapping[str, str]) -> tuple[dict[str, Given], tuple[str, ...]]:
    given: dict[str, Given] = {}
    maps: dict[str, Given] = {}
    ignored: list[str] = []
    for name in sorted(env):
        if not name.startswith(ENV_PREFIX) or name in _CLIENT_ENV or _SERVICE_LINK_ENV.match(name):
            continue
        key = name.removeprefix(ENV_PREFIX).lower().replace("__", ".")
        value = Given(env[name], name)
        if key == TOPIC_PREFIX[:-1]:
            maps.update(read_map(key, value))
        elif key.startswith(TOPIC_PREFIX):
            # A shell cannot export a name with a dot; topic settings have no underscores of their own.
            given[key.replace("_", ".")] = value
        elif key in _BY_KEY or "__" in name or difflib.get_close_matches(key, _ALL_NAMES, n=1, cutoff=0.75):
            given[key] = value
        else:
            ignored.append(name)
    return maps | given, tuple(ignored)
