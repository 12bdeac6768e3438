"""The cheap reader against a broker of a few lines, whole and broken, and what its figures are held against."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from bench import native
from bench.fetching import Written, check, connect, read
from bench.native import NativeError

VALUE_BYTES = 100
BATCH_RECORDS = 5
_WANTED = struct.Struct(">iqi")

Log = Callable[[int, int], bytes]
"""What a partition answers from an offset on: error, high watermark, last stable offset, no aborted, the batches."""


def batch(base: int, records: int, *, count: int | None = None, magic: int = 2) -> bytes:
    """A head as Kafka's, and bytes that are no records: nobody looks at them."""
    body = bytes(records * (VALUE_BYTES + 8))
    rest = 49 + len(body)
    count = records if count is None else count
    head = struct.pack(">qiibIhiqqqhii", base, rest, 0, magic, 0, 0, records - 1, 0, 0, -1, -1, -1, count)
    return head + body


def answer(batches: bytes, end: int, error: int = 0) -> bytes:
    return struct.pack(">hqqii", error, end, end, -1, len(batches)) + batches


def log(end: int, *, most: int = 1 << 20) -> Log:
    """Batches of five from wherever is asked, cut off after so many bytes, as brokers do."""

    def look(_partition: int, offset: int) -> bytes:
        batches = b"".join(
            batch(base, min(BATCH_RECORDS, end - base))
            for base in range(offset // BATCH_RECORDS * BATCH_RECORDS, end, BATCH_RECORDS)
        )
        return answer(batches[:most], end)

    return look


def receive(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            raise ConnectionError
        found += more
    return found


def serve(connection: socket.socket, look: Log, behind: bytes) -> None:
    """Fetch requests of version 4 for one topic, until the reader is gone."""
    with closing(connection):
        try:
            while True:
                (size,) = struct.unpack(">i", receive(connection, 4))
                request = receive(connection, size)
                client_bytes = struct.unpack_from(">h", request, 8)[0]
                at = 8 + 2 + client_bytes + 4 * 4 + 1 + 4
                topic_bytes = struct.unpack_from(">h", request, at)[0]
                topic = request[at : at + 2 + topic_bytes]
                at += 2 + topic_bytes
                (count,) = struct.unpack_from(">i", request, at)
                asked = [_WANTED.unpack_from(request, at + 4 + number * _WANTED.size) for number in range(count)]
                body = b"".join(struct.pack(">i", number) + look(number, offset) for number, offset, _most in asked)
                body = struct.pack(">iii", 0, 0, 1) + topic + struct.pack(">i", count) + body + behind
                connection.sendall(struct.pack(">i", len(body)) + body)
        except OSError:
            return


@contextmanager
def broker(look: Log, behind: bytes = b"") -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection, look, behind), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        host, port = listener.getsockname()
        yield f"{host}:{port}"
        listener.shutdown(socket.SHUT_RDWR)


def fetch(look: Log, *, partitions: int = 1, connections: int = 1, passes: int = 2, behind: bytes = b"") -> Any:
    with broker(look, behind) as address:
        return native.run("fetch", "some-topic", passes, *connect({address: range(partitions)}, connections))


@pytest.mark.parametrize("connections", [1, 2])
def test_everything_is_read_in_every_pass(connections: int) -> None:
    found = fetch(log(23), partitions=3, connections=connections)
    assert found["ends"] == {"0": 23, "1": 23, "2": 23}
    assert found["records"] == 2 * 3 * 23
    assert found["batches"] == 2 * 3 * 5
    assert found["bytes"] == 2 * 3 * (5 * 61 + 23 * 108)


@pytest.mark.parametrize("most", [1, 60, 61, 62, 600, 601, 602, 660])
def test_a_batch_that_is_cut_off_comes_again(most: int) -> None:
    size = len(batch(0, BATCH_RECORDS))
    assert size == 601
    whole, cut = log(40), log(40, most=size + most)
    turns = [cut, cut, whole]

    def look(partition: int, offset: int) -> bytes:
        turns.append(turns.pop(0))
        return turns[-1](partition, offset)

    found = fetch(look)
    assert (found["records"], found["bytes"]) == (80, 2 * 8 * size)


def test_an_empty_partition_is_at_its_end_at_once() -> None:
    assert fetch(log(0), partitions=2)["ends"] == {"0": 0, "1": 0}


def once(after: bytes, first: bytes) -> Log:
    """A first answer and then another, for ever."""
    answers = iter([first])
    return lambda _partition, _offset: next(answers, after)


BROKEN = {
    "a gap": (lambda *_: answer(batch(0, 5) + batch(6, 5), 11), "expected offset 5"),
    "a batch twice": (lambda *_: answer(batch(0, 5) + batch(0, 5), 10), "expected offset 5"),
    "the same answer again": (lambda *_: answer(batch(0, 5), 10), "expected offset 5"),
    "records that are not there": (lambda *_: answer(batch(0, 5, count=4), 5), "4 records for 5 offsets"),
    "an old format": (lambda *_: answer(batch(0, 5, magic=1), 5), "version 1"),
    "an error": (lambda *_: answer(b"", 0, error=6), "error 6"),
    "nothing for ever": (lambda *_: answer(b"", 5), "no whole batch in"),
    "an end that moves": (once(answer(batch(5, 5), 12), answer(batch(0, 5), 10)), "watermark is 12 and was 10"),
    "more than the end": (lambda *_: answer(batch(0, 5), 3), "behind the high watermark 3"),
    "a length of its own": (
        lambda *_: struct.pack(">hqqii", 0, 5, 5, -1, 10_000) + batch(0, 5),
        "an answer ends within",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_answer_is_no_figure(case: str) -> None:
    look, words = BROKEN[case]
    with pytest.raises(NativeError, match=words):
        fetch(look)


def test_bytes_behind_an_answer_are_an_error() -> None:
    with pytest.raises(NativeError, match="3 bytes behind the end"):
        fetch(log(5), behind=b"xyz")


def test_nobody_there_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "{}:{}".format(*listener.getsockname())
    with pytest.raises(NativeError, match="refused"):
        native.run("fetch", "some-topic", 1, f"{address}=0")


def test_what_comes_is_held_against_what_was_written() -> None:
    written = Written("some-topic", 3, 60, VALUE_BYTES)
    with broker(log(20)) as address:
        assert read(written, connect({address: range(3)}, 2), passes=1)["records"] == 60
    with broker(log(19)) as address, pytest.raises(NativeError, match="partition 0 ends at 19, written were 20"):
        read(written, connect({address: range(3)}), passes=1)


FOUND = {"ends": {"0": 2, "1": 1}, "records": 6, "bytes": 6 * 108}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ends": {"0": 2, "1": 2}}, "partition 1 ends at 2, written were 1"),
        ({"ends": {"0": 2}}, "partition 1 ends at None"),
        ({"ends": {"0": 2, "1": 1, "2": 0}}, "partition 2 ends at 0, written were None"),
        ({"records": 5}, "5 records in 2 passes"),
        ({"bytes": 6 * 108 - 1}, "647 bytes are too few"),
    ],
)
def test_less_than_was_written_is_an_error(change: dict[str, Any], words: str) -> None:
    written = Written("t", 2, 3, VALUE_BYTES)
    check(written, FOUND, 2)
    with pytest.raises(NativeError, match=words):
        check(written, FOUND | change, 2)


def test_ends() -> None:
    assert Written("t", 3, 7, 1).ends() == [3, 2, 2]
    assert Written("t", 3, 7, 1, before=16).ends() == [19, 18, 18]
    assert Written("t", 3, 7, 1, before=16).total == 55


def test_keyed_records_go_where_the_hash_of_their_number_says() -> None:
    of_eight_zeros = 0x6522DF69
    assert Written("t", 100, 1, 1, keyed=True).ends().index(1) == of_eight_zeros % 100
    assert sum(Written("t", 100, 1000, 1, keyed=True, before=2).ends()) == 1200


def test_connections_share_the_partitions_of_a_broker() -> None:
    assert connect({"a:1": range(5)}, 2) == ["a:1=0,2,4", "a:1=1,3"]
    assert connect({"a:1": [0, 2], "b:1": [1]}) == ["a:1=0,2", "b:1=1"]
    assert connect({"a:1": [7]}, 4) == ["a:1=7"]
