"""Clients that make up members, groups, offsets and transactions without end: a real broker stays small and quick."""

import contextlib
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from tests.chaos.broker_process import BrokerProcess
from tests.chaos.test_bad_peers import Peer
from tests.chaos.wire import Wire
from tests.doors.kafka import make
from tests.doors.kio_values import request_frame

TOPIC = "floods"
MANY = 6_000
MEMBERS = 5_000
"""Of one group at most."""
ROOM = 64 << 20
"""What members of all groups may say of themselves."""
NUMBER = b"#####"
IN_FLIGHT = 40
OK, ID_REQUIRED, FULL, SUBSCRIBED = 0, 79, 81, 86
LONGEST_WAIT_S = 1.0
"""Of a client that has nothing to do with the flood, for one record; two cores are shared with other tests."""


@pytest.fixture
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("floods")
    with BrokerProcess(directory / "data", directory, config={"defaults": {"topic": {"partitions": 2}}}) as process:
        process.start()
        with Peer(process) as peer:
            peer.ask("metadata", 4, topics=[{"name": TOPIC}], allow_auto_topic_creation=True)
            for key_type in (0, 1):
                peer.ask("find_coordinator", 2, key="any", key_type=key_type)
            peer.ask("describe_groups", 0, groups=("any",))
        yield process
        assert "request failed" not in process.output()
        assert "Traceback" not in process.output()
        assert process.stop() == 0


class Bystander:
    """Writes one record after the other, and knows how long it waited at most."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._wire = Wire(broker.bootstrap)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.longest_s, self.written, self.refused = 0.0, 0, 0

    def _write(self) -> None:
        while not self._over.is_set():
            begun = time.monotonic()
            self.refused += self._wire.produce_one(TOPIC, b"x").error_code != OK
            self.longest_s = max(self.longest_s, time.monotonic() - begun)
            self.written += 1
            self._over.wait(0.005)

    def __enter__(self) -> "Bystander":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def resident_bytes(broker: BrokerProcess) -> int:
    return int(psutil.Process(broker.pid).memory_info().rss)


def codes_of(peer: Peer, template: bytes, count: int, at: int) -> list[int]:
    """Error codes, found `at` a place of each answer, of a request with another number in it each time."""
    codes: list[int] = []
    for number in range(count + IN_FLIGHT):
        if number < count:
            peer.send_frame(template.replace(NUMBER, b"%05d" % number))
        if number >= IN_FLIGHT:
            answer = peer.receive_frame()
            codes.append(struct.unpack_from(">h", answer, at % len(answer))[0])
    return codes


def joining(group_id: str, **fields: Any) -> dict[str, Any]:
    usual = {
        "session_timeout": 60_000, "rebalance_timeout": 60_000, "member_id": "", "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0\1\0\0\0\0\xff\xff\xff\xff"}],
    }  # fmt: skip
    return {"group_id": group_id, **usual, **fields}


def committing(group_id: str) -> dict[str, Any]:
    row = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    topics = [{"name": TOPIC, "partitions": [row]}]
    return {"group_id": group_id, "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}


def test_floods(serving: BrokerProcess) -> None:
    """One after the other on one broker: what the first left behind, the next must not stumble over."""
    before = resident_bytes(serving)
    name = NUMBER.decode()
    with Bystander(serving) as bystander, Peer(serving) as peer:
        template = request_frame(make("join_group", 9, joining("one")), 5)
        codes = codes_of(peer, template, MANY, 9)
        assert (codes.count(ID_REQUIRED), codes.count(FULL)) == (MEMBERS, MANY - MEMBERS)
        template = request_frame(make("offset_commit", 8, committing(name)), 5)
        assert set(codes_of(peer, template, MANY, -5)) == {OK}
        asked = {"transactional_id": name, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        template = request_frame(make("init_producer_id", 4, asked), 5)
        assert set(codes_of(peer, template, MANY, 9)) == {OK}

        names = tuple(f"{number:05}" for number in range(MANY))
        described = peer.ask("describe_groups", 5, groups=names)
        assert {group["group_state"] for group in described["groups"]} == {"Empty"}
        assert len(peer.ask("list_groups", 4)["groups"]) >= MANY
        assert len(peer.ask("list_transactions", 0)["transaction_states"]) == MANY
    assert bystander.refused == 0
    assert bystander.written > 100
    assert bystander.longest_s < LONGEST_WAIT_S
    assert resident_bytes(serving) - before < 150 << 20


def test_metadata_of_many_groups_is_bounded_together(serving: BrokerProcess) -> None:
    """A group may have 16 MiB of it; a client that makes up groups may not have that again and again."""
    before = resident_bytes(serving)
    protocols = [{"name": "range", "metadata": bytes(1_000_000)}]
    template = request_frame(make("join_group", 3, joining(f"large-{NUMBER.decode()}", protocols=protocols)), 5)
    with Bystander(serving) as bystander, contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Peer(serving)) for _ in range(40)]
        codes = []
        for begin in range(0, 400, len(peers)):
            for number, peer in enumerate(peers, begin):
                peer.send_frame(template.replace(NUMBER, b"%05d" % number))
            codes += [struct.unpack_from(">h", peer.receive_frame(), 8)[0] for peer in peers]
        assert (codes.count(OK), codes.count(FULL)) == (ROOM // 1_000_000, 400 - ROOM // 1_000_000)
        assert resident_bytes(serving) - before < 300 << 20
    assert bystander.refused == 0
    assert bystander.longest_s < LONGEST_WAIT_S


def test_subscriptions_to_half_a_million_nothings(serving: BrokerProcess) -> None:
    """What a classic member says it reads is looked at when offsets are deleted."""
    count = 500_000
    metadata = struct.pack(">hi", 0, count) + bytes(2 * count)
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(Peer(serving)) for _ in range(8)]
        for member in members:
            fields = joining("nothings", protocols=[{"name": "range", "metadata": metadata}])
            member.send_frame(request_frame(make("join_group", 3, fields), 5))
        assert [struct.unpack_from(">h", member.receive_frame(), 8)[0] for member in members] == [OK] * 8
        with Bystander(serving) as bystander, Peer(serving) as peer:
            asked = [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]
            deleted = peer.ask("offset_delete", 0, group_id="nothings", topics=asked)
        assert deleted["topics"][0]["partitions"][0]["error_code"] == SUBSCRIBED, "what they read is not known"
        assert bystander.longest_s < LONGEST_WAIT_S
