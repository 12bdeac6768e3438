"""Settings of the broker's own topics: few may be changed, and hardly any default of the broker's reaches them.

What groups and transactions are is the last record of each key in them. Whatever could take one away, keep it from
being safe, or keep the next one from being written, is fixed: only what says when segments are closed and compacted may
be changed, within bounds that keep that going, and what Kafka's tools note beside a move.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.engine.coordination.registry import REGISTERED
from penstock.engine.topic_config import TopicConfig, check_settings, make_config, tidy_settings
from penstock.errors import Code, PenstockError

_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS
_MIN_INSYNC: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class _Bounds:
    low: str
    high: str = ""

    def admits(self, text: str) -> bool:
        return float(self.low) <= float(text) and (not self.high or float(text) <= float(self.high))

    def __str__(self) -> str:
        return f"from {self.low} to {self.high}" if self.high else f"{self.low} or more"


_CHANGEABLE: Final[Mapping[str, _Bounds | None]] = {
    "delete.retention.ms": _Bounds(str(_DAY_MS)),  # a replica that was away must see what was deleted
    "follower.replication.throttled.replicas": None,
    "leader.replication.throttled.replicas": None,
    "max.compaction.lag.ms": _Bounds(str(_MINUTE_MS)),
    "min.cleanable.dirty.ratio": _Bounds("0", "0.9"),
    "segment.bytes": _Bounds(str(1 << 20), str(1 << 30)),
    "segment.ms": _Bounds(str(_MINUTE_MS), str(30 * _DAY_MS)),
}
"""What may be set, by name, and from what to what if not all that is allowed elsewhere."""


def acting_settings(topic: str, stored: Mapping[str, str]) -> Mapping[str, str]:
    """What is set for a topic, as far as it counts. Earlier releases let anything be set for internal ones."""
    registered = REGISTERED.get(topic)
    if registered is None:
        return stored
    made_with = registered.settings
    return {**made_with} | {name: text for name, text in stored.items() if _why_not(name, text, made_with) is None}


def topic_config(topic: str, stored: Mapping[str, str], defaults: Mapping[str, str]) -> TopicConfig:
    """The settings of a topic, ready for use. Raises PenstockError INVALID_CONFIG."""
    if topic in REGISTERED:
        # More replicas in sync than the usual may be asked for of all topics; fewer would do for others only.
        stricter = int(defaults.get(_MIN_INSYNC, "1")) > 1
        defaults = {_MIN_INSYNC: defaults[_MIN_INSYNC]} if stricter else {}
    return make_config(acting_settings(topic, stored), defaults)


def altered_settings(
    topic: str, stored: Mapping[str, str], alter: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> dict[str, str]:
    """What is set for a topic after a change, as it is kept. What is unset of an internal one is as it was made.

    Raises:
        PenstockError: INVALID_CONFIG; NOT_ALLOWED for a setting that an internal topic must keep.
    """
    altered = tidy_settings(alter(acting_settings(topic, stored)))
    check_settings(altered)
    registered = REGISTERED.get(topic)
    if registered is None:
        return altered
    for name, text in altered.items():
        why_not = _why_not(name, text, registered.settings)
        if why_not is not None:
            raise PenstockError(
                Code.NOT_ALLOWED, f"topic {topic!r} is the broker's own: {name} cannot be {text!r}, {why_not}"
            )
    return {**registered.settings, **altered}


def _why_not(name: str, text: str, made_with: Mapping[str, str]) -> str | None:
    """Of a value that `check_settings` lets pass."""
    if made_with.get(name) == text:
        return None
    if name not in _CHANGEABLE:
        return f"only {', '.join(_CHANGEABLE)} can be changed"
    bounds = _CHANGEABLE[name]
    return None if bounds is None or bounds.admits(text) else f"allowed: {bounds}"
