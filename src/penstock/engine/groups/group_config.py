"""What can be set for a group, under Kafka's names: types, defaults, bounds, and what brokers call their own value.

A group goes by what was set for it, then by its broker's own value, then by the built-in default. What is set has to be
within the bounds, which are wide enough for the broker's value. What was within them when it was set and is not any
more, because the broker has other settings now, counts as the nearest that is.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from penstock.engine.topic_names import check_name
from penstock.errors import Code, PenstockError
from penstock.nearest import did_you_mean

DEAD_LETTER_PREFIX: Final = "dlq."
SHARE_GROUP_MAX_SIZE: Final = 200
"""Members of a share group."""
SHARE_SESSIONS: Final = 2000
"""Of share consumers, on one broker."""
_SHARE: Final = "group.share."
_LONGEST_NAME: Final = 60


class Bounds(NamedTuple):
    low: int
    high: int

    def around(self, value: int) -> "Bounds":
        """Wide enough for a value."""
        return Bounds(min(self.low, value), max(self.high, value))

    def nearest(self, value: int) -> int:
        return min(max(value, self.low), self.high)

    def check(self, text: str) -> None:
        """Raises ValueError."""
        allowed = f"a whole number from {self.low} to {self.high}"
        if not re.fullmatch(r"[+]?[0-9]{1,10}", text) or self.nearest(int(text)) != int(text):
            raise ValueError(allowed)


@dataclass(frozen=True, slots=True)
class GroupSetting:
    name: str
    default: str
    kind: str
    check: Callable[[str], object]
    """Raises ValueError with what is allowed."""
    documentation: str
    broker_name: str = ""
    """What Kafka calls the broker's own value; empty where there is none."""
    bounds: Bounds | None = None
    """Of a number."""


class OffsetReset(NamedTuple):
    """Where a share group begins to read a topic."""

    where: str
    """latest, earliest or by_duration."""
    back_ms: int = 0
    """How far before now, by_duration."""


def parse_offset_reset(text: str) -> OffsetReset:
    """Raises ValueError."""
    if text in ("latest", "earliest"):
        return OffsetReset(text)
    where, _, duration = text.partition(":")
    found = _DURATION.fullmatch(duration)
    if where != "by_duration" or found is None or not any(found.groups()):
        raise ValueError("latest, earliest or by_duration: and how long ago, as in by_duration:P1DT12H30M1.5S")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
    part_ms = int((found[5] or "")[:3].ljust(3, "0"))
    return OffsetReset(where, (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + part_ms)


_DURATION: Final = re.compile(
    r"P(?:(\d{1,9})D)?(?:T(?=\d)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})(?:\.(\d{1,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)


def _number(name: str, default: int, low: int, high: int, documentation: str, broker_name: str) -> GroupSetting:
    bounds = Bounds(low, high)
    return GroupSetting(name, str(default), "int", bounds.check, documentation, broker_name, bounds)


def _one_of(*words: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if text not in words:
            raise ValueError(" or ".join(words))

    return check


def _dead_letter_topic(text: str) -> None:
    try:
        is_good = not text or text.startswith(DEAD_LETTER_PREFIX)
        check_name(text or DEAD_LETTER_PREFIX)
    except PenstockError:
        is_good = False
    if not is_good:
        raise ValueError(f"the name of a topic that begins with {DEAD_LETTER_PREFIX!r}, or nothing to have none")


CONSUMER_SESSION: Final = "consumer.session.timeout.ms"
CONSUMER_HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
SHARE_SESSION: Final = "share.session.timeout.ms"
SHARE_HEARTBEAT: Final = "share.heartbeat.interval.ms"
RECORD_LOCK: Final = "share.record.lock.duration.ms"
DELIVERY_LIMIT: Final = "share.delivery.count.limit"
MAX_RECORD_LOCKS: Final = "share.partition.max.record.locks"
OFFSET_RESET: Final = "share.auto.offset.reset"
ISOLATION: Final = "share.isolation.level"
RENEW: Final = "share.renew.acknowledge.enable"
DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
DEAD_LETTER_COPY: Final = "errors.deadletterqueue.copy.record.enable"
_COMMITTED, _UNCOMMITTED = "read_committed", "read_uncommitted"

_SETTINGS = (
    _number(
        CONSUMER_SESSION,
        45_000,
        45_000,
        60_000,
        "A member of a group with the consumer protocol that is silent for this long counts as dead.",
        "group.consumer.session.timeout.ms",
    ),
    _number(
        CONSUMER_HEARTBEAT,
        5_000,
        5_000,
        15_000,
        "How often members of a group with the consumer protocol report.",
        "group.consumer.heartbeat.interval.ms",
    ),
    _number(
        SHARE_SESSION,
        45_000,
        45_000,
        60_000,
        "A member of a share group that is silent for this long counts as dead.",
        f"{_SHARE}session.timeout.ms",
    ),
    _number(
        SHARE_HEARTBEAT,
        5_000,
        5_000,
        15_000,
        "How often members of a share group report.",
        f"{_SHARE}heartbeat.interval.ms",
    ),
    _number(
        RECORD_LOCK,
        30_000,
        15_000,
        60_000,
        "How long a share consumer has for a record before another one gets it.",
        f"{_SHARE}record.lock.duration.ms",
    ),
    _number(
        DELIVERY_LIMIT,
        5,
        2,
        10,
        "How often a record is given to consumers of a share group before it counts as undeliverable.",
        f"{_SHARE}delivery.count.limit",
    ),
    _number(
        MAX_RECORD_LOCKS,
        2_000,
        100,
        4_000,
        "Records of a partition that a share group may be working on at a time.",
        f"{_SHARE}partition.max.record.locks",
    ),
    GroupSetting(
        OFFSET_RESET,
        "latest",
        "string",
        parse_offset_reset,
        "Where a share group begins that has not read a topic before: latest, earliest, or by_duration:PnDTnHnMn.nS "
        "for records no older than that.",
    ),
    GroupSetting(
        ISOLATION,
        _UNCOMMITTED,
        "string",
        _one_of(_COMMITTED, _UNCOMMITTED),
        "Whether a share group waits for transactions and passes over those that were aborted (read_committed).",
    ),
    GroupSetting(
        RENEW,
        "true",
        "boolean",
        _one_of("true", "false"),
        "Whether share consumers may ask for more time for a record.",
    ),
    GroupSetting(
        DEAD_LETTER_TOPIC,
        "",
        "string",
        _dead_letter_topic,
        "Where records go that a share group cannot process. Not set, it is a topic made for the group when it is "
        "needed first, which gets the records themselves; set to nothing, they are dropped.",
    ),
    GroupSetting(
        DEAD_LETTER_COPY,
        "true",
        "boolean",
        _one_of("true", "false"),
        "Whether dead letters have key, value and headers of their records, or only say where those are. Those that "
        "only say so come back empty when they are sent back.",
    ),
)
GROUP_SETTINGS: Final[Mapping[str, GroupSetting]] = {
    setting.name: setting for setting in sorted(_SETTINGS, key=attrgetter("name"))
}
_SESSIONS: Final = ((CONSUMER_SESSION, CONSUMER_HEARTBEAT), (SHARE_SESSION, SHARE_HEARTBEAT))


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """All settings of a group, ready for use."""

    consumer_session_timeout_ms: int
    consumer_heartbeat_interval_ms: int
    share_session_timeout_ms: int
    share_heartbeat_interval_ms: int
    record_lock_ms: int
    delivery_limit: int
    max_record_locks: int
    offset_reset: OffsetReset
    reads_committed: bool
    may_renew: bool
    dead_letter_topic: str | None
    """Empty: the one that is made for the group; None: undeliverable records are dropped."""
    copies_dead_letters: bool


class BrokerValue(NamedTuple):
    """A setting of brokers about share groups, which is the same on all of them."""

    name: str
    value: str
    kind: str
    documentation: str


def broker_values() -> Iterator[BrokerValue]:
    """What brokers have for all share groups, and within which bounds one group may have something else."""
    for setting in GROUP_SETTINGS.values():
        if setting.bounds is None or not setting.broker_name.startswith(_SHARE):
            continue
        of = setting.broker_name.removeprefix(_SHARE)
        yield BrokerValue(setting.broker_name, setting.default, "int", setting.documentation)
        for word, what, bound in (("min", "least", setting.bounds.low), ("max", "most", setting.bounds.high)):
            documentation = f"The {what} that {setting.name} may be set to for a group."
            yield BrokerValue(f"{_SHARE}{word}.{of}", str(bound), "int", documentation)
    yield BrokerValue(f"{_SHARE}max.size", str(SHARE_GROUP_MAX_SIZE), "int", "Members one share group may have.")
    yield BrokerValue(
        f"{_SHARE}max.share.sessions", str(SHARE_SESSIONS), "int", "Sessions of share consumers that a broker may have."
    )
    yield BrokerValue(
        "errors.deadletterqueue.topic.name.prefix",
        DEAD_LETTER_PREFIX,
        "string",
        f"How the name of a topic begins that {DEAD_LETTER_TOPIC} may be set to.",
    )


def tidy_group_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Settings as they are kept: without spaces around them, and truth in small letters."""
    tidy = {name: text.strip() for name, text in given.items()}
    return {name: text.lower() if _kind(name) == "boolean" else text for name, text in tidy.items()}


def _kind(name: str) -> str:
    setting = GROUP_SETTINGS.get(name)
    return "" if setting is None else setting.kind


def check_group_settings(after: Mapping[str, str], before: Mapping[str, str], of_broker: Mapping[str, str]) -> None:
    """Whether settings may become what they are to be; those that are as before are left alone.

    Args:
        of_broker: the broker's own values, by the names they have for groups, where they are not the built-in ones.

    Raises:
        PenstockError: INVALID_CONFIG naming the setting, its value and what is allowed.
    """
    changed = {name for name in {*after, *before} if after.get(name) != before.get(name)}
    for name in sorted(changed & after.keys()):
        _check(name, after[name], of_broker)
    for session, heartbeat in _SESSIONS:
        limit_ms, each_ms = (_number_of(name, after, of_broker) for name in (session, heartbeat))
        if limit_ms <= each_ms and changed & {session, heartbeat}:
            raise PenstockError(
                Code.INVALID_CONFIG,
                f"group setting {session} is {limit_ms}; it must be greater than {heartbeat}, which is {each_ms}",
            )


def _check(name: str, text: str, of_broker: Mapping[str, str]) -> None:
    setting = GROUP_SETTINGS.get(name)
    if setting is None:
        hint = did_you_mean(name, GROUP_SETTINGS, "describe the settings of any group to see those there are")
        raise PenstockError(Code.INVALID_CONFIG, f"group setting {name[:_LONGEST_NAME]!r} is unknown; {hint}")
    bounds = _bounds(setting, of_broker)
    try:
        setting.check(text) if bounds is None else bounds.check(text)
    except ValueError as error:
        raise PenstockError(Code.INVALID_CONFIG, f"group setting {name} is {text!r}; allowed: {error}") from None


def _bounds(setting: GroupSetting, of_broker: Mapping[str, str]) -> Bounds | None:
    if setting.bounds is None:
        return None
    return setting.bounds.around(int(of_broker.get(setting.name, setting.default)))


def _number_of(name: str, given: Mapping[str, str], of_broker: Mapping[str, str]) -> int:
    setting = GROUP_SETTINGS[name]
    bounds = _bounds(setting, of_broker)
    assert bounds is not None
    return bounds.nearest(int(given.get(name, of_broker.get(name, setting.default))))


def make_group_config(given: Mapping[str, str], of_broker: Mapping[str, str]) -> GroupConfig:
    """What a group goes by; `of_broker` as in `check_group_settings`, which has let pass what is given."""

    def number(name: str) -> int:
        return _number_of(name, given, of_broker)

    def text(name: str) -> str:
        return given.get(name, GROUP_SETTINGS[name].default)

    is_named = DEAD_LETTER_TOPIC in given
    return GroupConfig(
        consumer_session_timeout_ms=number(CONSUMER_SESSION),
        consumer_heartbeat_interval_ms=number(CONSUMER_HEARTBEAT),
        share_session_timeout_ms=number(SHARE_SESSION),
        share_heartbeat_interval_ms=number(SHARE_HEARTBEAT),
        record_lock_ms=number(RECORD_LOCK),
        delivery_limit=number(DELIVERY_LIMIT),
        max_record_locks=number(MAX_RECORD_LOCKS),
        offset_reset=parse_offset_reset(text(OFFSET_RESET)),
        reads_committed=text(ISOLATION) == _COMMITTED,
        may_renew=text(RENEW) == "true",
        dead_letter_topic=(text(DEAD_LETTER_TOPIC) or None) if is_named else "",
        copies_dead_letters=text(DEAD_LETTER_COPY) == "true",
    )
