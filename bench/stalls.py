"""`python -m bench.stalls`: the longest step of the broker's loop while one large request after the other is served.

A step is one callback of the loop, measured in CPU time of its thread, so that neighbours on the machine do not count.
While it runs nobody else is served. Nothing is compared with Kafka, whose requests have threads.
"""

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from asyncio.events import Handle
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from penstock.engine.groups.consumer_requests import ConsumerHeartbeat
from penstock.engine.groups.offsets import CommitRequest, NewOffset
from penstock.engine.groups.topic_patterns import SEES_ALL
from penstock.protocols.kafka_wire.messages import encode, schema_of
from penstock.server.broker import Broker
from penstock.server.config import Address, Config, Defaults, Listeners

TOPICS, WIDTH = 9, 1_000
GROUP_OFFSETS = 100_000
MEMBERS = 50
PASSES = 3

Work = Callable[[], Awaitable[object]]


class Steps:
    """Times every callback of the loop; a context manager."""

    def __init__(self) -> None:
        self.longest_s = self.total_s = 0.0
        original = Handle._run

        def run(handle: Handle) -> None:
            began_s = time.thread_time()
            original(handle)
            took_s = time.thread_time() - began_s
            self.total_s += took_s
            self.longest_s = max(self.longest_s, took_s)

        self._patch = patch.object(Handle, "_run", run)

    async def measure(self, work: Work) -> tuple[float, float]:
        """Longest step and all steps together, in milliseconds."""
        await asyncio.sleep(0.05)
        self.longest_s = self.total_s = 0.0
        await work()
        await asyncio.sleep(0.05)
        return self.longest_s * 1000, self.total_s * 1000

    def __enter__(self) -> "Steps":
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()


class Wire:
    """A connection that sends bodies encoded before the measurement began."""

    def __init__(self, broker: Broker) -> None:
        self._address = broker.kafka_address

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(*self._address, limit=1 << 26)

    async def send(self, key: int, version: int, flexible: bool, body: bytes) -> bytes:
        head = (
            key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff" + (b"\0" if flexible else b"")
        )
        self._writer.write((len(head) + len(body)).to_bytes(4, "big") + head + body)
        return await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4), "big"))

    def request(self, api: str, key: int, version: int, values: dict[str, Any]) -> Work:
        schema = schema_of(api, version, "request")
        schema_of(api, version, "response")
        body = encode(schema, values)
        return lambda: self.send(key, version, schema.flexible, body)


def _rows(make: Callable[[int], Any], rows: str, name: str = "name") -> list[dict[str, Any]]:
    return [{name: f"t{topic}", rows: [make(index) for index in range(WIDTH)]} for topic in range(TOPICS)]


def _requests(wire: Wire) -> dict[str, Work]:
    twice = _rows(lambda i: i, "partition_indexes")
    commit = _rows(
        lambda i: {"partition_index": i, "committed_offset": 7, "committed_leader_epoch": 0, "committed_metadata": ""},
        "partitions",
    )
    stranger = {"group_id": "wire", "member_id": "", "generation_id_or_member_epoch": -1, "group_instance_id": None}
    latest = _rows(lambda i: {"partition_index": i, "current_leader_epoch": -1, "timestamp": -1}, "partitions")
    epochs = _rows(lambda i: {"partition": i, "current_leader_epoch": -1, "leader_epoch": 0}, "partitions", "topic")
    asked = [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": twice} for group in ("wire", "other")]
    return {
        "OffsetCommit": wire.request("offset_commit", 8, 9, stranger | {"topics": commit}),
        "OffsetFetch, two groups": wire.request("offset_fetch", 9, 9, {"groups": asked, "require_stable": True}),
        "ListOffsets": wire.request(
            "list_offsets", 2, 9, {"replica_id": -1, "isolation_level": 1, "topics": latest, "timeout": 0}
        ),
        "OffsetForLeaderEpoch": wire.request("offset_for_leader_epoch", 23, 4, {"replica_id": -1, "topics": epochs}),
        "DeleteRecords": wire.request(
            "delete_records",
            21,
            2,
            {"topics": _rows(lambda i: {"partition_index": i, "offset": 0}, "partitions"), "timeout": 1000},
        ),
        "DescribeProducers": wire.request("describe_producers", 61, 0, {"topics": twice}),
        "AddPartitionsToTxn": wire.request(
            "add_partitions_to_txn",
            24,
            3,
            {
                "v3_and_below_transactional_id": "nobody",
                "v3_and_below_producer_id": 1,
                "v3_and_below_producer_epoch": 0,
                "v3_and_below_topics": _rows(lambda i: i, "partitions"),
            },
        ),
        "Metadata, all topics": wire.request(
            "metadata", 3, 12, {"topics": None, "include_topic_authorized_operations": False}
        ),
        "Metadata, 18,000 unknown topics": wire.request(
            "metadata",
            3,
            12,
            {
                "topics": [{"topic_id": None, "name": f"x{i}"} for i in range(18_000)],
                "allow_auto_topic_creation": False,
            },
        ),
        "OffsetDelete": wire.request(
            "offset_delete",
            47,
            0,
            {"group_id": "wire", "topics": _rows(lambda i: {"partition_index": i}, "partitions")},
        ),
    }


def _heartbeat(member: int, epoch: int, names: tuple[str, ...]) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        group_id="storm",
        member_id=f"m{member}",
        member_epoch=epoch,
        instance_id=None,
        rack_id=None,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=names,
        subscribed_topic_regex=None,
        server_assignor=None,
        topic_partitions=() if epoch == 0 else None,
        client_id="",
        client_host="",
    )


async def _groups(broker: Broker, steps: Steps) -> dict[str, tuple[float, float]]:
    groups = broker._engine.groups
    offsets = {("gone", partition): NewOffset(1) for partition in range(GROUP_OFFSETS)}
    commit = await steps.measure(lambda: groups.commit(CommitRequest("huge", "", -1, None, offsets)))
    delete = await steps.measure(lambda: groups.delete("huge"))
    for index in range(20):
        few = {("gone", partition): NewOffset(1) for partition in range(GROUP_OFFSETS // 20)}
        await groups.commit(CommitRequest(f"some-{index}", "", -1, None, few))
    forget = await steps.measure(lambda: groups.topic_deleted("gone"))
    names = tuple(f"t{topic}" for topic in range(TOPICS))

    async def storm() -> None:
        joins = (groups.consumer_heartbeat(_heartbeat(member, 0, names), SEES_ALL) for member in range(MEMBERS))
        await asyncio.gather(*joins)

    joins = await steps.measure(storm)
    one = await steps.measure(lambda: groups.consumer_heartbeat(_heartbeat(MEMBERS, 0, names), SEES_ALL))
    leave = await steps.measure(lambda: groups.consumer_heartbeat(_heartbeat(MEMBERS, -1, names), SEES_ALL))
    return {
        f"engine: commit {GROUP_OFFSETS:,} offsets": commit,
        f"engine: delete a group with {GROUP_OFFSETS:,} offsets": delete,
        f"engine: a topic is deleted, {GROUP_OFFSETS:,} offsets in 20 groups": forget,
        f"KIP-848: {MEMBERS} members join at once, {TOPICS * WIDTH:,} partitions": joins,
        "KIP-848: one more joins": one,
        "KIP-848: it leaves": leave,
    }


async def measure(directory: Path) -> dict[str, tuple[float, float]]:
    free = Address("127.0.0.1", 0)
    config = Config(
        data_dir=directory,
        listeners=Listeners(kafka=free, http=free),
        defaults=Defaults(topic=MappingProxyType({"flush": "os"}), partitions=WIDTH),
    )
    broker = Broker(config)
    await broker.start()
    try:
        for topic in range(TOPICS):
            await broker._engine.create_topic(f"t{topic}")
        gc.freeze()  # as `penstock serve` does
        gc.set_threshold(50_000, 20, 50)
        wire = Wire(broker)
        await wire.open()
        figures: dict[str, tuple[float, float]] = {}
        with Steps() as steps:
            for name, work in _requests(wire).items():
                passes = [await steps.measure(work) for _ in range(PASSES)]
                figures[name] = max(passes)
            figures |= await _groups(broker, steps)
        return figures
    finally:
        with suppress(TimeoutError):
            await broker.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.stalls", description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="where the data goes for the run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as made:
        figures = asyncio.run(measure(Path(made)))
    print(f"{'':60} longest step, ms   all steps, ms")
    for name, (longest_ms, total_ms) in figures.items():
        print(f"{name:60} {longest_ms:16.1f} {total_ms:15.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
