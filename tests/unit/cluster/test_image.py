"""The image: never older than it was, whatever order news comes in, and equal to the store once it has heard of all."""

from dataclasses import replace
from random import Random
from uuid import UUID

import orjson
import pytest

from penstock.cluster import keys
from penstock.cluster.image import BrokerRecord, ControllerRecord, DeletedTopic, End, Image
from penstock.engine.groups.group_configs import group_key
from penstock.engine.partition_state import PartitionState
from penstock.engine.topics import TopicRecord
from penstock.ports.metadata import Change, Entry, Snapshot

ID = UUID(int=7)
BROKER = BrokerRecord(2, "h", 9092, "i", 9093, "r1", 5, clean=True)
STATE = PartitionState((2, 1), (2,), 2, 4, (1,), ())


def started(incarnation: int) -> bytes:
    return orjson.dumps({"incarnation": incarnation})


def topic(topic_id: UUID, partitions: int) -> bytes:
    return TopicRecord(topic_id, partitions, {"flush": "os"}, 0).encode()


def test_every_kind_of_key_is_understood_and_forgotten() -> None:
    values = {
        keys.TOPICS + "orders": topic(ID, 1),
        keys.partition_key(ID, 0): STATE.encode(),
        keys.DELETED + str(UUID(int=8)): DeletedTopic("old", (1, 2)).encode(),
        keys.broker_key(2): BROKER.encode(),
        keys.member_key(2): started(5),
        keys.admitted_key(2): started(5),
        keys.CONTROLLER: ControllerRecord(2, 5).encode(),
        keys.end_key(ID, 0, 2): End(5, 3, 100).encode(),
        keys.config_key(None): b'{"log.retention.ms":"1"}',
        keys.config_key(2): b'{"penstock.cordon":"drained"}',
        group_key("a/b"): b'{"share.delivery.count.limit":"3"}',
        keys.CLUSTER: b"{}",
        "producer-ids": b"1000",
    }
    image = Image()
    assert image.apply(Change(key, value, 3) for key, value in values.items()) == list(values)
    assert image.revision == 3
    assert image.topics["orders"].record == TopicRecord(ID, 1, {"flush": "os"}, 0)
    assert image.topics["orders"].revision == 3
    assert image.states == {ID: {0: PartitionState((2, 1), (2,), 2, 4, (1,), (), 3)}}
    assert image.deleted == {UUID(int=8): DeletedTopic("old", (1, 2), 3)}
    assert image.brokers == {2: BrokerRecord(2, "h", 9092, "i", 9093, "r1", 5, clean=True, revision=3)}
    assert (image.members, image.admitted) == ({2: 5}, {2: 5})
    assert image.controller == ControllerRecord(2, 5, 3)
    assert image.ends == {(ID, 0): {2: End(5, 3, 100)}}
    assert (image.config(2, "log.retention.ms"), image.config(2, "penstock.cordon")) == ("1", "drained")
    assert (image.cordoned(), image.drained()) == ({2}, {2})
    assert image.groups == {"a/b": {"share.delivery.count.limit": "3"}}
    assert [(entry.name, index) for entry, index, _ in image.partitions()] == [("orders", 0)]

    image.apply(Change(key, None, 4) for key in values)
    assert not any(
        (image.topics, image.states, image.deleted, image.brokers, image.members, image.admitted, image.ends)
    )
    assert not image.configs and not image.groups
    assert not image.departed


def test_without_a_controller_those_whose_registrations_ended_are_turned_to_as_before() -> None:
    """As when the store is being stopped: it lets all leases end, and is gone."""
    image = Image()
    there = {keys.broker_key(2): BROKER.encode(), keys.CONTROLLER: ControllerRecord(2, 5).encode()}
    image.apply(Change(key, value, 3) for key, value in there.items())
    image.apply([Change(keys.broker_key(2), None, 4)])
    assert not image.reachable(), "somebody can elect another leader"
    image.apply([Change(keys.CONTROLLER, None, 5)])
    assert list(image.reachable()) == [2]
    assert not image.is_live(2)


def test_a_broker_that_has_gone_is_remembered_until_it_is_back_or_forgotten() -> None:
    image = Image()
    image.apply([Change(keys.broker_key(2), BROKER.encode(), 3), Change(keys.broker_key(2), None, 4)])
    assert (list(image.brokers), list(image.departed)) == ([], [2])
    image.apply([Change(keys.broker_key(2), BROKER.encode(), 5)])
    assert (list(image.brokers), list(image.departed)) == ([2], [])
    image.apply([Change(keys.broker_key(2), None, 6), Change(keys.member_key(2), None, 7)])
    assert not image.departed
    assert image.controller is None


def test_old_and_repeated_news_change_nothing() -> None:
    image = Image()
    image.apply([Change(keys.member_key(1), started(2), 8)])
    assert image.apply([Change(keys.member_key(1), started(1), 5)]) == []
    assert image.apply([Change(keys.member_key(1), started(2), 8)]) == []
    assert image.apply([Change(keys.member_key(1), None, 7)]) == []
    assert image.members == {1: 2}


def test_a_look_takes_away_what_is_gone_and_leaves_what_came_after_it() -> None:
    image = Image()
    image.apply([Change(keys.member_key(1), started(1), 1), Change(keys.member_key(2), started(1), 2)])
    image.apply([Change(keys.member_key(3), started(1), 9), Change(keys.member_key(4), None, 9)])
    look = Snapshot([Entry(keys.member_key(2), started(1), 2), Entry(keys.member_key(4), started(1), 4)], 6)
    assert image.replace(look) == [keys.member_key(1)]
    assert image.members == {2: 1, 3: 1}
    assert image.revision == 9


def test_a_watch_that_begins_too_early_brings_nothing_back() -> None:
    image = Image()
    image.apply([Change(keys.member_key(1), started(1), 1)])
    image.replace(Snapshot([], 5))
    assert image.apply([Change(keys.member_key(1), started(1), 1)]) == []
    assert image.members == {}


def test_a_broker_is_live_when_this_start_of_it_is_admitted() -> None:
    image = Image()
    image.apply([Change(keys.broker_key(2), BROKER.encode(), 1)])
    assert not image.is_live(2)
    image.apply([Change(keys.admitted_key(2), started(4), 2)])
    assert not image.is_live(2) and not image.live()
    image.apply([Change(keys.admitted_key(2), started(5), 3)])
    assert image.is_live(2) and list(image.live()) == [2]
    image.apply([Change(keys.broker_key(2), None, 4)])
    assert not image.is_live(2)


def test_partitions_are_those_of_topics_that_exist() -> None:
    image = Image()
    image.apply(Change(keys.partition_key(ID, index), STATE.encode(), 1) for index in range(3))
    assert list(image.partitions()) == []
    image.apply([Change(keys.TOPICS + "orders", topic(ID, 2), 2)])
    assert [index for _, index, _ in image.partitions()] == [0, 1]  # the third is of a growth that is under way


@pytest.mark.parametrize("seed", range(50))
def test_whatever_order_news_comes_in_the_image_ends_as_the_store_is(seed: int) -> None:
    """Two watches, one begun again and again, and looks that arrive late, against a plain dictionary."""
    random = Random(seed)
    truth: dict[str, Entry] = {}
    history: list[Change] = []
    late: list[Snapshot] = []
    image = Image()
    read = [0, 0]
    for revision in range(1, 200):
        key = keys.member_key(random.randrange(6))
        if key in truth and random.random() < 0.4:
            del truth[key]
            history.append(Change(key, None, revision))
        else:
            truth[key] = Entry(key, started(revision), revision)
            history.append(Change(key, started(revision), revision))
        if random.random() < 0.1:
            late.append(Snapshot(sorted(truth.values(), key=lambda entry: entry.key), revision))
        if late and random.random() < 0.2:
            image.replace(late.pop(0))
        before = dict(image.members)
        for at in range(2):
            count = random.randrange(4)
            image.apply(history[read[at] : read[at] + count])
            read[at] = min(read[at] + count, len(history))
        assert all(image.members[member] >= before.get(member, 0) for member in image.members)
        if random.random() < 0.05:
            read[1] = random.randrange(read[1] + 1)
    for look in late:
        image.replace(look)
    image.apply(history[min(read) :])
    assert image.members == {int(key.removeprefix(keys.MEMBERS)): entry.revision for key, entry in truth.items()}


# --- a broker's record, and the release before it had endpoints

_OLD_BYTES = (
    b'{"id":2,"host":"h","port":9092,"internal_host":"i","internal_port":9093,"rack":"r1","incarnation":5,'
    b'"clean":true,"leaving":false,"level":1,"proof":"1:ab"}'
)
_OLD_NAMES = frozenset(orjson.loads(_OLD_BYTES))


def test_a_record_of_the_release_before_endpoints_is_read() -> None:
    record = BrokerRecord.decode(_OLD_BYTES, 3)
    assert record == replace(BROKER, revision=3, level=1, proof="1:ab")
    assert (record.endpoints, record.endpoints_proof) == ({}, "")


def test_the_release_before_endpoints_finds_all_that_it_reads_as_it_was() -> None:
    """It takes its fields by name, and leaves others alone."""
    endpoints = {"kafka": ("h", 9092), "outside": ("o", 9192)}
    record = replace(BROKER, level=1, proof="1:ab", endpoints=endpoints, endpoints_proof="2:cd")
    written = orjson.loads(record.encode())
    assert {name: written[name] for name in _OLD_NAMES} == orjson.loads(_OLD_BYTES)
    assert set(written) - _OLD_NAMES == {"endpoints", "endpoints_proof"}
    assert BrokerRecord.decode(record.encode(), 4) == replace(record, revision=4)
    assert hash(record) == hash(record)
