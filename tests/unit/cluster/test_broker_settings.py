"""Settings of brokers that change while they run: which there are, what they take, whose they may be."""

import pytest

from penstock.cluster.broker_settings import THROTTLE, WITHOUT_EFFECT, check, topic_defaults, unknown
from penstock.cluster.image import CORDON, CORDONED, DRAINED
from penstock.errors import Code, PenstockError


@pytest.mark.parametrize("text", [CORDONED, DRAINED, f" {DRAINED} "])
def test_a_cordon_is_kept_without_spaces(text: str) -> None:
    assert check(3, {CORDON: text}) == {CORDON: text.strip()}


@pytest.mark.parametrize("broker_id", [None, 3])
@pytest.mark.parametrize("name", [THROTTLE, *WITHOUT_EFFECT])
def test_a_rate_may_be_of_one_broker_or_of_all(broker_id: int | None, name: str) -> None:
    assert check(broker_id, {name: "1000"}) == {name: "1000"}


@pytest.mark.parametrize(
    ("broker_id", "settings", "named"),
    [
        (3, {CORDON: "yes"}, "'yes'"),
        (3, {CORDON: ""}, CORDON),
        (None, {CORDON: DRAINED}, "one broker"),
        (3, {THROTTLE: "0"}, "'0'"),
        (3, {THROTTLE: "-1"}, "'-1'"),
        (3, {THROTTLE: "50MB"}, "'50MB'"),
        (3, {THROTTLE: "٣"}, THROTTLE),
        (3, {"min.insync.replicas": "2"}, "broker 3 alone"),
        (None, {"min.insync.replicas": "0"}, "min.insync.replicas"),
        (None, {"log.retention.ms": "soon"}, "retention.ms"),
        (None, {"advertised.listeners": "x"}, "advertised.listeners"),
    ],
)
def test_what_cannot_be_is_refused_and_named(broker_id: int | None, settings: dict[str, str], named: str) -> None:
    with pytest.raises(PenstockError, match=named) as refused:
        check(broker_id, settings)
    assert refused.value.code is Code.INVALID_CONFIG


def test_one_wrong_setting_refuses_all_of_them() -> None:
    with pytest.raises(PenstockError, match="cannot be changed at run time"):
        check(3, {CORDON: DRAINED, "broker.id": "4"})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("log.retention.hours", "did you mean log.retention.ms"),
        ("min.insync.replica", "did you mean min.insync.replicas?"),
        ("foo", "'penstock cluster config --help' lists what can be set at run time"),
        ("x" * 1_000_000, "--help"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name: str, hint: str) -> None:
    refused = unknown(name)
    assert str(refused) == f"broker setting {name[:60]!r} is unknown"
    assert hint in refused.help


def test_defaults_of_topics_go_by_the_names_topics_have_for_them() -> None:
    settings = {"min.insync.replicas": "2", "log.retention.ms": "1000", THROTTLE: "5"}
    assert check(None, settings) == settings
    assert topic_defaults(settings) == {"min.insync.replicas": "2", "retention.ms": "1000"}
