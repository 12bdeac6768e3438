"""`penstock consume` against a real broker: what is read, from where to where, and in which form."""

import hashlib
import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.cli.record_run import call

from penstock.cli import consume
from penstock.cli.connection import Server
from penstock.cli.failure import CommandError
from penstock.cli.position import now_ms
from penstock.testing import embedded_broker

DEADLINE_S = 60.0
MINUTE_MS = 60_000
_TOPICS = {"flush": "os", "retention.ms": "-1"}  # the records here are of 1970
PENSTOCK = (sys.executable, "-m", "penstock.cli.main")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with embedded_broker(partitions=3, topic_defaults=_TOPICS) as broker:
        yield broker.bootstrap


@pytest.fixture
def topic() -> str:
    return fresh_name()


def fresh_name() -> str:
    return f"consume-{uuid.uuid4().hex[:10]}"


def fill(server: str, topic: str, count: int = 10, *, partition: int = 0, first_ms: int = MINUTE_MS) -> None:
    """Records `0`, `1`, ...: key `k0`, ..., a minute apart."""
    producer = Producer({"bootstrap.servers": server, "log_level": 0})
    for number in range(count):
        producer.produce(
            topic,
            str(number).encode(),
            f"k{number}".encode(),
            partition,
            timestamp=first_ms + number * MINUTE_MS,
            headers=[("n", str(number % 2).encode())],
        )
    producer.flush()


@pytest.fixture(scope="module")
def ten(server: str) -> str:
    """A topic of ten records, to be read only."""
    name = fresh_name()
    fill(server, name)
    return name


def read(server: str, *words: str) -> list[str]:
    result = call(server, "consume", *words)
    assert result.code == 0, result.err
    return result.out.decode().splitlines()


def digits(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), digits(0, 10)),
        (("--from", "start"), digits(0, 10)),
        (("--from", "end"), []),
        (("--from", "4"), digits(4, 10)),
        (("--from", "10"), []),
        (("--from", "-3"), digits(7, 10)),
        (("--from", "-99"), digits(0, 10)),
        (("--from", "4", "--until", "6"), digits(4, 6)),
        (("--until", "0"), []),
        (("--until", "99"), digits(0, 10)),
        (("--until", "-3"), digits(0, 7)),
        (("--from", "6", "--until", "2"), []),
        (("--from", f"@{4 * MINUTE_MS}"), digits(3, 10)),
        (("--from", f"@{4 * MINUTE_MS + 1}"), digits(4, 10)),
        (("--from", "1970-01-01T00:04:00Z", "--until", "1970-01-01T00:06:00Z"), digits(3, 5)),
        (("--until", f"@{4 * MINUTE_MS}"), digits(0, 3)),
        (("--from", "-5m"), []),
        (("--until", "-5m"), digits(0, 10)),
        (("-n", "3"), digits(0, 3)),
        (("-n", "0"), []),
        (("-n", "99"), digits(0, 10)),
        (("--from", "-3", "-n", "2"), digits(7, 9)),
        (("-p", "0"), digits(0, 10)),
        (("-p", "1", "-p", "2"), []),
    ],
)
def test_from_where_to_where(server: str, ten: str, words: tuple[str, ...], expected: list[str]) -> None:
    assert read(server, ten, *words) == expected


def test_all_partitions_of_all_topics(server: str, topic: str) -> None:
    for partition in range(3):
        fill(server, topic, 5, partition=partition)
    fill(server, f"{topic}-b", 3)
    lines = read(server, topic, f"{topic}-b", "--show", "topic,partition,offset")
    expected = [f"{topic}\t{partition}\t{offset}\t{offset}" for partition in range(3) for offset in range(5)]
    assert sorted(lines) == sorted(expected + [f"{topic}-b\t0\t{offset}\t{offset}" for offset in range(3)])
    assert sorted(read(server, topic, "--from", "-1")) == ["4"] * 3


def test_an_offset_only_some_partitions_have(server: str, topic: str) -> None:
    fill(server, topic, 5)
    fill(server, topic, 2, partition=1)
    assert read(server, topic, "--from", "4") == ["4"]


def test_an_offset_nobody_has(server: str, topic: str) -> None:
    fill(server, topic, 5)
    result = call(server, "consume", topic, "--from", "6")
    assert result.code == 1
    assert f"no offset 6; there are 0 to 4 in {topic}/0, none in {topic}/1, none in {topic}/2" in result.err


def test_a_partition_that_is_not_there(server: str, topic: str) -> None:
    fill(server, topic, 1)
    result = call(server, "consume", topic, "-p", "3")
    assert result.code == 1
    assert f"topic '{topic}' has no partition 3; it has 3, from 0 on" in result.err


def test_a_topic_that_is_not_there_stays_so(server: str, topic: str) -> None:
    fill(server, topic, 1)
    result = call(server, "consume", f"{topic}s", "-f")
    assert result.code == 1
    assert f"no topic '{topic}s', did you mean {topic}?" in result.err
    assert f"{topic}s" not in AdminClient({"bootstrap.servers": server}).list_topics(timeout=DEADLINE_S).topics


def test_nobody_there(closed_port: int) -> None:
    result = call(f"127.0.0.1:{closed_port}", "consume", "t", "--timeout", "1")
    assert result.code == 3
    assert f"no server at 127.0.0.1:{closed_port}" in result.err


def test_a_silent_server_is_given_up_unless_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    impatient, patient = (consume._Absence(Server("h:1", "a test", timeout_s=5.0), follow=f) for f in (False, True))
    clock[0] = 5.0
    impatient.check()
    clock[0] = 5.1
    patient.check()
    with pytest.raises(CommandError, match="no server at h:1") as caught:
        impatient.check()
    assert caught.value.code == 3
    impatient.over()
    impatient.check()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--key", "k[12]"), ["1", "2"]),
        (("--key-regex", "[89]$"), ["8", "9"]),
        (("--value-contains", "7"), ["7"]),
        (("--grep", "^[0-2]$"), ["0", "1", "2"]),
        (("--header", "n=1"), ["1", "3", "5", "7", "9"]),
        (("--header", "n=1", "--grep", "[5-9]"), ["5", "7", "9"]),
        (("--header", "m"), []),
        (("--header", "n=1", "-n", "2"), ["1", "3"]),
    ],
)
def test_filters(server: str, ten: str, words: tuple[str, ...], expected: list[str]) -> None:
    assert read(server, ten, *words) == expected


def test_conditions_on_json(server: str, topic: str) -> None:
    orders = b'{"id":1,"user":{"name":"ann"}}\n{"id":2,"user":{"name":"bob"}}\nno json\n{"id":30}\n'
    assert call(server, "produce", topic, "-p", "0", stdin=orders).code == 0
    first, second, _, third = orders.decode().splitlines()
    assert read(server, topic, "--where", "id>1") == [second, third]
    assert read(server, topic, "--where", "user.name=ann") == [first]
    assert read(server, topic, "--where", "user.name~^.", "--where", "id!=1") == [second]


text_or_bytes = st.one_of(st.none(), st.binary(max_size=20), st.text(max_size=20).map(str.encode))
header_names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
records = st.fixed_dictionaries(
    {
        "key": text_or_bytes,
        "value": text_or_bytes,
        "headers": st.lists(st.tuples(header_names, text_or_bytes), max_size=3),
        "partition": st.integers(0, 2),
        "timestamp": st.integers(1, 1_777_593_600_000),
    }
)


@settings(max_examples=15, deadline=None)
@given(written=st.lists(records, min_size=1, max_size=12))
def test_json_is_read_back_the_same(server: str, written: list[dict[str, Any]]) -> None:
    first, second = fresh_name(), fresh_name()
    producer = Producer({"bootstrap.servers": server, "log_level": 0})
    for record in written:
        producer.produce(first, **record)
    producer.flush()
    out = call(server, "consume", first, "-o", "json").out
    result = call(server, "produce", second, "--json", "-q", stdin=out)
    assert result == (0, b"", "")
    again = call(server, "consume", second, "-o", "json").out
    contents = [json.loads(line) for line in out.splitlines()]
    assert len(contents) == len(written)
    assert by_place(again, topic=first) == by_place(out, topic=first)
    documents = yaml.safe_load_all(call(server, "consume", second, "-o", "yaml").out)
    assert sorted(map(repr, documents)) == sorted(repr(json.loads(line)) for line in again.splitlines())


def by_place(lines: bytes, *, topic: str) -> list[dict[str, Any]]:
    """Told apart by partition and offset, as if all were of one topic."""
    read = [json.loads(line) | {"topic": topic} for line in lines.splitlines()]
    return sorted(read, key=lambda record: (record["partition"], record["offset"]))


def test_forms(server: str, topic: str) -> None:
    fill(server, topic, 2)
    assert read(server, topic, "-o", "raw", "-D", ";") == ["0;1;"]
    assert read(server, topic, "-D", "|") == ["0|1|"]
    assert read(server, topic, "--format", "%k:%s@%o%T,") == [f"k0:0@0{MINUTE_MS},k1:1@1{2 * MINUTE_MS},"]
    assert read(server, topic, "--show", "key") == ["k0\t0", "k1\t1"]


def test_on_a_terminal(server: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    hostile = b"\x1b]0;owned\x07\x1b[2J\xc2\x9b31m"
    producer = Producer({"bootstrap.servers": server, "log_level": 0})
    producer.produce(topic, hostile, hostile, 0, headers=[("h", hostile)])
    producer.flush()
    for words in ((), ("-o", "json"), ("-o", "yaml"), ("--format", "%k %s %h\\n")):
        shown = call(server, "consume", topic, *words, terminal=True).out.decode()
        assert not set(shown) & set("\x1b\x07\x9b")
        assert shown.count("owned") == 3
    line = call(server, "consume", topic, terminal=True).out.decode()
    assert "  p0  @0  \\x1b]0;owned\\x07" in line
    assert call(server, "consume", topic, "-o", "raw", terminal=True).out == hostile + b"\n"
    assert call(server, "consume", topic).out == hostile + b"\n"
    assert call(server, "consume", topic, "--show", "none", terminal=True).out.startswith(b"\\x1b]0;")
    monkeypatch.delenv("NO_COLOR")
    assert b"\x1b[2m" in call(server, "consume", topic, terminal=True).out


def test_nothing_found_is_said_on_a_terminal_only(server: str, topic: str) -> None:
    fill(server, topic, 1)
    assert call(server, "consume", topic, "--grep", "x", terminal=True) == (0, b"", "no records match\n")
    assert call(server, "consume", topic, "--from", "end", terminal=True) == (0, b"", "no records\n")
    assert call(server, "consume", topic, "--grep", "x") == (0, b"", "")


@pytest.mark.parametrize(
    "words",
    [
        ("--from", "somewhere"),
        ("--until", "5x"),
        ("--follow", "--until", "end"),
        ("--show", "kye"),
        ("--show", "key", "-o", "json"),
        ("--format", "%q"),
        ("--format", "%s", "-o", "raw"),
        ("--grep", "("),
        ("--where", "id"),
    ],
)
def test_wrong_usage(server: str, words: tuple[str, ...]) -> None:
    result = call(server, "consume", "consume-usage", *words)
    assert result.code == 2
    assert result.err.startswith("penstock: ")


def test_a_hundred_thousand_lines_through_pipes(server: str, topic: str) -> None:
    lines = b"".join(b"line %d %s\n" % (number, b"x" * (number % 50)) for number in range(100_000))
    sent = subprocess.run(
        [*PENSTOCK, "produce", topic, "-p", "0", "-s", server], input=lines, capture_output=True, timeout=DEADLINE_S
    )
    assert (sent.returncode, sent.stdout) == (0, b"")
    assert sent.stderr.splitlines()[-1].startswith(b"100,000 records, ")
    got = subprocess.run([*PENSTOCK, "consume", topic, "-s", server], capture_output=True, timeout=DEADLINE_S)
    assert (got.returncode, got.stderr) == (0, b"")
    assert hashlib.sha256(got.stdout).digest() == hashlib.sha256(lines).digest()


def following(server: str, topic: str, *words: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*PENSTOCK, "consume", topic, "-f", "-s", server, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def read_line(stream: IO[bytes] | None) -> bytes:
    assert stream is not None
    return stream.readline()


def test_follow_until_ctrl_c(server: str, topic: str) -> None:
    fill(server, topic, 3)
    with following(server, topic, "--from", "-1") as process:
        assert read_line(process.stdout) == b"2\n"
        assert call(server, "produce", topic, "-p", "1", stdin=b"new\n").code == 0
        assert read_line(process.stdout) == b"new\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")  # type: ignore[union-attr]


def test_follow_until_a_count_an_offset_or_a_time(server: str) -> None:
    soon_ms = now_ms() + 30 * MINUTE_MS
    for words in (("-n", "5"), ("-p", "0", "--until", "5"), ("-p", "0", "--until", f"@{soon_ms + 2 * MINUTE_MS}")):
        name = fresh_name()
        fill(server, name, 3)
        with following(server, name, *words) as process:
            assert [read_line(process.stdout) for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
            fill(server, name, 3, first_ms=soon_ms)
            assert process.wait(DEADLINE_S) == 0
            assert process.stdout.read() == b"0\n1\n"  # type: ignore[union-attr]


def test_follow_until_a_time_that_comes(server: str, topic: str) -> None:
    fill(server, topic, 3)
    assert read(server, topic, "-f", "--until", "+1s") == ["0", "1", "2"]


def test_follow_ends_with_its_reader(server: str, topic: str) -> None:
    fill(server, topic, 1)
    with following(server, topic) as process:
        assert read_line(process.stdout) == b"0\n"
        process.stdout.close()  # type: ignore[union-attr]
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr.read() == b""  # type: ignore[union-attr]


def test_follow_outlives_a_broker(topic: str, tmp_path: Path) -> None:
    broker, address = serve(tmp_path, "127.0.0.1:0")
    try:
        fill(address, topic, 1, first_ms=now_ms())  # old ones would fall to retention at the restart
        with following(address, topic) as process:
            assert read_line(process.stdout) == b"0\n"
            broker.kill()
            broker.wait(DEADLINE_S)
            assert read_line(process.stderr) == f"no server at {address} any more; waiting for it\n".encode()
            broker, _ = serve(tmp_path, address)
            assert call(address, "produce", topic, "-q", stdin=b"again\n") == (0, b"", "")
            assert read_line(process.stdout) == b"again\n", process.stderr.read()
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 130
            assert process.stderr.read() == b""  # type: ignore[union-attr]
    finally:
        broker.kill()
        broker.wait(DEADLINE_S)


def serve(data_dir: Path, address: str) -> "tuple[subprocess.Popen[str], str]":
    words = ("serve", "--data-dir", str(data_dir), "--kafka", address, "--http", "127.0.0.1:0")
    process = subprocess.Popen([*PENSTOCK, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    ready = process.stdout.readline()
    return process, ready.split()[1].removeprefix("kafka=")


def test_a_reader_that_leaves_early(server: str, topic: str) -> None:
    assert call(server, "produce", topic, stdin=b"some line\n" * 50_000).code == 0
    process = subprocess.Popen(
        [*PENSTOCK, "consume", topic, "-s", server], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        assert read_line(process.stdout) == b"some line\n"
        process.stdout.close()  # type: ignore[union-attr]
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr.read() == b""  # type: ignore[union-attr]
