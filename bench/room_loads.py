"""What rooms of the broker do for a request, each by itself: the loads that `bench.rooms` times.

`python -m bench.room_loads ROOM`, with `penstock` from where PYTHONPATH says, prints CPU microseconds of each operation
of the room as JSON. What a room calls that is not measured is real where it is cheap to make, and does nothing else.
"""

import argparse
import asyncio
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, repeat
from pathlib import Path
from struct import pack
from types import SimpleNamespace
from typing import Any, NamedTuple

import uvloop

from bench import coordinator_steps
from penstock.engine.coordination.schemas import GROUP_RECORDS, Entry, Kind, OffsetValue
from penstock.engine.groups.offsets import NewOffset, Offsets
from penstock.engine.leadership import Leadership
from penstock.engine.publishing import ALL, Publishing
from penstock.engine.waiters import Waiters
from penstock.net.frames import FrameBuffer
from penstock.observe.stats import Stats
from penstock.protocols.kafka import fetch_codec, produce_codec
from penstock.records.batch import decode_header
from penstock.records.build import build_batch
from penstock.server.system_clock import SystemClock
from penstock.storage.local_disk import LocalDisk
from penstock.storage.log.card import Card
from penstock.storage.log.log import Appended, Log, Shelf
from penstock.storage.log.options import Flush, LogOptions
from penstock.storage.log.reading import read_slice
from penstock.storage.log.segment import FilePool, FileSlice, Segment
from penstock.storage.log.state import LogState

PARTITIONS = 6
BATCH = build_batch([(None, bytes(1000), (), 1)] * 16)  # 16 KiB
REPEATS = 5
IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
Operation = Callable[[], object]


class Load(NamedTuple):
    operation: str
    """What one is, for the table."""
    measure: Callable[[int], float]
    """CPU seconds of so many operations."""
    times: int = 2_000


class NoFile:
    """Takes what is written, and writes nothing."""

    def write_at(self, data: object, position: int) -> None: ...


def each(make: Callable[[], Operation]) -> Callable[[int], float]:
    """Measures what `make` returns, made anew each time."""

    def measure(count: int) -> float:
        operation = make()
        started = time.process_time()
        for _ in repeat(None, count):
            operation()
        return time.process_time() - started

    return measure


def frames(size: int, at_once: int) -> Operation:
    buffer, sent = FrameBuffer(1 << 20), memoryview((pack(">i", size) + bytes(size)) * at_once)

    def receive() -> None:
        at = 0
        while at < len(sent):
            into = buffer.writable()
            took = min(len(into), len(sent) - at)
            into[:took] = sent[at : at + took]
            buffer.add(took)
            at += took
            while buffer.next() is not None:
                pass

    return receive


def log_on(file: Any) -> Log:
    segment, state = Segment("", 0), LogState()
    segment.card, segment.file = Card(0), file
    state.epochs.note(0, 0)
    nobody: Any = None
    shelf = Shelf(nobody, SystemClock(), Stats(), FilePool(nobody), nobody, nobody, print)
    return Log("t-0", "", LogOptions(flush=Flush.OS), shelf, state, [segment])


def append(file: Any) -> Operation:
    log, batch = log_on(file), memoryview(bytearray(BATCH))
    header = decode_header(batch)
    return lambda: log.append(batch, header, 0)


def append_to_memory() -> Operation:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:  # the file lives as long as it is open
        return append(LocalDisk().open(f"{directory}/log", create=True))


def card_of(count: int) -> Card:
    card, batch = Card(0), memoryview(BATCH)
    for at in range(count):
        card.add(at * 16, at * 16 + 16, batch, at, 4096)
    return card


def card_add() -> Operation:
    card, batch = Card(0), memoryview(BATCH)
    return lambda: card.add(0, 16, batch, 1, 4096)


def card_lookup() -> Operation:
    card, offsets = card_of(1_000), cycle(range(0, 16_000, 48))
    return lambda: card.batch_start_up_to(card.position_before(next(offsets)) + (1 << 20))


def read() -> Operation:
    log, offsets = log_on(NoFile()), cycle(range(0, 16_000, 48))
    batch = memoryview(bytearray(BATCH))
    header = decode_header(batch)
    for _ in range(1_000):
        log.append(batch, header, 0)
    return lambda: read_slice(log, next(offsets), log.end_offset, 1 << 20, True)


def fetch_decode() -> Operation:
    listed = b"".join(pack(">iiqiqi", at, 0, 1000 * at, -1, 0, 1 << 20) + b"\0" for at in range(PARTITIONS))
    head = pack(">iiiibii", -1, 500, 1, 50 << 20, 1, 7, 3)
    request = memoryview(head + b"\x02\x06topic" + bytes((PARTITIONS + 1,)) + listed + b"\0\x01\x01\0")
    return lambda: fetch_codec.decode(request, 0, 12)


def fetch_encode() -> Operation:
    file: Any = NoFile()
    rows = [fetch_codec.Row(b"topic", at, 0, 9, 9, 0, FileSlice(file, 0, 1 << 20)) for at in range(PARTITIONS)]
    return lambda: fetch_codec.encode(rows, 12, 0, 7)


def produce_decode(partitions: int) -> Operation:
    size, written = len(BATCH) + 1, bytearray()
    while size >= 0x80:
        written.append(size & 0x7F | 0x80)
        size >>= 7
    batch = bytes((*written, size)) + BATCH + b"\0"
    batches = b"".join(pack(">i", at) + batch for at in range(partitions))
    request = memoryview(b"\0" + pack(">hi", 1, 1000) + b"\x02\x06topic" + bytes((partitions + 1,)) + batches + b"\0\0")
    return lambda: produce_codec.decode(request, 0, 9)


def produce_encode(partitions: int) -> Operation:
    results = [(b"topic", [produce_codec.Result(at, 0, 1000, -1, 0, None) for at in range(partitions)])]
    return lambda: produce_codec.encode(results, 9)


def publish() -> Operation:
    batch = memoryview(BATCH)
    header, appended = decode_header(batch), Appended(0, 15, -1)
    partition: Any = SimpleNamespace(
        config=SimpleNamespace(opens_batches=False, checked=()),  # looking at records is another room's
        state=SimpleNamespace(replicas=(1,)),
        log_start=0,
        check_in_sync=lambda copies: None,
        check=lambda batch: header,
        must_wait=lambda header: False,
        append_checked=lambda batch, header: appended,
        when_safe=lambda last_offset, told: told(None),
    )
    nobody: Any = None
    publishing = Publishing(nobody, nobody)

    def request() -> None:
        publication = publishing.begin(ALL, 30, lambda publication: None)
        for _ in range(PARTITIONS):
            publication.add(partition, batch)
        publication.wait()

    return request


def wait_and_advance() -> Operation:
    waiters = Waiters()

    def wake() -> None: ...

    def batch() -> None:
        waiters.when_safe(15, lambda error: None)
        waiters.add_reader(wake)
        waiters.advance(16)

    return batch


def lead() -> Operation:
    leadership = Leadership(1, 0)
    leadership.use((1, 2, 3), (1, 2, 3), (), (), 2, 0.0)

    def fetches() -> None:
        for broker_id in (2, 3):
            leadership.fetched(broker_id, 16, 1, 16, 1.0)
            leadership.committed(16)

    return fetches


def encode_and_decode(entry: Entry) -> Operation:
    return lambda: GROUP_RECORDS.decode(*GROUP_RECORDS.encode(entry))


def commit() -> Operation:
    offsets = Offsets()
    new = {("topic", at): NewOffset(at) for at in range(PARTITIONS)}
    return lambda: offsets.commit("group", new, 1)


def steps(at: int) -> Callable[[int], float]:
    def measure(count: int) -> float:
        in_flight = min(count, coordinator_steps.IN_FLIGHT)
        with (
            tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            measured = runner.run(coordinator_steps.run(directory, count - count % in_flight, in_flight))
        return measured[at].cpu_us_a_step * count / 1e6

    return measure


OFFSET = Entry(Kind.OFFSET, ("group", "topic", 0), OffsetValue(1, -1, "", 0))
_APPEND = (
    Load("append of 16 KiB to a file in memory", each(append_to_memory)),
    Load("the same without the write", each(lambda: append(NoFile()))),
)
_READ = Load("read_slice of 1 MiB", each(read), 20_000)
_TRIVIAL = Load("step of a machine that does nothing", steps(0), 5_000)
_COMMITS = Load("step that commits an offset", steps(1), 5_000)

LOADS: dict[str, tuple[Load, ...]] = {
    "net.frames net.buffer": (
        Load("38 frames of 100 B received at once", each(lambda: frames(100, 38))),
        Load("a frame of 16 KiB", each(lambda: frames(16 << 10, 1)), 20_000),
    ),
    "storage.log.log": _APPEND,
    "storage.log.card": (
        Load("two lookups", each(card_lookup), 50_000),
        Load("add of 16 KiB, with its checksum", each(card_add)),
    ),
    "storage.log.reading": (_READ,),
    "storage.log.log storage.log.card storage.log.reading storage.log.segment": (*_APPEND, _READ),
    "protocols.kafka.fetch_codec": (
        Load(f"decode a request of {PARTITIONS} partitions", each(fetch_decode), 10_000),
        Load(f"encode an answer of {PARTITIONS}", each(fetch_encode), 10_000),
    ),
    "protocols.kafka.produce_codec": (
        Load("decode a request of one partition", each(lambda: produce_decode(1)), 10_000),
        Load("encode an answer of one", each(lambda: produce_encode(1)), 10_000),
        Load(f"decode a request of {PARTITIONS} partitions", each(lambda: produce_decode(PARTITIONS)), 10_000),
        Load(f"encode an answer of {PARTITIONS}", each(lambda: produce_encode(PARTITIONS)), 10_000),
    ),
    "engine.publishing": (Load(f"publication of {PARTITIONS} batches", each(publish), 10_000),),
    "engine.waiters": (Load("a producer and a reader wait, and are told", each(wait_and_advance), 50_000),),
    "engine.leadership": (Load("fetches of two followers", each(lead), 50_000),),
    "engine.coordination.shard": (_TRIVIAL, _COMMITS),
    "engine.coordination.schemas": (
        Load("encode and decode of an offset", each(lambda: encode_and_decode(OFFSET)), 20_000),
        _COMMITS,
    ),
    "engine.groups.offsets": (Load(f"commit of {PARTITIONS} offsets", each(commit), 10_000), _COMMITS),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("room", choices=LOADS)
    parser.add_argument("--operations", type=int, default=None, help="of each load, instead of its own number")
    parser.add_argument("--compiled", action="store_true", help="the room has to be compiled; else it must not be")
    chosen = parser.parse_args(arguments)
    for name in chosen.room.split():
        path = importlib.import_module(f"penstock.{name}").__file__ or ""
        assert (Path(path).suffix != ".py") == chosen.compiled, f"{name} is {path}"
    figures = []
    for load in LOADS[chosen.room]:
        count = chosen.operations or load.times
        figures.append(min(load.measure(count) for _ in range(REPEATS)) / count * 1e6)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
