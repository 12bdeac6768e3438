"""Admin requests by hand, every version: what no client sends, such as doubles and numbers out of range."""

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.peers.broker import Broker

from .admin_apis import ADMIN_APIS, versions
from .conftest import eventually, fresh_name
from .wire import Wire, batch, entity_of, producer_id


def partition_count(wire: Wire, topic: str) -> int:
    (found,) = wire.call(
        "describe_topic_partitions", 0, topics=[{"name": topic}], response_partition_limit=2000, cursor=None
    ).topics
    return len(found.partitions)


def create_partitions(
    wire: Wire, *topics: tuple[str, int, list[list[int]] | None], version: int = 3, validate_only: bool = False
) -> dict[str, ErrorCode]:
    wanted = [
        {
            "name": name,
            "count": count,
            "assignments": None if assigned is None else [{"broker_ids": each} for each in assigned],
        }
        for name, count, assigned in topics
    ]
    answer = wire.call("create_partitions", version, topics=wanted, timeout=10_000, validate_only=validate_only)
    return {each.name: each.error_code for each in answer.results}


def delete_records(wire: Wire, topic: str, *places: tuple[int, int], version: int = 2) -> dict[int, Any]:
    partitions = [{"partition_index": partition, "offset": offset} for partition, offset in places]
    answer = wire.call("delete_records", version, topics=[{"name": topic, "partitions": partitions}], timeout=10_000)
    return {each.partition_index: each for topic in answer.topics for each in topic.partitions}


def test_every_version_is_advertised(wire: Wire) -> None:
    answer = wire.call("api_versions", 4, client_software_name="wire", client_software_version="1")
    advertised = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    for api, (first, last) in ADMIN_APIS.items():
        key = entity_of(api, first, "request").__api_key__
        assert advertised[key] == (first, last), api


@pytest.mark.parametrize("version", range(5))
def test_features_in_api_versions(wire: Wire, version: int) -> None:
    answer = wire.call("api_versions", version, client_software_name="wire", client_software_version="1")
    assert answer.error_code is ErrorCode.none
    if version >= 3:
        assert answer.finalized_features_epoch >= 0
        ranges = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
        levels = {each.name: each.max_version_level for each in answer.finalized_features}
        assert levels
        # Old clients cannot read a feature that may be 0, so version 3 leaves it out (KIP-584, KAFKA-17011).
        assert all(low >= 1 for low, _high in ranges.values()) or version >= 4
        assert all(ranges[name][0] <= level <= ranges[name][1] for name, level in levels.items() if name in ranges)


@pytest.mark.parametrize("version", versions("create_partitions"))
def test_create_partitions(wire: Wire, new_topic: Callable[..., str], version: int) -> None:
    topic, missing = new_topic("grow"), fresh_name("never-made")
    asked = (topic, 3, None), (missing, 3, None)
    expected = {topic: ErrorCode.none, missing: ErrorCode.unknown_topic_or_partition}
    assert create_partitions(wire, *asked, version=version, validate_only=True) == expected
    assert partition_count(wire, topic) == 1
    assert create_partitions(wire, *asked, version=version) == expected
    assert eventually(lambda: partition_count(wire, topic), lambda count: count == 3) == 3
    assert create_partitions(wire, (topic, 3, None), version=version) == {topic: ErrorCode.invalid_partitions}
    assert create_partitions(wire, version=version) == {}


def test_odd_ways_to_grow(wire: Wire, new_topic: Callable[..., str], node: int) -> None:
    topic, other = new_topic("odd"), new_topic("other")
    # A topic named twice is refused, the others are not.
    assert create_partitions(wire, (topic, 2, None), (topic, 3, None), (other, 2, None)) == {
        topic: ErrorCode.invalid_request,
        other: ErrorCode.none,
    }
    wrong: list[list[list[int]]] = [[], [[]], [[node, node]], [[node + 98]], [[node], [node]], [[-1]]]
    for assigned in wrong:
        found = create_partitions(wire, (topic, 2, assigned))
        assert found == {topic: ErrorCode.invalid_replica_assignment}, assigned
    for name in ("", "not/a/name"):
        assert create_partitions(wire, (name, 2, None)) == {name: ErrorCode.unknown_topic_or_partition}
    for count in (-(1 << 31), -1, 0, 1):
        assert create_partitions(wire, (topic, count, None)) == {topic: ErrorCode.invalid_partitions}, count
    assert partition_count(wire, topic) == 1
    assert create_partitions(wire, (topic, 3, [[node], [node]])) == {topic: ErrorCode.none}
    assert eventually(lambda: partition_count(wire, topic), lambda count: count == 3) == 3


@pytest.mark.parametrize("version", versions("delete_records"))
def test_delete_records(wire: Wire, new_topic: Callable[..., str], now_ms: int, version: int) -> None:
    topic = new_topic("trim", partitions=2)
    for partition in (0, 1):
        wire.produce(topic, {partition: batch([b"v"] * 10, timestamp_ms=now_ms)})
    found = delete_records(wire, topic, (0, 4), (1, -1), (2, 0), (-1, 0), version=version)
    assert {index: (each.error_code, each.low_watermark) for index, each in found.items()} == {
        0: (ErrorCode.none, 4),
        1: (ErrorCode.none, 10),
        2: (ErrorCode.unknown_topic_or_partition, -1),
        -1: (ErrorCode.unknown_topic_or_partition, -1),
    }
    assert delete_records(wire, topic, (0, 5), (0, 6), version=version)[0].low_watermark == 6, "the last one counts"
    for offset in (11, (1 << 63) - 1, -2, -(1 << 63)):
        refused = delete_records(wire, topic, (0, offset), version=version)[0]
        assert refused.error_code is ErrorCode.offset_out_of_range, offset
    assert wire.fetch(topic, 0, 5).error_code is ErrorCode.offset_out_of_range
    assert wire.fetch(topic, 0, 6).log_start_offset == 6
    assert delete_records(wire, fresh_name("never-made"), (0, 0), version=version)[0].error_code is (
        ErrorCode.unknown_topic_or_partition
    )
    assert delete_records(wire, topic, version=version) == {}


@pytest.mark.parametrize("version", versions("describe_cluster"))
def test_describe_cluster(broker: Broker, wire: Wire, version: int) -> None:
    def ask(endpoint_type: int = 1, *, operations: bool = False) -> Any:
        return wire.call(
            "describe_cluster",
            version,
            include_cluster_authorized_operations=operations,
            endpoint_type=endpoint_type,
            include_fenced_brokers=True,
        )

    found = ask()
    (only,) = found.brokers
    assert found.error_code is ErrorCode.none
    assert f"{only.host}:{only.port}" == broker.bootstrap
    assert found.controller_id == only.broker_id
    assert found.cluster_authorized_operations == -(1 << 31), "not asked for"
    assert ask(operations=True).cluster_authorized_operations > 0
    if version >= 1:
        assert ask(2).error_code is ErrorCode.mismatched_endpoint_type
        assert ask(9).error_code is ErrorCode.unsupported_endpoint_type
        assert ask(2).brokers == ask(9).brokers == ()


def test_describe_topic_partitions(wire: Wire, new_topic: Callable[..., str], node: int) -> None:
    first, second = sorted(new_topic("pages", partitions=3) for _ in range(2))
    missing = f"{second}-missing"

    def ask(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
        place = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
        topics = [{"name": name} for name in names]
        return wire.call("describe_topic_partitions", 0, topics=topics, response_partition_limit=limit, cursor=place)

    def pages(answer: Any) -> list[tuple[str, list[int]]]:
        return [(each.name, [place.partition_index for place in each.partitions]) for each in answer.topics]

    whole = ask(missing, second, first, second)
    assert pages(whole) == [(first, [0, 1, 2]), (second, [0, 1, 2]), (missing, [])]
    assert [each.error_code for each in whole.topics] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert whole.next_cursor is None
    for place in whole.topics[0].partitions:
        assert (place.leader_id, place.replica_nodes, place.isr_nodes, place.offline_replicas) == (
            node,
            (node,),
            (node,),
            (),
        )
        assert place.leader_epoch >= 0
    assert whole.topics[0].topic_id is not None
    assert {name for name, _ in pages(ask())} >= {first, second}, "no names ask for all topics"
    for limit in (-1, 0, 1):
        page = ask(first, limit=limit)
        assert pages(page) == [(first, [0])], limit
        assert (page.next_cursor.topic_name, page.next_cursor.partition_index) == (first, 1)
    assert pages(ask(first, second, limit=2, cursor=(first, 2))) == [(first, [2]), (second, [0])]
    assert pages(ask(first, cursor=(first, 99))) == [(first, [])]
    for cursor in ((first, -1), (f"{first}-not-asked-for", 0)):
        refused = ask(first, second, cursor=cursor)
        assert [each.error_code for each in refused.topics] == [ErrorCode.invalid_request] * 2


@pytest.mark.parametrize("version", versions("describe_log_dirs"))
def test_describe_log_dirs(wire: Wire, new_topic: Callable[..., str], now_ms: int, version: int) -> None:
    topic = new_topic("sizes", partitions=2)
    one = batch([b"v" * 100], timestamp_ms=now_ms)
    wire.produce(topic, {1: one})

    def ask(*partitions: int, name: str = topic) -> dict[int, int]:
        answer = wire.call("describe_log_dirs", version, topics=[{"topic": name, "partitions": list(partitions)}])
        (directory,) = answer.results
        assert directory.error_code is ErrorCode.none
        if version >= 4:
            assert 0 < directory.usable_bytes <= directory.total_bytes
        return {
            each.partition_index: each.partition_size
            for found in directory.topics
            if found.name == name
            for each in found.partitions
        }

    assert ask(0, 1) == {0: 0, 1: len(one)}
    assert ask(1, -1, 99) == {1: len(one)}
    assert ask(0, name=fresh_name("never-made")) == {}
    (everything,) = wire.call("describe_log_dirs", version, topics=None).results
    assert topic in [each.name for each in everything.topics]
    (nothing,) = wire.call("describe_log_dirs", version, topics=[]).results
    assert nothing.topics == ()


def test_describe_producers(wire: Wire, new_topic: Callable[..., str], now_ms: int) -> None:
    topic, own = new_topic("producers"), producer_id(wire)
    wire.produce(topic, {0: batch([b"v"] * 3, producer=(own, 0, 0), timestamp_ms=now_ms - 5000)})
    wire.produce(topic, {0: batch([b"v"] * 3, producer=(own, 0, 3), timestamp_ms=now_ms - 4000)})
    asked = [
        {"name": topic, "partition_indexes": [0, -1, 99, 0]},
        {"name": fresh_name("never-made"), "partition_indexes": [0]},
    ]
    here, missing = wire.call("describe_producers", 0, topics=asked).topics
    assert {each.partition_index: each.error_code for each in here.partitions} == {
        0: ErrorCode.none,
        -1: ErrorCode.unknown_topic_or_partition,
        99: ErrorCode.unknown_topic_or_partition,
    }
    assert missing.partitions[0].error_code is ErrorCode.unknown_topic_or_partition
    (found,) = here.partitions[0].active_producers
    assert (found.producer_id, found.producer_epoch, found.last_sequence) == (own, 0, 5)
    assert found.last_timestamp == now_ms - 4000
    assert found.current_txn_start_offset == -1
    assert wire.call("describe_producers", 0, topics=[]).topics == ()
