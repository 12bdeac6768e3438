"""Every setting of a broker in one table: its key, how a value is read, what is allowed, what it is for."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from penstock.server.config import EMBEDDED_STORE, ENV_SECRET, MIB, WILDCARDS, Address

TOPIC_PREFIX = "defaults.topic."
PARTITIONS_KEY = "defaults.topic.partitions"


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
    if address.host in WILDCARDS:
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
    Setting("listeners.http", parse_address, _ADDRESS, "where health and metrics are served"),
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
    Setting("node.rack", _parse_text, "a name", "this broker's rack or zone; replicas go to different ones"),
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
        "with embedded: which brokers run an etcd member; the same list on all brokers",
    ),
    Setting(
        "cluster.secret_file",
        _parse_path,
        "a file path",
        f"holds the cluster's secret, which all brokers share, unless {ENV_SECRET} does",
    ),
    Setting("cluster.etcd_program", _parse_text, "a path", "with embedded: the etcd to run, if not the one in PATH"),
    Setting(
        "cluster.etcd_ca", _parse_path, "a file path", "the CA certificates that etcd's certificate must come from"
    ),
    Setting("cluster.etcd_cert", _parse_path, "a file path", "this broker's certificate for etcd"),
    Setting("cluster.etcd_key", _parse_path, "a file path", "its private key"),
    Setting("cluster.etcd_user", _parse_text, "a name", "this broker's user in etcd"),
    Setting("cluster.etcd_password_file", _parse_path, "a file path", "holds that user's password"),
    Setting(
        "cluster.tls_ca",
        _parse_path,
        "a file path",
        "the CA certificates that other brokers' certificates must come from",
    ),
    Setting("cluster.tls_cert", _parse_path, "a file path", "this broker's certificate for other brokers"),
    Setting("cluster.tls_key", _parse_path, "a file path", "its private key"),
    Setting(
        "cluster.replication",
        _whole(1, 100),
        "a whole number from 1 to 100",
        "replicas of a new topic, or as many as there are brokers if those are fewer",
    ),
    Setting(
        "cluster.lease_s",
        _whole(2, 600),
        "a whole number of seconds from 2 to 600",
        "a broker that is silent for this long counts as dead",
    ),
    Setting(
        "cluster.replica_lag_ms",
        _whole(1000, _INT32),
        _MILLISECONDS,
        "a replica that is behind for this long is no longer in sync",
    ),
    Setting(
        "cluster.preferred_leader_s",
        _whole(1, _INT32),
        "a whole number of seconds",
        "after this long without changes, leadership goes back to the preferred brokers",
    ),
    Setting(
        "cluster.accept_older_store",
        _parse_bool,
        "true or false",
        "go on although the metadata store is older than what this broker has seen: later changes are lost",
    ),
    Setting(
        "cluster.accept_new_secret",
        _parse_bool,
        "true or false",
        "make this broker's secret the cluster's; works only while no broker with the old one runs",
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
        "client connections open at once; a quarter of the process's descriptors if that is less",
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
        "limits.max_receive_bytes",
        _whole(1024, 1 << 40),
        "a whole number of bytes from 1024",
        "bytes of large requests (above 256 KiB) that all clients together may be sending; others wait",
    ),
    Setting(
        "limits.max_answer_bytes",
        _whole(1024, 1 << 40),
        "a whole number of bytes from 1024",
        "bytes of answers that all clients together have not read yet; above it the broker closes the one with most",
    ),
    Setting(
        "storage.upkeep_ms",
        _whole(10, 3_600_000),
        "a whole number of milliseconds from 10 to 3600000",
        "how often logs are checked for retention, checkpoints and old segments",
    ),
    Setting(
        "storage.compaction_bytes_per_second",
        _whole(64 * 1024, 1 << 40),
        "a whole number of bytes from 65536",
        "how much compaction may read and write in a second, together",
    ),
    Setting(
        "storage.scrub_hours",
        _whole(1, 24 * 365),
        "a whole number of hours from 1 to 8760",
        "how often sealed segments are read again, to find damage before a reader does",
    ),
    Setting(
        "storage.scrub_bytes_per_second",
        _whole(64 * 1024, 1 << 40),
        "a whole number of bytes from 65536",
        "how much of them is read again in a second at most",
    ),
    Setting(
        "groups.initial_rebalance_delay_ms",
        _whole(0, 3_600_000),
        _MILLISECONDS,
        "how long an empty classic group waits for more members after the first has joined",
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
        "how often members of groups with the consumer protocol report; a rebalance takes several such intervals",
    ),
    Setting(
        "groups.consumer_session_timeout_ms",
        _whole(100, _INT32),
        _MILLISECONDS,
        "a member of a group with the consumer protocol that is silent for this long counts as dead",
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
        "a transactional id that is not used for this long is forgotten",
    ),
    Setting(
        "logging.level",
        _one_of("debug", "info", "warning", "error"),
        "one of debug, info, warning, error",
        "how much is logged",
    ),
    Setting("logging.format", _one_of("text", "json"), "one of text, json", "the form of a log line"),
)
