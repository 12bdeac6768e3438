"""Every setting of a broker in one table: its key, how a value is read, what is allowed, what it is for."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from penstock.server.config import ADVERTISED, EMBEDDED_STORE, ENV_SECRET, MIB
from penstock.server.config_listeners import EXPECTED, parse_address, parse_advertised, parse_listeners, parse_place
from penstock.server.doors.table import KINDS, Kind

TOPIC_PREFIX = "defaults.topic."
PARTITIONS_KEY = "defaults.topic.partitions"
LISTENERS_KEY = "listeners"
SHORT_PREFIX = "listeners."


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


def _parse_paths(value: object) -> tuple[Path, ...]:
    return tuple(map(Path, _parse_list(value)))


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


_INT32 = (1 << 31) - 1
_MILLISECONDS = "a whole number of milliseconds"
_ADDRESS = "host:port, such as 127.0.0.1:9092 or [::1]:9092 (port 0: any free one)"


def _short_forms(kind: Kind) -> list[Setting]:
    """The settings of the listener that has a protocol's name."""
    address = Setting(SHORT_PREFIX + kind.name, parse_address, _ADDRESS, kind.purpose)
    if kind.may_lack_host:
        address = address._replace(parse=parse_place, allowed=f"[host:]port, such as {kind.port} or [::1]:{kind.port}")
    if not kind.is_told:
        return [address]
    told = Setting(
        f"{SHORT_PREFIX}{ADVERTISED}{kind.name}",
        parse_advertised,
        f"host:port that {kind.peers} can reach, no wildcard, port 1 to 65535",
        f"the address {'other ' if kind.peers == 'brokers' else ''}{kind.peers} are told to use, when it is not the "
        "one bound",
    )
    return [address, told]


SETTINGS: tuple[Setting, ...] = (
    Setting("data_dir", _parse_path, "a directory path", "where logs and metadata are kept"),
    Setting(
        "insecure",
        _parse_bool,
        "true or false",
        "allow listeners beyond loopback without TLS and authentication, and a metadata store in plain",
    ),
    Setting("node.id", _whole(0, 2**31 - 1), "a whole number from 0 to 2147483647", "this broker's id"),
    Setting(LISTENERS_KEY, parse_listeners, EXPECTED, "listeners beside those below, or in their place"),
    *(setting for kind in KINDS.values() for setting in _short_forms(kind)),
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
    Setting("cluster.tls_key", _parse_path, "a file path", "its private key, readable by nobody else"),
    Setting("cluster.tls_crl", _parse_path, "a file path", "lists of brokers' certificates that are revoked"),
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
    Setting(
        "security.mode",
        _one_of("open", "watch", "closed"),
        "one of open, watch, closed",
        "whether rules decide who may do what; watch lets everything pass, and counts what closed would refuse. Not "
        "set: closed if a listener has auth or reaches beyond loopback (except by insecure), else open",
    ),
    Setting(
        "security.super_users",
        _parse_list,
        "principals separated by commas, such as User:root",
        "users who may do everything, whatever the rules say",
    ),
    Setting(
        "security.admin_password_file",
        _parse_path,
        "a file path",
        "holds the password of user admin, who is made when there are no users yet; without it one is made and shown",
    ),
    Setting(
        "security.seal_key_file",
        _parse_path,
        "a file path",
        "holds the key that seals secrets in the metadata store. Not set: a key made of the cluster's secret; a broker "
        "on its own makes one",
    ),
    Setting(
        "security.other_seal_key_files",
        _parse_paths,
        "file paths separated by commas",
        "hold keys that secrets may still be sealed by, or soon will be: see rotate-key in security.md",
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
