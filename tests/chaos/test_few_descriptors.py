"""A broker that runs out of descriptors: it refuses what needs one, stays, and goes on when there are some again."""

import contextlib
import os
import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.broker_process import BrokerProcess
from tests.chaos.load import wait_until
from tests.chaos.wire import Wire

DESCRIPTORS = 256
FLOOD = 600
CREATE_TOPICS, DELETE_TOPICS = 19, 20
KAFKA_STORAGE_ERROR = 56
TOPICS = 40


def _text(name: str) -> bytes:
    return struct.pack(">h", len(name)) + name.encode()


def create(wire: Wire, name: str, partitions: int = 3) -> int:
    """Ask for a topic by a connection that is there already; the error code."""
    body = (
        struct.pack(">i", 1) + _text(name) + struct.pack(">ihii", partitions, 1, 0, 0) + struct.pack(">i?", 9000, False)
    )
    return int(struct.unpack_from(">h", wire.request(CREATE_TOPICS, 2, body), 4 + 4 + 2 + len(name))[0])


def delete(wire: Wire, name: str) -> int:
    answer = wire.request(DELETE_TOPICS, 1, struct.pack(">i", 1) + _text(name) + struct.pack(">i", 9000))
    return int(struct.unpack_from(">h", answer, 4 + 4 + 2 + len(name))[0])


@contextlib.contextmanager
def flood(broker: BrokerProcess) -> Iterator[None]:
    host, _, port = broker.bootstrap.rpartition(":")
    with contextlib.ExitStack() as held:
        for _ in range(FLOOD):
            held.enter_context(socket.create_connection((host, int(port)), 20))
        yield


def open_files(broker: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def test_connections_leave_descriptors_for_the_rest(tmp_path: Path) -> None:
    few = ["sh", "-c", f'ulimit -n {DESCRIPTORS}; "$@"; exit $?', "sh"]
    with BrokerProcess(tmp_path / "data", tmp_path, wrapper=few) as broker:
        broker.start()
        with Wire(broker.bootstrap) as wire, flood(broker):
            assert open_files(broker) < DESCRIPTORS * 3 // 4
            assert [create(wire, f"t{n}") for n in range(TOPICS)] == [0] * TOPICS
            assert [wire.produce_one(f"t{n}", b"v").error_code for n in range(TOPICS)] == [0] * TOPICS
            assert [delete(wire, f"t{n}") for n in range(0, TOPICS, 2)] == [0] * (TOPICS // 2)
        assert broker.stop() == 0


def test_a_broker_without_descriptors_stays_and_goes_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", tmp_path) as broker:
        broker.start()
        with Wire(broker.bootstrap) as wire:
            assert create(wire, "before") == create(wire, "goes") == create(wire, "went") == 0
            assert delete(wire, "went") == 0  # so that what it takes is loaded
            assert wire.produce_one("before", b"v").error_code == 0
            before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
            for spare in (0, 1, 2, 3, 5, 9):
                resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (open_files(broker) + spare, before[1]))
                codes = [create(wire, f"t{spare}-{n}") for n in range(5)] + [delete(wire, "goes")]
                assert set(codes) <= {0, KAFKA_STORAGE_ERROR, 3}, codes
                assert wire.produce_one("before", b"v").error_code == 0
                assert broker.process.poll() is None
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)
            for spare in (0, 1, 2, 3, 5, 9):
                for n in range(5):
                    name = f"t{spare}-{n}"
                    wait_until(lambda name=name: create(wire, name) in (0, 36), 20, f"{name} can be made")
                    assert wire.produce_one(name, b"v").error_code == 0
            wait_until(lambda: not (tmp_path / "data" / "logs" / "goes").exists(), 20, "what was deleted is gone")
        broker.kill()
        broker.start()
        with Wire(broker.bootstrap) as wire:
            assert wire.produce_one("t0-0", b"v").base_offset == 1
        assert broker.stop() == 0
