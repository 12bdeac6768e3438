"""Topics made, listed, refused and removed through every client that can."""

import time
from collections.abc import Callable, Mapping

import pytest

from .clients import CLIENTS, Client, ClientError
from .clients.client import DEADLINE_S
from .conftest import Judges, fresh_name
from .records import Record, matches

INVALID_TOPIC = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_CONFIG = 40
ADMINS = [name for name, each in CLIENTS.items() if each.has_admin]


def listed(client: Client, topic: str, *, wanted: bool) -> bool:
    """Whether the topic is listed, once that is as wanted or the deadline has passed."""
    deadline = time.monotonic() + DEADLINE_S
    found = topic in client.topics()
    while found != wanted and time.monotonic() < deadline:
        found = topic in client.topics()
    return found


@pytest.mark.parametrize("name", ADMINS)
def test_create_write_delete(judges: Judges, name: str) -> None:
    client, topic = judges[name], fresh_name("made")
    client.create_topic(topic, 3)
    for each in CLIENTS:
        assert listed(judges[each], topic, wanted=True), each
        assert judges[each].topics()[topic] == 3, each
    records = [Record(b"in the last partition")]
    client.produce(topic, 2, records)
    matches(records, judges["java"].read(topic, 2, 0, 1))
    client.delete_topic(topic)
    for each in CLIENTS:
        assert not listed(judges[each], topic, wanted=False), each


@pytest.mark.parametrize("name", ADMINS)
def test_a_recreated_topic_starts_empty(judges: Judges, name: str) -> None:
    client, topic = judges[name], fresh_name("again")
    client.create_topic(topic, 1)
    client.produce(topic, 0, [Record(b"first life")] * 5)
    client.delete_topic(topic)
    assert not listed(client, topic, wanted=False)
    client.create_topic(topic, 1)
    assert listed(client, topic, wanted=True)
    assert client.latest(topic, 0) == 0
    records = [Record(b"second life")]
    assert client.produce(topic, 0, records) == [0]
    matches(records, client.read(topic, 0, 0, 1))


@pytest.mark.parametrize("name", ADMINS)
def test_refused_topics(judges: Judges, new_topic: Callable[..., str], name: str) -> None:
    client = judges[name]

    def refusal(topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> int:
        with pytest.raises(ClientError) as failure:
            client.create_topic(topic, partitions, config or {})
        return failure.value.code

    assert refusal(new_topic("taken")) == TOPIC_ALREADY_EXISTS
    assert refusal("not/a/name") == INVALID_TOPIC
    assert refusal("x" * 250) == INVALID_TOPIC
    assert refusal(fresh_name("config"), config={"retention.ms": "soon"}) == INVALID_CONFIG
    assert refusal(fresh_name("config"), config={"no.such.setting": "1"}) == INVALID_CONFIG


def test_refused_numbers(judges: Judges) -> None:
    # Only the Java client leaves the check of a count to the broker.
    with pytest.raises(ClientError) as failure:
        judges["java"].create_topic(fresh_name("none"), 0)
    assert failure.value.code == INVALID_PARTITIONS
