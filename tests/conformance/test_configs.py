"""Settings described and changed through every client that can."""

from collections.abc import Callable
from pathlib import Path

import pytest

from .clients import ADMINS, Admin, ClientError
from .clients.admin import (
    APPEND,
    BROKER,
    DEFAULT_SOURCE,
    DELETE,
    SET,
    SOURCES,
    SUBTRACT,
    TOPIC_SOURCE,
    Change,
    Entry,
)
from .clients.confluent import ConfluentClient
from .clients.confluent_admin import ConfluentAdmin
from .conftest import Admins, eventually, fresh_name, start

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_CONFIG = 40
INVALID_REQUEST = 42
INCREMENTAL = [name for name, each in ADMINS.items() if each.can_increment]
REPLACING = [name for name, each in ADMINS.items() if each.can_replace]
KINDS = {
    "cleanup.policy": "LIST",
    "compression.type": "STRING",
    "max.message.bytes": "INT",
    "message.timestamp.type": "STRING",
    "min.insync.replicas": "INT",
    "retention.bytes": "LONG",
    "retention.ms": "LONG",
    "segment.bytes": "INT",
    "segment.ms": "LONG",
}


def value(admin: Admin, topic: str, name: str, wanted: str) -> str | None:
    """The setting's value, once it is as wanted or the deadline has passed."""
    return eventually(lambda: admin.settings(topic)[name].value, lambda found: found == wanted)


def refusal(admin: Admin, name: str, *changes: Change, **more: int) -> int:
    with pytest.raises(ClientError) as failure:
        admin.alter(name, *changes, **more)  # type: ignore[arg-type]
    return failure.value.code


@pytest.mark.parametrize("name", ADMINS)
def test_a_topic_shows_its_settings(admins: Admins, new_topic: Callable[..., str], name: str) -> None:
    topic = new_topic("shown", **{"retention.ms": "12345678", "max.message.bytes": "54321"})
    found = admins[name].settings(topic)
    assert set(KINDS) <= set(found)
    for key, given in (("retention.ms", "12345678"), ("max.message.bytes", "54321")):
        entry = found[key]
        assert (entry.value, entry.source) == (given, TOPIC_SOURCE)
        assert (key, given, TOPIC_SOURCE) in entry.synonyms[:1] or not admins[name].all_synonyms
        assert not entry.is_default  # None where the client does not tell
    # Last comes the built-in default, whatever is between.
    if admins[name].all_synonyms:
        assert found["max.message.bytes"].synonyms[-1][2] == DEFAULT_SOURCE
    for key in set(KINDS) - {"retention.ms", "max.message.bytes"}:
        assert found[key].source in set(SOURCES.values()) - {TOPIC_SOURCE}, key
        assert found[key].value, key
        # Kafka has none for what its broker counts in hours.
        if admins[name].all_synonyms and found[key].synonyms:
            assert found[key].synonyms[0][1:] == (found[key].value, found[key].source), key
    for key, entry in found.items():
        assert not entry.read_only, key
        assert not entry.sensitive, key


@pytest.mark.parametrize("name", [name for name, each in ADMINS.items() if each.filters_keys])
def test_single_keys(admins: Admins, new_topic: Callable[..., str], name: str) -> None:
    topic = new_topic("keys", **{"retention.ms": "12345678"})
    found = admins[name].settings(topic, keys=["retention.ms", "segment.ms", "no.such.setting"])
    assert {key: each.source == TOPIC_SOURCE for key, each in found.items()} == {
        "retention.ms": True,
        "segment.ms": False,
    }


@pytest.mark.parametrize("name", [name for name, each in ADMINS.items() if each.describe_errors])
def test_an_unknown_topic_has_no_settings(admins: Admins, name: str) -> None:
    with pytest.raises(ClientError) as failure:
        admins[name].settings(fresh_name("never-made"))
    assert failure.value.code == UNKNOWN_TOPIC_OR_PARTITION


def test_types_and_documentation(admins: Admins, new_topic: Callable[..., str]) -> None:
    topic = new_topic("typed", **{"retention.ms": "1000000"})
    found = admins.java.settings(topic)
    assert {key: found[key].kind for key in KINDS} == KINDS
    assert all(entry.documentation for entry in found.values())
    assert {key for key, entry in found.items() if entry.is_default is False} >= {"retention.ms"}
    brief = admins.java.settings(topic, details=False)
    assert set(brief) == set(found)
    assert all(not entry.documentation and not entry.synonyms for entry in brief.values())


@pytest.mark.parametrize("name", ADMINS)
def test_a_broker_shows_its_settings(admins: Admins, name: str) -> None:
    node = str(admins[name].cluster().controller)
    found = admins[name].settings(node, kind=BROKER)
    assert found
    for key, entry in found.items():
        assert entry.source in SOURCES.values(), key
        assert entry.source != TOPIC_SOURCE, key
        if admins[name].all_synonyms and not entry.sensitive:
            assert entry.synonyms == () or entry.synonyms[0][2] == entry.source, key
    assert any(entry.read_only for entry in found.values())
    if name == "java":
        assert all(entry.documentation for entry in found.values() if entry.source == DEFAULT_SOURCE)
        assert all(entry.kind not in (None, "UNKNOWN") for entry in found.values())


def fixed(admin: Admin, node: str) -> tuple[str, Entry]:
    """A setting of the broker that nobody can change at run time."""
    found = admin.settings(node, kind=BROKER)
    return next((key, each) for key, each in sorted(found.items()) if each.read_only and each.value)


@pytest.mark.parametrize("name", INCREMENTAL)
def test_read_only_settings_of_a_broker(admins: Admins, name: str) -> None:
    admin = admins[name]
    node = str(admin.cluster().controller)
    key, entry = fixed(admin, node)
    with pytest.raises(ClientError) as failure:
        admin.alter(node, Change(SET, key, entry.value), kind=BROKER)
    assert failure.value.code in (INVALID_CONFIG, INVALID_REQUEST)
    assert key in str(failure.value), "the refusal names the setting"


@pytest.mark.parametrize("name", INCREMENTAL)
def test_changed_settings_show_everywhere(admins: Admins, new_topic: Callable[..., str], name: str) -> None:
    topic = new_topic("changed", **{"segment.ms": "500000"})
    before = admins["confluent"].settings(topic)
    admins[name].alter(topic, Change(SET, "retention.ms", "7654321"), Change(SET, "max.message.bytes", "65432"))
    for each in ADMINS:
        assert value(admins[each], topic, "retention.ms", "7654321") == "7654321", each
        found = admins[each].settings(topic)
        assert found["max.message.bytes"].value == "65432", each
        assert found["retention.ms"].source == TOPIC_SOURCE, each
        assert found["segment.ms"].value == "500000", each
    admins[name].alter(topic, Change(DELETE, "retention.ms"), Change(DELETE, "segment.ms"))
    old = before["retention.ms"].value
    assert old is not None
    for each in ADMINS:
        assert value(admins[each], topic, "retention.ms", old) == old, each
        found = admins[each].settings(topic)
        assert found["retention.ms"].source != TOPIC_SOURCE, each
        assert found["segment.ms"].source != TOPIC_SOURCE, each
        assert found["max.message.bytes"].value == "65432", each


@pytest.mark.parametrize("name", INCREMENTAL)
def test_lists_grow_and_shrink(admins: Admins, new_topic: Callable[..., str], name: str) -> None:
    topic, admin = new_topic("list"), admins[name]

    def policy(wanted: str) -> set[str]:
        found = value(admin, topic, "cleanup.policy", wanted)
        return set((found or "").split(","))

    assert policy("delete") == {"delete"}
    admin.alter(topic, Change(APPEND, "cleanup.policy", "compact"))
    assert policy("delete,compact") == {"delete", "compact"}
    admin.alter(topic, Change(APPEND, "cleanup.policy", "compact"))
    assert policy("delete,compact") == {"delete", "compact"}, "nothing twice"
    admin.alter(topic, Change(SUBTRACT, "cleanup.policy", "delete"))
    assert policy("compact") == {"compact"}
    assert refusal(admin, topic, Change(APPEND, "retention.ms", "5")) == INVALID_CONFIG
    assert refusal(admin, topic, Change(SUBTRACT, "retention.ms", "5")) == INVALID_CONFIG


@pytest.mark.parametrize("name", INCREMENTAL)
def test_refused_changes_change_nothing(admins: Admins, new_topic: Callable[..., str], name: str) -> None:
    topic, admin = new_topic("refused", **{"retention.ms": "1234567"}), admins[name]
    good = Change(SET, "retention.ms", "7654321")
    before = admin.settings(topic)
    for bad in (
        Change(SET, "no.such.setting", "1"),
        Change(SET, "retention.bytes", "plenty"),
        Change(SET, "segment.ms", "0"),
        Change(SET, "min.insync.replicas", "0"),
        Change(SET, "cleanup.policy", "shred"),
        Change(SET, "compression.type", "rar"),
        Change(SET, "message.timestamp.type", "Sometime"),
    ):
        assert refusal(admin, topic, good, bad) == INVALID_CONFIG, bad
        assert refusal(admin, topic, bad, validate_only=True) == INVALID_CONFIG, bad
    admin.alter(topic, good, validate_only=True)
    assert refusal(admin, fresh_name("never-made"), good) == UNKNOWN_TOPIC_OR_PARTITION
    assert admin.settings(topic) == before
    # The last one asked for takes its turn behind all the refused ones.
    admin.alter(topic, Change(SET, "segment.ms", "999999"))
    assert value(admin, topic, "segment.ms", "999999") == "999999"
    assert admin.settings(topic)["retention.ms"].value == "1234567"


@pytest.mark.parametrize("name", REPLACING)
def test_settings_replaced_as_a_whole(admins: Admins, new_topic: Callable[..., str], name: str) -> None:
    topic, admin = new_topic("replaced", **{"retention.ms": "1234567", "segment.ms": "555555"}), admins[name]
    admin.replace(topic, {"retention.ms": "7654321", "max.message.bytes": "65432"})
    assert value(admins.java, topic, "retention.ms", "7654321") == "7654321"
    found = admins.java.settings(topic)
    assert found["max.message.bytes"].value == "65432"
    if name == "kafka-python":  # it sends what it finds set along with the caller's
        assert found["segment.ms"].value == "555555"
    else:
        assert found["segment.ms"].source != TOPIC_SOURCE
    for config in ({"no.such.setting": "1"}, {"retention.ms": "soon"}):
        with pytest.raises(ClientError) as failure:
            admin.replace(topic, config)
        assert failure.value.code == INVALID_CONFIG
    assert admins.java.settings(topic)["retention.ms"].value == "7654321"


def test_changes_outlive_the_broker(tmp_path: Path) -> None:
    topic = "kept"
    first = start(tmp_path)
    try:
        ConfluentClient(first.bootstrap).create_topic(topic, 2, {"segment.ms": "555555"})
        admin = ConfluentAdmin(first.bootstrap)
        admin.alter(topic, Change(SET, "retention.ms", "7654321"), Change(DELETE, "segment.ms"))
        admin.create_partitions(topic, 5)
    finally:
        first.stop()
    second = start(tmp_path)
    try:
        admin = ConfluentAdmin(second.bootstrap)
        found = admin.settings(topic)
        assert (found["retention.ms"].value, found["retention.ms"].source) == ("7654321", TOPIC_SOURCE)
        assert found["segment.ms"].source != TOPIC_SOURCE
        assert ConfluentClient(second.bootstrap).topics() == {topic: 5}
    finally:
        second.stop()
