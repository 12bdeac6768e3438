"""Settings of brokers that can be changed while they run: a short list, checked here, kept in the metadata store.

Of one broker: whether it takes new replicas and leads, and how fast it copies partitions that move to it. Of all of
them also the defaults of topic settings, under the names Kafka's brokers have for them; one broker alone cannot have
others, because who leads a topic changes.
"""

from collections.abc import Mapping

from penstock.cluster.image import CORDON, CORDONED, DRAINED
from penstock.engine.topic_config import SETTINGS, make_config
from penstock.errors import Code, PenstockError
from penstock.nearest import did_you_mean

THROTTLE = "follower.replication.throttled.rate"
WITHOUT_EFFECT = ("leader.replication.throttled.rate", "replica.alter.log.dirs.io.max.bytes.per.second")
"""What Kafka's tools set beside the throttle. The follower's alone slows a move down here: all of it passes there."""
_RATES = (THROTTLE, *WITHOUT_EFFECT)
TOPIC_DEFAULTS = {setting.broker_name: name for name, setting in SETTINGS.items() if setting.broker_name}
"""The names topics have for them, by those that brokers have."""
_LONGEST_NAME = 60
NAMES = frozenset({CORDON, *_RATES, *TOPIC_DEFAULTS})


def check(broker_id: int | None, settings: Mapping[str, str]) -> dict[str, str]:
    """Settings as they are kept, of a broker or (None) of all. Raises PenstockError INVALID_CONFIG."""
    kept = {name: text.strip() for name, text in settings.items()}
    for name, text in kept.items():
        if name == CORDON:
            _check_cordon(broker_id, text)
        elif name in _RATES:
            if not (text.isascii() and text.isdigit() and int(text) > 0):
                raise _invalid(name, text, "bytes a second, at least 1")
        elif name in TOPIC_DEFAULTS:
            if broker_id is not None:
                raise PenstockError(
                    Code.INVALID_CONFIG,
                    f"{name} is a default of topics and the same for all brokers, not for broker {broker_id} alone",
                    help="set it as the default of all brokers, or for a topic",
                )
        else:
            raise PenstockError(
                Code.INVALID_CONFIG,
                f"{name!r} cannot be changed at run time",
                help="change it in the broker's file and restart it",
            )
    make_config(topic_defaults(kept), {})
    return kept


def unknown(name: str) -> PenstockError:
    """For a name that no setting of brokers has."""
    hint = did_you_mean(name, sorted(NAMES), "'penstock cluster config --help' lists what can be set at run time")
    return PenstockError(Code.INVALID_CONFIG, f"broker setting {name[:_LONGEST_NAME]!r} is unknown", help=hint)


def topic_defaults(settings: Mapping[str, str]) -> dict[str, str]:
    """Those of the settings that are defaults of topics, by the names topics have for them."""
    return {TOPIC_DEFAULTS[name]: text for name, text in settings.items() if name in TOPIC_DEFAULTS}


def _check_cordon(broker_id: int | None, text: str) -> None:
    if broker_id is None:
        raise PenstockError(Code.INVALID_CONFIG, f"{CORDON} is set for one broker, not for all of them")
    if text not in (CORDONED, DRAINED):
        raise _invalid(CORDON, text, f"{CORDONED} or {DRAINED}, or not set at all")


def _invalid(name: str, text: str, wanted: str) -> PenstockError:
    return PenstockError(Code.INVALID_CONFIG, f"{name} is {text!r}; it takes {wanted}")
