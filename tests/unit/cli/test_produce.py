"""`penstock produce` against a real broker: every form of input, and every way it can fail."""

import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.unit.cli.record_run import Result, call

from penstock.cli.main import main
from penstock.testing import embedded_broker

DEADLINE_S = 60.0
# Some records here are of 1970; retention would delete them.
_TOPICS = {"flush": "os", "max.message.bytes": "500000", "retention.ms": "-1"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with embedded_broker(partitions=3, topic_defaults=_TOPICS) as broker:
        yield broker.bootstrap


@pytest.fixture
def topic() -> str:
    return f"produce-{uuid.uuid4().hex[:10]}"


def created(topic: str) -> str:
    return f"topic {topic} did not exist; the server has created it, with 3 partitions\n"


def stored(server: str, topic: str) -> list[dict[str, Any]]:
    result = call(server, "consume", topic, "-o", "json")
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.lines]


def values(server: str, topic: str) -> list[str]:
    return [record["value"] for record in stored(server, topic)]


def test_lines(server: str, topic: str) -> None:
    result = call(server, "produce", topic, "-p", "1", stdin=b"one\n\ntwo")
    assert result == (0, b"", f"{created(topic)}3 records, 6 bytes, to partition {topic}/1 (offsets 0 to 2)\n")
    assert values(server, topic) == ["one", "", "two"]
    assert {record["partition"] for record in stored(server, topic)} == {1}
    assert {record["key"] for record in stored(server, topic)} == {None}


def test_quiet(server: str, topic: str) -> None:
    assert call(server, "produce", topic, "-q", stdin=b"one\n") == (0, b"", "")


def test_nothing_to_send(server: str, topic: str) -> None:
    assert call(server, "produce", topic) == (0, b"", f"{created(topic)}0 records, 0 bytes\n")


def test_a_topic_is_called_created_once(server: str, topic: str) -> None:
    told = [call(server, "produce", topic, "-p", "0", stdin=b"one\n").err.splitlines() for _ in range(2)]
    assert [len(lines) for lines in told] == [2, 1]
    assert f"{told[0][0]}\n" == created(topic)


def test_topics_that_records_name_are_called_created_too(server: str, topic: str) -> None:
    lines = [json.dumps({"value": "v", "topic": f"{topic}-{name}"}).encode() for name in ("b", "a", "b")]
    result = call(server, "produce", topic, "--json", "--route", stdin=b"\n".join(lines))
    assert result.err.startswith(created(topic) + created(f"{topic}-b") + created(f"{topic}-a") + "3 records")


def test_key_headers_timestamp_for_all(server: str, topic: str) -> None:
    words = ("-k", "k", "-H", "a=1", "-H", "a=", "--timestamp", "2026-05-01T00:00:00Z")
    assert call(server, "produce", topic, *words, stdin=b"v\nw\n").code == 0
    for record, value in zip(stored(server, topic), "vw", strict=True):
        assert (record["key"], record["value"], record["timestamp"]) == ("k", value, 1_777_593_600_000)
        assert record["headers"] == [{"name": "a", "value": "1"}, {"name": "a", "value": ""}]


def test_keys_and_tombstones(server: str, topic: str) -> None:
    assert call(server, "produce", topic, "-K", ":", "-Z", "-p", "0", stdin=b"a:1\nb:\n:3\n").code == 0
    assert [(record["key"], record["value"]) for record in stored(server, topic)] == [
        ("a", "1"),
        ("b", None),
        (None, "3"),
    ]


def test_a_key_decides_the_partition(server: str, topic: str) -> None:
    assert call(server, "produce", topic, "-K", ":", stdin=b"".join(b"%d:x\n" % (n % 9) for n in range(90))).code == 0
    places = {(record["key"], record["partition"]) for record in stored(server, topic)}
    assert len(places) == 9
    assert len({partition for _, partition in places}) > 1


def test_files_and_standard_input(server: str, topic: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1\n2")
    two.write_bytes(b"4\n")
    assert call(server, "produce", topic, "-p", "0", str(one), "-", str(two), stdin=b"3\n").code == 0
    assert values(server, topic) == ["1", "2", "3", "4"]
    whole = call(server, "produce", f"{topic}-whole", "-p", "0", "--whole", str(one), str(two))
    assert whole.code == 0
    assert values(server, f"{topic}-whole") == ["1\n2", "4\n"]


def test_a_file_that_is_not_there(server: str, topic: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1\n")
    assert call(server, "produce", topic, str(tmp_path / "none"), str(tmp_path / "one")).code == 2
    result = call(server, "produce", topic, str(tmp_path / "one"), str(tmp_path / "none"))
    assert result.code == 1
    assert f"{tmp_path / 'none'}: No such file or directory; 1 record delivered" in result.err
    assert values(server, topic) == ["1"]


def test_bytes_pass_as_they_are(server: str, topic: str) -> None:
    content = bytes(range(256)).replace(b"\n", b"")
    assert call(server, "produce", topic, "--whole", stdin=content).code == 0
    assert call(server, "consume", topic, "-o", "raw", "-D", "").out == content


def test_json(server: str, topic: str) -> None:
    lines = (
        b'{"key":"k","value":{"a": 1.0},"headers":{"h":"x"},"partition":2,"timestamp":7}\n{"value":null,"partition":2}'
    )
    assert call(server, "produce", topic, "--json", stdin=lines).code == 0
    first, second = stored(server, topic)
    assert (first["key"], first["value"], first["partition"], first["timestamp"]) == ("k", '{"a":1.0}', 2, 7)
    assert first["headers"] == [{"name": "h", "value": "x"}]
    assert second["value"] is None


def test_records_that_name_their_topic(server: str, topic: str) -> None:
    lines = json.dumps({"value": "a", "topic": f"{topic}-other"}).encode() + b'\n{"value":"b"}'
    assert call(server, "produce", topic, "--json", "--route", stdin=lines).code == 0
    assert (values(server, f"{topic}-other"), values(server, topic)) == (["a"], ["b"])
    assert call(server, "produce", topic, "--json", stdin=lines).code == 0
    assert sorted(values(server, topic)) == ["a", "b", "b"]


def test_json_that_is_wrong_stops_there(server: str, topic: str) -> None:
    result = call(server, "produce", topic, "--json", stdin=b'{"value":"a"}\n{"value":"b"}\n{nonsense\n{"value":"c"}\n')
    assert result.code == 1
    assert "2 records, 2 bytes" in result.err
    assert "penstock: stdin:3: " in result.err
    assert "in '{nonsense'" in result.err
    assert result.err.endswith("; 2 records delivered\n")
    assert sorted(values(server, topic)) == ["a", "b"]


@pytest.mark.parametrize("words", [(), ("-H", "a=b")])
def test_a_record_too_large_is_named_by_its_line(server: str, topic: str, words: tuple[str, ...]) -> None:
    result = call(server, "produce", topic, "-q", *words, stdin=b"small\nfine\n" + b"x" * 1_100_000 + b"\n")
    assert result.code == 1
    assert result.err.startswith("penstock: stdin:3: not delivered: its 1,100,0")
    assert result.err.endswith("; 2 records delivered, 1 not\n")
    assert sorted(values(server, topic)) == ["fine", "small"]


def test_a_record_the_server_refuses(server: str, topic: str) -> None:
    result = call(server, "produce", topic, stdin=b"x" * 600_000)
    assert result.code == 1
    assert "stdin:1: not delivered: its 600,000 bytes are more than a record may have" in result.err
    assert "0 records delivered, 1 not" in result.err


def test_a_partition_that_is_not_there(server: str, topic: str) -> None:
    for words in ((), ("-H", "a=b")):
        result = call(server, "produce", topic, "-p", "3", *words, stdin=b"v\n")
        assert result.code == 1
        assert "stdin:1: not delivered: the topic has no partition 3; 0 records delivered" in result.err


def test_a_topic_that_cannot_be(server: str) -> None:
    result = call(server, "produce", "not/a/topic", stdin=b"v\n")
    assert result.code == 1
    assert "topic 'not/a/topic': " in result.err


def test_nobody_there(closed_port: int, topic: str) -> None:
    result = call(f"127.0.0.1:{closed_port}", "produce", topic, "--timeout", "1", stdin=b"v\n")
    assert result.code == 3
    assert f"no server at 127.0.0.1:{closed_port}" in result.err


def test_a_server_that_goes_away(
    topic: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        address = stack.enter_context(embedded_broker(partitions=1)).bootstrap

        def input_parts() -> Iterator[bytes]:
            yield b"before\n"
            wait_until(lambda: seen(address, topic))
            stack.close()
            yield b"after\n"

        parts = input_parts()
        standard = SimpleNamespace(buffer=SimpleNamespace(read1=lambda _: next(parts, b"")), isatty=lambda: False)
        monkeypatch.setattr(sys, "stdin", standard)
        assert main(["produce", topic, "-X", "message.timeout.ms=1500", "-s", address]) == 3
    err = capsys.readouterr().err
    assert f"no server at {address} any more; waiting for it\n" in err
    assert "stdin:2: not delivered: the server did not confirm it in time" in err
    assert err.endswith("; 1 record delivered, 1 not\n")


def seen(address: str, topic: str) -> bool:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "test"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S)[1] > 0
    finally:
        consumer.close()


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_summary_for_scripts(server: str, topic: str, form: str) -> None:
    import yaml

    result = call(server, "produce", topic, "-p", "2", "-q", "-o", form, stdin=b"a\nbc\n")
    assert (result.code, result.err) == (0, "")
    assert yaml.safe_load(result.out) == {
        "records": 2,
        "bytes": 3,
        "failed": 0,
        "partitions": [{"topic": topic, "partition": 2, "records": 2, "first_offset": 0, "last_offset": 1}],
    }


def test_without_acks_nobody_knows_offsets(server: str, topic: str) -> None:
    result = call(server, "produce", topic, "--acks", "0", "-o", "json", stdin=b"a\n")
    assert result.code == 0
    (partition,) = json.loads(result.out)["partitions"]
    assert (partition["records"], partition["first_offset"]) == (1, None)


def test_count(server: str, topic: str) -> None:
    assert call(server, "produce", topic, "-p", "0", "-n", "2", stdin=b"1\n2\n3\n").code == 0
    assert values(server, topic) == ["1", "2"]
    assert call(server, "produce", topic, "-n", "0", stdin=b"3\n").code == 0
    assert values(server, topic) == ["1", "2"]


def test_rate(server: str, topic: str) -> None:
    began = time.monotonic()
    assert call(server, "produce", topic, "--rate", "100", stdin=b"x\n" * 51).code == 0
    assert time.monotonic() - began >= 0.45
    assert len(stored(server, topic)) == 51


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression(server: str, topic: str, codec: str) -> None:
    words = ("-z", codec, "-p", "0", "--linger-ms", "50", "--batch-size", "100000")
    assert call(server, "produce", topic, *words, stdin=b"some text\n" * 500).code == 0
    assert values(server, topic) == ["some text"] * 500


def test_dry_run_needs_no_server_and_reads_back(server: str, closed_port: int, topic: str) -> None:
    words = ("-K", ":", "-H", "h=1", "--timestamp", "5", "-p", "1")
    result = call(f"127.0.0.1:{closed_port}", "produce", topic, "--dry-run", *words, stdin=b"a:1\nb:\xff\n")
    assert (result.code, result.err) == (0, "2 records would be sent\n")
    assert [json.loads(line) for line in result.lines] == [
        {
            "topic": topic,
            "partition": 1,
            "timestamp": 5,
            "key": "a",
            "value": "1",
            "headers": [{"name": "h", "value": "1"}],
        },
        {
            "topic": topic,
            "partition": 1,
            "timestamp": 5,
            "key": "b",
            "value_base64": "/w==",
            "headers": [{"name": "h", "value": "1"}],
        },
    ]
    assert call(server, "produce", topic, "--json", stdin=result.out).code == 0
    assert [(record["key"], record["timestamp"]) for record in stored(server, topic)] == [("a", 5), ("b", 5)]


@pytest.mark.parametrize(
    "words",
    [
        ("--json", "--whole"),
        ("--json", "-K", ":"),
        ("--whole", "--crlf"),
        ("--route",),
        ("-k", "a", "-K", ":"),
        ("-D", ""),
        ("-D", "\\q"),
        ("-H", "novalue"),
        ("--timestamp", "0"),
        ("--timestamp", "yesterday"),
        ("--rate", "0"),
    ],
)
def test_wrong_usage(server: str, topic: str, words: tuple[str, ...]) -> None:
    result: Result = call(server, "produce", topic, *words, stdin=b"v\n")
    assert result.code == 2
    assert result.err.startswith("penstock: ")
    assert call(server, "consume", topic).code == 1  # nothing was created


def test_ctrl_c_sends_what_was_read(server: str, topic: str) -> None:
    command = [sys.executable, "-m", "penstock.cli.main", "produce", topic, "-s", server]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\ntwo\nunfinished")
        process.stdin.flush()
        wait_until(lambda: call(server, "consume", topic).out.count(b"\n") == 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        assert process.stderr.read().startswith(f"{created(topic)}2 records, 6 bytes, to partition".encode())
    assert sorted(values(server, topic)) == ["one", "two"]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
