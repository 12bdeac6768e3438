"""Peers that send garbage, lie, never read or only sit there: they lose their connection, nobody else notices."""

import contextlib
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from tests.chaos.broker_process import BrokerProcess
from tests.chaos.load import wait_until
from tests.chaos.wire import Wire
from tests.doors.kafka import batch_of, fetch_values, make, produce_values, with_header
from tests.doors.kio_values import entity_of, plain, read, request_frame

TOPIC = "bad-peers"
TIMEOUT_S = 20.0
IDLE_CONNECTIONS = 2000
IDLE_BYTES = 30 * 1024
PIPELINED = 10_000
NOW_MS = int(time.time() * 1000)
GOOD = batch_of(b"one", b"two", timestamp_ms=NOW_MS)
CORRUPT, TOO_LARGE, UNSUPPORTED, BAD_CODEC, INVALID = 2, 10, 35, 76, 87


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("bad-peers")
    config = {"defaults": {"topic": {"partitions": 2}}}
    with BrokerProcess(directory / "data", directory, config=config) as process:
        process.start()
        with Peer(process) as peer:
            peer.ask("metadata", 4, topics=[{"name": TOPIC}], allow_auto_topic_creation=True)
        yield process
        assert "request failed" not in process.output()
        assert "Traceback" not in process.output()
        assert process.stop() == 0


@pytest.fixture
def bystander(serving: BrokerProcess) -> Iterator[Wire]:
    """A well-behaved client, connected before, during and after."""
    with Wire(serving.bootstrap) as wire:
        before = wire.produce_one(TOPIC, b"before", 1)
        yield wire
        after = wire.produce_one(TOPIC, b"after", 1)
        assert (before.error_code, after.error_code) == (0, 0)
        assert after.base_offset == before.base_offset + 1


class Peer:
    """A connection that may send anything."""

    def __init__(self, broker: BrokerProcess, *, receive_bytes: int = 0) -> None:
        host, _, port = broker.bootstrap.rpartition(":")
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect((host, int(port)))

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # closed while we were talking
            self.socket.sendall(data)

    def send_frame(self, frame: bytes) -> None:
        self.send(struct.pack(">i", len(frame)) + frame)

    def is_closed(self) -> bool:
        """Whether the broker ends the connection without a word."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(min(size - len(data), 1 << 20))
            assert part, "closed by the broker"
            data += part
        return bytes(data)

    def receive_frame(self) -> bytes:
        return self.receive(struct.unpack(">i", self.receive(4))[0])

    def ask(self, api: str, version: int, /, **values: object) -> dict:
        self.send_frame(request_frame(make(api, version, values), 5))
        frame = self.receive_frame()
        kind: Any = entity_of(api, version, "response")
        head = 5 if kind.__flexible__ and api != "api_versions" else 4
        return plain(read(kind, frame[head:]))

    def produce(self, batch: bytes | None, version: int = 9, **values: object) -> int:
        answer = self.ask("produce", version, **(produce_values(batch, TOPIC) | values))
        return answer["responses"][0]["partition_responses"][0]["error_code"]


def resident_bytes(broker: BrokerProcess) -> int:
    return int(psutil.Process(broker.pid).memory_info().rss)


def cpu_seconds(broker: BrokerProcess) -> float:
    times = psutil.Process(broker.pid).cpu_times()
    return float(times.user + times.system)


TLS_HELLO = bytes.fromhex("16030102000100fc0303") + bytes(200)
GARBAGE = {
    "tls hello": TLS_HELLO,
    "http request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "negative length": b"\xff\xff\xff\xff",
    "most negative length": b"\x80\x00\x00\x00",
    "huge length": b"\x7f\xff\xff\xff",
    "just above the limit": struct.pack(">i", (100 << 20) + 1),
    "empty frame": b"\0\0\0\0",
    "half a header": b"\0\0\0\5\0\3\0\1\0",
    "unknown api": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "unsupported version": struct.pack(">ihhih", 10, 3, 99, 1, -1),
    "produce 0, advertised but not served": struct.pack(">ihhih", 10, 0, 0, 1, -1),
    "forged array count": struct.pack(">ihhihi", 14, 3, 1, 1, -1, (1 << 31) - 1),
    "forged fetch count": struct.pack(">ihhihiiiibi", 31, 1, 4, 1, -1, -1, 0, 0, 0, 0, (1 << 31) - 1),
    "forged produce count": struct.pack(">ihhihhhii", 22, 0, 3, 1, -1, -1, 1, 0, (1 << 31) - 1),
    "client id longer than the request": struct.pack(">ihhih", 10, 3, 1, 1, 30_000),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_closes_its_own_connection(name: str, serving: BrokerProcess, bystander: Wire) -> None:
    with Peer(serving) as peer:
        peer.send(GARBAGE[name])
        assert peer.is_closed()


def test_random_garbage(serving: BrokerProcess, bystander: Wire) -> None:
    rng = random.Random(1)
    before = resident_bytes(serving)
    for _ in range(300):
        with Peer(serving) as peer:
            peer.send(rng.randbytes(rng.choice((1, 3, 4, 5, 100, 5000))))
    assert resident_bytes(serving) - before < 20 << 20


def test_random_bytes_in_good_frames(serving: BrokerProcess, bystander: Wire) -> None:
    rng = random.Random(2)
    for _ in range(300):
        with Peer(serving) as peer:
            key, version = rng.choice((0, 1, 2, 3, 10, 18, 19, 20, 22, 23)), rng.randint(0, 12)
            peer.send_frame(struct.pack(">hhih", key, version, 1, -1) + rng.randbytes(rng.choice((1, 20, 300))))


def test_claimed_lengths_cost_no_memory(serving: BrokerProcess, bystander: Wire) -> None:
    before = resident_bytes(serving)
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            peer = stack.enter_context(Peer(serving))
            peer.send(struct.pack(">i", 100 << 20))
            peer.send(bytes(10))
        assert bystander.produce_one(TOPIC, b"x").error_code == 0, "a turn of the loop later"
        assert resident_bytes(serving) - before < 30 << 20


BATCHES = {
    "control batch": (with_header(GOOD, attributes=0x20), INVALID),
    "control and transactional": (with_header(GOOD, attributes=0x30, producer_id=3), INVALID),
    "delta too large": (with_header(GOOD, last_offset_delta=100), INVALID),
    "count too large": (with_header(GOOD, record_count=1 << 30), INVALID),
    "no records": (with_header(GOOD, record_count=0, last_offset_delta=-1), INVALID),
    "wrong crc": (with_header(GOOD, crc=1), CORRUPT),
    "unknown codec": (with_header(GOOD, attributes=6), BAD_CODEC),
    "two batches": (GOOD + GOOD, INVALID),
    "transactional without producer": (with_header(GOOD, attributes=0x10), INVALID),
    "old magic": (with_header(GOOD, magic=1), INVALID),
    "cut": (GOOD[:50], CORRUPT),
    "nothing": (None, CORRUPT),
    "too large": (batch_of(bytes(11 << 20), timestamp_ms=NOW_MS), TOO_LARGE),
}


@pytest.mark.parametrize("name", BATCHES)
def test_bad_batches_get_their_error_and_the_connection_goes_on(
    name: str, serving: BrokerProcess, bystander: Wire
) -> None:
    batch, code = BATCHES[name]
    with Peer(serving) as peer:
        assert peer.produce(batch) == code
        assert peer.produce(GOOD) == 0


def test_api_versions_of_the_future(serving: BrokerProcess) -> None:
    with Peer(serving) as peer:
        peer.send_frame(struct.pack(">hhih", 18, 77, 9, -1) + b"\0")
        frame = peer.receive_frame()
        answer = read(entity_of("api_versions", 0, "response"), frame[4:])
        assert plain(answer)["error_code"] == UNSUPPORTED
        assert peer.ask("metadata", 1, topics=[])["brokers"]


def http_port(broker: BrokerProcess) -> int:
    line = next(line for line in broker.output().splitlines() if line.startswith("ready "))
    return int(line.split("http=")[1].split()[0].rpartition(":")[2])


@pytest.mark.parametrize(
    "data",
    [b"\0\xff" * 500, TLS_HELLO, b"GET /\0 HTTP/9.9\r\n\r\n", b"\r\n" * 1000, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 9],
)
def test_garbage_on_the_http_port(data: bytes, serving: BrokerProcess, bystander: Wire) -> None:
    address = ("127.0.0.1", http_port(serving))
    answer = b""
    with socket.create_connection(address, TIMEOUT_S) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while part := sock.recv(4096):
            answer += part
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


def test_a_client_that_never_reads_its_fetches(serving: BrokerProcess, bystander: Wire) -> None:
    with Peer(serving) as filler:
        for _ in range(8):
            assert filler.produce(batch_of(random.Random(0).randbytes(1 << 20), timestamp_ms=NOW_MS)) == 0
    before = resident_bytes(serving)
    values = fetch_values({TOPIC: {0: 0}}, max_bytes=50 << 20, partition_max_bytes=50 << 20)
    frame = request_frame(make("fetch", 12, values), 5)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            peer = stack.enter_context(Peer(serving, receive_bytes=4096))
            peer.send(b"".join(struct.pack(">i", len(frame)) + frame for _ in range(50)))
        for _ in range(20):
            assert bystander.produce_one(TOPIC, b"meanwhile").error_code == 0
        assert resident_bytes(serving) - before < 50 << 20


def test_pipelined_produces_are_answered_in_order_once_they_are_read(serving: BrokerProcess, bystander: Wire) -> None:
    before = resident_bytes(serving)
    frames = bytearray()
    for number in range(PIPELINED):
        frame = request_frame(make("produce", 9, produce_values(GOOD, TOPIC)), number)
        frames += struct.pack(">i", len(frame)) + frame
    with Peer(serving, receive_bytes=4096) as peer:
        peer.socket.setblocking(False)
        sent, stalled = 0, time.monotonic()
        while sent < len(frames) and time.monotonic() - stalled < 1.0:
            try:
                sent += peer.socket.send(memoryview(frames)[sent : sent + 65536])
                stalled = time.monotonic()
            except BlockingIOError:
                assert bystander.produce_one(TOPIC, b"meanwhile").error_code == 0
        assert resident_bytes(serving) - before < 30 << 20
        peer.socket.settimeout(TIMEOUT_S)
        offsets = []
        for number in range(PIPELINED):
            while sent < len(frames):
                try:
                    sent += peer.socket.send(memoryview(frames)[sent : sent + 65536], socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
            answer = peer.receive_frame()
            assert struct.unpack_from(">i", answer)[0] == number
            row = plain(read(entity_of("produce", 9, "response"), answer[5:]))["responses"][0]["partition_responses"][0]
            assert row["error_code"] == 0
            offsets.append(row["base_offset"])
        assert sorted(set(offsets)) == offsets
    assert resident_bytes(serving) - before < 40 << 20


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of its own, for what is measured."""
    with BrokerProcess(tmp_path / "data", tmp_path, config={"defaults": {"topic": {"partitions": 2}}}) as process:
        process.start()
        with Peer(process) as peer:
            peer.ask("metadata", 4, topics=[{"name": TOPIC}], allow_auto_topic_creation=True)
            peer.ask("api_versions", 3, client_software_name="a", client_software_version="1")
            peer.produce(GOOD)
        yield process
        assert "Traceback" not in process.output()


def test_idle_connections_are_cheap(fresh: BrokerProcess) -> None:
    with contextlib.ExitStack() as stack:
        before = resident_bytes(fresh)
        peers = [stack.enter_context(Peer(fresh)) for _ in range(IDLE_CONNECTIONS)]
        with Peer(fresh) as peer:
            assert peer.ask("metadata", 1, topics=[])["brokers"], "all before it are accepted"
        assert resident_bytes(fresh) - before < IDLE_CONNECTIONS * IDLE_BYTES
        for peer in peers:
            peer.ask("api_versions", 3, client_software_name="a", client_software_version="1")
            peer.ask("metadata", 4, topics=[{"name": TOPIC}], allow_auto_topic_creation=False)
        assert resident_bytes(fresh) - before < IDLE_CONNECTIONS * IDLE_BYTES
    with Peer(fresh) as peer:
        assert peer.produce(GOOD) == 0


def test_idle_long_polls_cost_no_cpu(fresh: BrokerProcess) -> None:
    values = fetch_values({TOPIC: {0: 2, 1: 0}}, max_wait=5000)  # the ends
    frame = request_frame(make("fetch", 12, values), 1)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Peer(fresh)) for _ in range(100)]
        for peer in peers:
            peer.send_frame(frame)
        with Peer(fresh) as peer:
            assert peer.ask("metadata", 1, topics=[])["brokers"]
        begun, used = time.monotonic(), cpu_seconds(fresh)
        wait_until(lambda: time.monotonic() - begun > 3, 10, "three seconds have passed")
        assert cpu_seconds(fresh) - used < 0.5
        for peer in peers:
            peer.receive_frame()
