"""A topic's settings under Kafka's names: each with its type, default, bounds and one line of documentation."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

from penstock.errors import Code, PenstockError
from penstock.nearest import did_you_mean
from penstock.records.compression import Codec
from penstock.storage.log.options import Flush, LogOptions

_DAY_MS = 24 * 3600 * 1000
_FOREVER = (1 << 63) - 1
_INT32 = (1 << 31) - 1
_LONGEST_NAME = 60


class TimestampType(StrEnum):
    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    default: str
    kind: str
    check: Callable[[str], object]
    documentation: str
    broker_name: str = ""
    """What Kafka calls the broker's default for it; empty where there is none."""


def _whole(low: int, high: int = _FOREVER) -> Callable[[str], int]:
    def check(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,19}", text):
            raise ValueError("a whole number")
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return value

    return check


def _one_of(*words: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in words:
            raise ValueError(" or ".join(words))
        return text

    return check


def _share(text: str) -> float:
    if not re.fullmatch(r"[01](\.[0-9]{1,18})?", text) or float(text) > 1:
        raise ValueError("a number from 0 to 1")
    return float(text)


def _some_of(*words: str) -> Callable[[str], list[str]]:
    def check(text: str) -> list[str]:
        given = split_list(text)
        if not given or set(given) - set(words) or len(set(given)) < len(given):
            raise ValueError(f"one or more of {', '.join(words)}, with commas between")
        return given

    return check


def _replicas(text: str) -> list[str]:
    given = split_list(text)
    if given != ["*"] and not all(re.fullmatch(r"[0-9]{1,10}:[0-9]{1,10}", word) for word in given):
        raise ValueError("* or partition:broker, with commas between")
    return given


def split_list(text: str) -> list[str]:
    """The words of a setting of kind list."""
    return [word.strip() for word in text.split(",") if word.strip()]


_CODECS = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}

_CHECKED = {word: codec for word, codec in _CODECS.items() if codec is not None}
_UNCHECKED = "none"
WRITTEN_BY = "written.by"


def _checked(text: str) -> list[str]:
    if split_list(text) == [_UNCHECKED]:
        return []
    try:
        return _some_of(*_CHECKED)(text)
    except ValueError as error:
        raise ValueError(f"{_UNCHECKED}, or {error}") from None


_NO_EFFECT = "Accepted and kept for Kafka's tools; it has no effect."
_KEPT_FOR_TOOLS = (
    Setting("file.delete.delay.ms", "60000", "long", _whole(0), _NO_EFFECT, "log.segment.delete.delay.ms"),
    Setting("flush.messages", str(_FOREVER), "long", _whole(1), _NO_EFFECT, "log.flush.interval.messages"),
    Setting("follower.replication.throttled.replicas", "", "list", _replicas, _NO_EFFECT),
    Setting("leader.replication.throttled.replicas", "", "list", _replicas, _NO_EFFECT),
    Setting("preallocate", "false", "boolean", _one_of("true", "false"), _NO_EFFECT, "log.preallocate"),
    Setting("segment.index.bytes", "10485760", "int", _whole(4, _INT32), _NO_EFFECT, "log.index.size.max.bytes"),
    Setting("segment.jitter.ms", "0", "long", _whole(0), _NO_EFFECT, "log.roll.jitter.ms"),
    Setting(
        "unclean.leader.election.enable",
        "false",
        "boolean",
        _one_of("true", "false"),
        _NO_EFFECT,
        "unclean.leader.election.enable",
    ),
)

_ACTING = (
    Setting(
        "cleanup.policy",
        "delete",
        "list",
        _some_of("delete", "compact"),
        "What happens to old segments: delete drops them by retention.ms and retention.bytes; compact keeps the last "
        "record of each key, and every record needs one. Both may be given.",
        "log.cleanup.policy",
    ),
    Setting(
        "compression.type",
        "producer",
        "string",
        _one_of(*_CODECS),
        "How batches are kept: producer leaves them as they were sent, which costs the broker nothing.",
        "compression.type",
    ),
    Setting(
        "delete.retention.ms",
        str(_DAY_MS),
        "long",
        _whole(0),
        "How long compaction keeps a record without a value, which marks its key as deleted.",
        "log.cleaner.delete.retention.ms",
    ),
    Setting(
        "flush",
        "commit",
        "string",
        _one_of("commit", "interval", "os"),
        "When records are synced: before acks=all is answered (commit), every flush.ms (interval), or "
        "when the OS decides (os).",
        "log.flush",
    ),
    Setting(
        "flush.ms",
        "1000",
        "long",
        _whole(1),
        "How long flush=interval may leave records unsynced.",
        "log.flush.interval.ms",
    ),
    Setting(
        "index.interval.bytes",
        "4096",
        "int",
        _whole(0, _INT32),
        "Bytes between two index entries.",
        "log.index.interval.bytes",
    ),
    Setting(
        "max.compaction.lag.ms",
        str(_FOREVER),
        "long",
        _whole(1),
        "After this time a record is compacted, even if little has changed.",
        "log.cleaner.max.compaction.lag.ms",
    ),
    Setting(
        "max.message.bytes",
        "10485760",
        "int",
        _whole(0, _INT32),
        "Largest record batch, as sent.",
        "message.max.bytes",
    ),
    Setting(
        "message.timestamp.after.max.ms",
        "3600000",
        "long",
        _whole(0),
        "How far ahead of the broker's clock a record's time may be.",
        "log.message.timestamp.after.max.ms",
    ),
    Setting(
        "message.timestamp.before.max.ms",
        str(_FOREVER),
        "long",
        _whole(0),
        "How far behind the broker's clock a record's time may be.",
        "log.message.timestamp.before.max.ms",
    ),
    Setting(
        "message.timestamp.type",
        "CreateTime",
        "string",
        _one_of(*TimestampType),
        "Whose time a record carries: the producer's or the broker's.",
        "log.message.timestamp.type",
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        "0.5",
        "double",
        _share,
        "The share of a log that must be new since its last compaction before the next one.",
        "log.cleaner.min.cleanable.ratio",
    ),
    Setting(
        "min.compaction.lag.ms",
        "0",
        "long",
        _whole(0),
        "How long compaction leaves a record alone.",
        "log.cleaner.min.compaction.lag.ms",
    ),
    Setting(
        "min.insync.replicas",
        "2",
        "int",
        _whole(1, 100),
        "Replicas in sync that acks=all needs, at most as many as the topic has. If not set: 1 for a "
        "topic with two replicas.",
        "min.insync.replicas",
    ),
    Setting(
        "records.check",
        ",".join(_CHECKED),
        "list",
        _checked,
        "The broker checks every record of batches with these codecs before it takes them. It keeps other batches as "
        "they come, and then a producer can write batches that stop every reader. none is for trusted producers only.",
        "log.records.check",
    ),
    Setting(
        "retention.bytes",
        "-1",
        "long",
        _whole(-1),
        "Bytes kept per partition; -1 is no limit.",
        "log.retention.bytes",
    ),
    Setting(
        "retention.ms",
        str(7 * _DAY_MS),
        "long",
        _whole(-1),
        "How long records are kept; -1 is for ever.",
        "log.retention.ms",
    ),
    Setting(
        "segment.bytes",
        str(1 << 30),
        "int",
        _whole(1024, _INT32),
        "Bytes after which a segment is closed.",
        "log.segment.bytes",
    ),
    Setting(
        "segment.ms",
        str(7 * _DAY_MS),
        "long",
        _whole(1),
        "Time after which a segment is closed.",
        "log.roll.ms",
    ),
    Setting(
        WRITTEN_BY,
        "clients",
        "string",
        _one_of("clients", "broker"),
        "Who may produce to the topic. Topics of dead letters that the broker makes are written by the broker alone.",
    ),
)

SETTINGS = {setting.name: setting for setting in sorted((*_ACTING, *_KEPT_FOR_TOOLS), key=attrgetter("name"))}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """All settings of a topic, ready for use."""

    given: Mapping[str, str]
    """What was set for this topic; the rest is default."""
    log: LogOptions
    max_message_bytes: int
    timestamp_type: TimestampType
    timestamp_before_ms: int
    timestamp_after_ms: int
    codec: Codec | None
    """What batches are recompressed to; None leaves them as they were sent."""
    compacts: bool
    deletes: bool
    opens_batches: bool
    """Whether a batch must be opened before it is appended, as more is asked of it than whole records."""
    checked: frozenset[int] = frozenset(_CHECKED.values())
    """Codecs of batches whose records are looked at."""
    written_by_broker: bool = False
    """Whether clients may not write to it."""
    min_insync_replicas: int = 1
    min_insync_is_default: bool = True

    def least_in_sync(self, replicas: int) -> int:
        """How many of so many replicas must be in sync for `acks=all` to be answered, and the high watermark to move.

        Unless it was set, a topic goes on with one replica missing.
        """
        most = max(1, replicas - 1) if self.min_insync_is_default else replicas
        return min(self.min_insync_replicas, most)


def tidy_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Settings as they are kept: without the spaces a person may have typed around values and their parts."""
    return {
        name: ",".join(split_list(text)) if name in SETTINGS and SETTINGS[name].kind == "list" else text.strip()
        for name, text in given.items()
    }


def check_settings(given: Mapping[str, str]) -> None:
    """Raises PenstockError INVALID_CONFIG naming the key, its value and what is allowed."""
    for name, text in given.items():
        setting = SETTINGS.get(name)
        if setting is None:
            hint = did_you_mean(name, SETTINGS, "'penstock config show --topic-settings' lists those there are")
            raise PenstockError(Code.INVALID_CONFIG, f"topic setting {name[:_LONGEST_NAME]!r} is unknown; {hint}")
        try:
            setting.check(text)
        except ValueError as error:
            raise PenstockError(Code.INVALID_CONFIG, f"topic setting {name} is {text!r}; allowed: {error}") from None


def make_config(given: Mapping[str, str], defaults: Mapping[str, str]) -> TopicConfig:
    """Topic settings over the broker's defaults over the built-in ones. Raises PenstockError INVALID_CONFIG."""
    check_settings(given)
    text = {name: setting.default for name, setting in SETTINGS.items()} | dict(defaults) | dict(given)
    number = {name: int(text[name]) for name in text if SETTINGS[name].kind in ("int", "long")}
    policies = split_list(text["cleanup.policy"])
    deletes, compacts = "delete" in policies, "compact" in policies
    codec = _CODECS[text["compression.type"]]
    return TopicConfig(
        given=dict(given),
        log=LogOptions(
            segment_bytes=number["segment.bytes"],
            segment_ms=number["segment.ms"],
            retention_ms=number["retention.ms"] if deletes else -1,
            retention_bytes=number["retention.bytes"] if deletes else -1,
            index_interval_bytes=number["index.interval.bytes"],
            flush=Flush(text["flush"]),
            flush_ms=number["flush.ms"],
            compact=compacts,
            delete_retention_ms=number["delete.retention.ms"],
            min_dirty_ratio=float(text["min.cleanable.dirty.ratio"]),
            min_compaction_lag_ms=number["min.compaction.lag.ms"],
            max_compaction_lag_ms=number["max.compaction.lag.ms"],
        ),
        max_message_bytes=number["max.message.bytes"],
        timestamp_type=TimestampType(text["message.timestamp.type"]),
        timestamp_before_ms=number["message.timestamp.before.max.ms"],
        timestamp_after_ms=number["message.timestamp.after.max.ms"],
        codec=codec,
        compacts=compacts,
        deletes=deletes,
        opens_batches=compacts or codec is not None,
        checked=frozenset(_CHECKED[word] for word in _checked(text["records.check"])),
        written_by_broker=text[WRITTEN_BY] == "broker",
        min_insync_replicas=number["min.insync.replicas"],
        min_insync_is_default="min.insync.replicas" not in given and "min.insync.replicas" not in defaults,
    )
