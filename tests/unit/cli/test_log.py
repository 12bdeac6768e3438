"""`penstock log`: what it shows, that looking changes nothing, and that a repaired directory serves what is left."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.unit.storage.compaction.sealed_log import RETENTION_MS, SealedLog, values

from penstock.cli.main import main
from penstock.cluster.metadata.offline import load_catalogue
from penstock.records.control import Marker
from penstock.storage.local_disk import LocalDisk
from penstock.storage.offline.repair import KEEP_ALL
from penstock.testing import embedded_broker

GOLDEN = Path(__file__).parents[2] / "golden" / "v1" / "data"
CODECS = ["gzip", "lz4", "plain", "snappy", "zstd"]


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten partitions of 200 records in three segments each, stopped cleanly."""
    path = tmp_path / "data"
    shutil.copytree(GOLDEN, path)
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(path))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["log", *words]) == code
    return capsys.readouterr().out


def answer(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    return json.loads(run(capsys, *words, "-o", "json", code=code))


def files(path: Path) -> dict[str, bytes]:
    """Every file but the lock, which has no content."""
    found = [each for each in path.rglob("*") if each.is_file() and each.name != ".lock"]
    return {str(each.relative_to(path)): each.read_bytes() for each in found}


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


# --- looking


def test_list(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer(capsys, "list")
    assert [(row["topic"], row["partition"]) for row in rows] == [(codec, at) for codec in CODECS for at in (0, 1)]
    plain = next(row for row in rows if row["topic"] == "plain")
    assert (plain["log_start"], plain["end_offset"], len(plain["segments"])) == (17, 200, 3)
    assert [segment["state"] for segment in plain["segments"]] == ["sealed", "sealed", "active"]
    assert "plain" in run(capsys, "list", "plain") and "gzip" not in run(capsys, "list", "plain")
    assert "00000000000000000070.log" in run(capsys, "list", "plain", "--segments")


def test_dump_batches_and_records(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batches = answer(capsys, "dump", "zstd-1", "--from", "81", "--until", "91")
    assert [(each["base_offset"], each["last_offset"], each["codec"]) for each in batches] == [
        (80, 84, "zstd"),
        (85, 89, "zstd"),
        (90, 94, "zstd"),
    ]
    assert all(each["crc_ok"] and each["problem"] is None for each in batches)
    records = answer(capsys, "dump", "zstd", "--partition", "1", "--records", "--from", "81", "--until", "91")
    assert [each["offset"] for each in records] == list(range(81, 91))
    assert (records[0]["key"], records[0]["value"]) == ("k1", "v16-1")
    assert len(answer(capsys, "dump", "zstd-1", "--records", "--count", "3")) == 3
    assert yaml.safe_load(run(capsys, "dump", "zstd-1", "--count", "2", "-o", "yaml"))[1]["base_offset"] == 5
    table = run(capsys, "dump", "zstd-1", "--count", "2")
    assert len(table.splitlines()) == 3 and "zstd-1" in table


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("logs/plain/0/00000000000000000000.log", "BASE OFFSET"),
        ("logs/plain/0/00000000000000000000.index", "largest time before"),
        ("logs/plain/0/00000000000000000140.checkpoint", "crc-32c"),
        ("logs/plain/0/state", "producers"),
        ("logs/plain/0/partition.meta", "topic_id"),
        ("format", "data directory"),
        ("clean-shutdown", "plain-0"),
        ("meta/metadata.db", "retention.ms=-1"),
    ],
)
def test_dump_files(data_dir: Path, capsys: pytest.CaptureFixture[str], path: str, shown: str) -> None:
    assert shown.lower() in run(capsys, "dump", path).lower()
    assert run(capsys, "dump", str(data_dir / path)) == run(capsys, "dump", path)
    assert answer(capsys, "dump", path)


def test_dump_of_a_compacted_log_names_markers_tombstones_and_horizons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = SealedLog(LocalDisk(), str(tmp_path))
    log.write(*values([("a", "old")]))
    fields = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
    log.write(*values([("t", "committed")]), producer_id=8, **fields)
    aborted = log.write(*values([("t", "aborted")]), producer_id=7, **fields)
    log.mark(8, Marker.COMMIT)
    abort = log.mark(7, Marker.ABORT)
    log.write(*values([("a", "new"), ("gone", None)]))
    log.seal()
    log.compact(aborted=((7, aborted, abort),), now_ms=5)
    path = str(tmp_path / f"{0:020d}.log")
    batches = answer(capsys, "dump", path)
    assert [each["problem"] for each in batches] == [None] * 4, "offsets that compaction took out are not damage"
    assert [(each["base_offset"], each["marker"], each["delete_horizon"]) for each in batches] == [
        (1, None, None),
        (3, "commit", None),
        (4, "abort", None),
        (5, None, 5 + RETENTION_MS),
    ]
    records = answer(capsys, "dump", path, "--records")
    assert [(each["offset"], each["marker"], each["tombstone"]) for each in records][1:] == [
        (3, "commit", False),
        (4, "abort", False),
        (5, None, False),
        (6, None, True),
    ]
    table = run(capsys, "dump", path, "--records")
    assert "abort marker" in table and "producer 7, epoch 0" in table and "tombstone" in table
    card = answer(capsys, "dump", path.replace(".log", ".index"))
    assert [row["producer_id"] for row in card["aborted_transactions"]] == [7]
    assert "STABLE OFFSET" in run(capsys, "dump", path.replace(".log", ".index"))


def test_dump_shows_what_is_no_text_as_base64_and_escapes_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with embedded_broker(tmp_path / "data") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("t", b"\xff\x00", b"\x1b[31mred\n", headers={"trace": b"\xfe"}, partition=0)
        producer.flush()
        words = ("dump", "t-0", "--records", "--data-dir", str(broker.data_dir))
        table = run(capsys, *words)
        assert "\x1b" not in table and "\\x1b[31mred\\n" in table
        assert "base64:/wA=" in table and "trace=base64:/g==" in table
        record = answer(capsys, *words)[0]
        assert record["value_base64"] == "/wA=" and record["key"] == "\x1b[31mred\n"


def test_dump_of_something_that_is_not_there(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "dump", "nothing-0"]) == 1
    assert "no partition nothing-0" in capsys.readouterr().err
    assert main(["log", "list", "--data-dir", str(data_dir / "logs")]) == 2
    assert "is no data directory" in capsys.readouterr().err


def test_looking_changes_nothing(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data_dir / "clean-shutdown").unlink()
    flip(data_dir / "logs/plain/1/00000000000000000070.log", 500)
    before = files(data_dir)
    run(capsys, "list")
    run(capsys, "dump")
    run(capsys, "dump", "plain", "--records")
    run(capsys, "verify", "--deep", code=1)
    run(capsys, "repair", "--dry-run", code=1)
    run(capsys, "repair", code=1)
    assert files(data_dir) == before


# --- verifying


def test_a_sound_directory(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = answer(capsys, "verify", "--deep")
    assert report["sound"] and report["findings"] == []
    assert (report["partitions"], report["records"]) == (10, 2000)
    assert "sound" in run(capsys, "verify", "plain")


def test_verify_beside_a_broker_at_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    defaults = {"segment.bytes": "20000", "retention.bytes": "60000", "flush": "os"}
    with embedded_broker(tmp_path / "data", topic_defaults=defaults, partitions=2) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 1, "enable.idempotence": True})
        for at in range(12):
            for number in range(300):
                producer.produce("t", b"%d" % number * 20)
            if at < 4:
                producer.flush()
            else:
                producer.poll(0)
            place = ("--data-dir", str(broker.data_dir))
            findings = answer(capsys, "verify", *place)["findings"]
            assert [each for each in findings if each["severity"] == "damage"] == []
            answer(capsys, "list", *place)
            run(capsys, "dump", "t", *place)
        assert main(["log", "repair", *place, "--yes"]) == 2
        assert "in use by a broker" in capsys.readouterr().err
        producer.flush()


def test_what_verify_says_of_a_directory(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(data_dir / "logs/gzip/1")
    shutil.copytree(data_dir / "logs/lz4/0", data_dir / "logs/moved/0")
    flip(data_dir / "logs/snappy/0/partition.meta", 30)
    flip(data_dir / "format", 20)
    (data_dir / "logs/zstd/0/notes.txt").write_text("mine")
    findings = answer(capsys, "verify", code=1)["findings"]
    told = {(each["kind"], each["severity"], each["partition"]) for each in findings}
    assert told == {
        ("format", "damage", ""),
        ("missing-partition", "damage", "gzip-1"),
        ("owner", "damage", "moved-0"),
        ("stranger", "damage", "moved-0"),
        ("owner", "damage", "snappy-0"),
        ("leftover", "harmless", "zstd-0"),
    }
    assert all(each["what"] and each["start"] and each["way_out"] for each in findings)


# --- repairing


def read_offsets(bootstrap: str, topic: str, partition: int, start: int = 0) -> list[int]:
    alone = {"group.id": "nobody", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, **alone})
    consumer.assign([TopicPartition(topic, partition, start)])
    offsets: list[Any] = []
    try:
        while True:
            message = consumer.poll(20)
            assert message is not None, f"{topic}-{partition} stands still after {offsets[-1:]}"
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                return offsets
            offsets.append(message.offset())
    finally:
        consumer.close()


def test_a_client_reads_over_what_was_lost(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = data_dir / "logs"
    flip(logs / "plain/1/00000000000000000000.log", 100)  # the first batch of the log
    flip(logs / "plain/1/00000000000000000070.log", 500)  # in the middle
    flip(logs / "plain/1/00000000000000000070.log", 2110)  # the last batch of a sealed segment
    flip(logs / "plain/1/00000000000000000140.log", 1800)  # the last batch of the log
    (logs / "gzip/0/00000000000000000080.log").unlink()
    lost = answer(capsys, "repair", "--yes")["lost"]
    assert {name: [(each["first_offset"], each["last_offset"]) for each in told] for name, told in lost.items()} == {
        "gzip-0": [(80, 159)],
        "plain-1": [(0, 4), (85, 89), (135, 139), (195, 199)],
    }
    gone = {0, 1, 2, 3, 4, *range(85, 90), *range(135, 140), *range(195, 200)}
    with embedded_broker(data_dir) as broker:
        assert read_offsets(broker.bootstrap, "plain", 1) == sorted(set(range(200)) - gone)
        assert read_offsets(broker.bootstrap, "plain", 1, 87) == sorted(set(range(87, 200)) - gone)
        assert read_offsets(broker.bootstrap, "gzip", 0) == [*range(80), *range(160, 200)]
        assert read_offsets(broker.bootstrap, "plain", 0, 17) == list(range(17, 200))
        delivered: list[int] = []
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        producer.produce("plain", b"x", partition=1, on_delivery=lambda _, message: delivered.append(message.offset()))
        producer.flush()
        assert delivered == [200], "an offset was used twice"
    run(capsys, "verify", "--deep")


def test_lost_metadata_is_rebuilt(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = load_catalogue(str(data_dir))
    shutil.rmtree(data_dir / "meta")
    done = answer(capsys, "repair", "--yes")
    assert done["metadata_rebuilt"] and any("settings" in note and "lost" in note for note in done["notes"])
    after = load_catalogue(str(data_dir))
    assert {name: (entry.topic_id, entry.partitions) for name, entry in after.topics.items()} == {
        name: (entry.topic_id, entry.partitions) for name, entry in before.topics.items()
    }
    assert all(entry.settings == KEEP_ALL for entry in after.topics.values())
    assert after.next_producer_id >= before.next_producer_id
    assert all(after.topics[name].leader_epoch > entry.leader_epoch for name, entry in before.topics.items())
    with embedded_broker(data_dir) as broker:
        assert read_offsets(broker.bootstrap, "zstd", 1) == list(range(200))


def test_metadata_with_any_rotten_byte_is_found_and_rebuilt(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Most bytes of the file are padding; of the others, what still checks is taken over."""
    before = load_catalogue(str(data_dir))
    database = data_dir / "meta" / "metadata.db"
    sound = database.read_bytes()
    salvaged = 0
    used = [at for at in range(len(sound)) if sound[at]]
    for position in used[:60:3] + used[60::40]:
        shutil.rmtree(data_dir / "meta")
        (data_dir / "meta").mkdir()
        database.write_bytes(sound)
        flip(database, position)
        found = load_catalogue(str(data_dir))
        if found.problem is None:
            assert found.topics == before.topics and found.next_producer_id == before.next_producer_id, position
            continue
        assert main(["log", "repair", "--yes"]) == 0, position
        capsys.readouterr()
        after = load_catalogue(str(data_dir))
        assert after.problem is None and set(after.topics) == set(CODECS), position
        for name, entry in after.topics.items():
            old = before.topics[name]
            assert (entry.topic_id, entry.partitions) == (old.topic_id, old.partitions), position
            assert entry.settings in (old.settings, KEEP_ALL), position
            salvaged += entry.settings == old.settings
        assert after.next_producer_id >= before.next_producer_id
        assert (data_dir / "meta" / "metadata.db.damaged-1").read_bytes() != sound
    assert salvaged > 0, "nothing was ever taken over"


def test_small_files_and_missing_partitions(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(data_dir / "format", 20)
    flip(data_dir / "logs/snappy/0/partition.meta", 30)
    (data_dir / "logs/snappy/1/partition.meta").unlink()
    flip(data_dir / "logs/lz4/1/state", 40)
    flip(data_dir / "logs/lz4/0/00000000000000000000.index", 70)
    shutil.rmtree(data_dir / "logs/gzip/1")
    done = answer(capsys, "repair", "--yes", code=1)
    assert [each["path"] for each in done["not_repaired"]] == [f"{data_dir}/logs/gzip/1"]
    assert done["lost"] == {}
    with embedded_broker(data_dir) as broker:
        assert read_offsets(broker.bootstrap, "snappy", 0) == list(range(200))
        assert read_offsets(broker.bootstrap, "lz4", 1) == list(range(200))
    run(capsys, "repair", "--yes", "--recreate-missing")
    with embedded_broker(data_dir) as broker:
        assert read_offsets(broker.bootstrap, "gzip", 1) == []
        assert read_offsets(broker.bootstrap, "gzip", 0) == list(range(200))


def test_a_directory_of_a_later_release_is_left_alone(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from penstock.storage import checked_file

    (data_dir / "format").write_bytes(checked_file.encode(b"frmt", 9, b"{}"))
    flip(data_dir / "logs/lz4/1/state", 40)
    before = files(data_dir)
    assert main(["log", "repair", "--yes"]) == 2
    assert "later release" in capsys.readouterr().err
    assert files(data_dir) == before


def test_a_sound_directory_needs_no_repair(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing to repair" in run(capsys, "repair", "--yes")


# --- accepting


def put_old_copy_back(data_dir: Path) -> None:
    """`plain-0` as it was before ten more records came; stopped cleanly meanwhile."""
    shutil.copytree(data_dir / "logs" / "plain" / "0", data_dir.parent / "old")
    with embedded_broker(data_dir) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for _ in range(10):
            producer.produce("plain", b"x", partition=0)
        producer.flush()
    shutil.rmtree(data_dir / "logs" / "plain" / "0")
    shutil.copytree(data_dir.parent / "old", data_dir / "logs" / "plain" / "0")


def test_an_old_copy_is_shown_and_accepted(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_old_copy_back(data_dir)
    (finding,) = [each for each in answer(capsys, "verify", code=1)["findings"] if each["severity"] == "damage"]
    assert finding["kind"] == "short" and "penstock log accept" in finding["way_out"]
    before = files(data_dir)
    told = answer(capsys, "accept", code=1)
    path = str(data_dir / "logs" / "plain" / "0")
    expected = {"partition": "plain-0", "path": path, "end_offset": 200, "durable_end": 210, "damaged": False}
    assert told == {"partitions": [expected], "done": False}
    assert "200 to 209 are given out again" in run(capsys, "accept", "plain", code=1)
    assert "nothing to accept" in run(capsys, "accept", "gzip", "plain-1")
    assert files(data_dir) == before
    assert answer(capsys, "accept", "plain-0", "--yes")["done"]
    assert answer(capsys, "verify")["sound"]
    assert answer(capsys, "accept") == {"partitions": [], "done": False}
    logs = {name: data for name, data in before.items() if name.startswith("logs/")}
    assert {name: data for name, data in files(data_dir).items() if name.startswith("logs/")} == logs
    with embedded_broker(data_dir) as broker:
        delivered: list[int] = []
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("plain", b"x", partition=0, on_delivery=lambda _, message: delivered.append(message.offset()))
        producer.flush()
        assert delivered == [200]


def test_nothing_is_accepted_while_a_broker_runs(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with embedded_broker(data_dir):
        assert main(["log", "accept", "--yes"]) != 0
    assert "in use" in capsys.readouterr().err


def test_damaged_ends_are_found(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with embedded_broker(data_dir):
        pass
    assert answer(capsys, "dump", "meta/log-ends")
    flip(data_dir / "meta" / "log-ends", 30)
    (finding,) = [each for each in answer(capsys, "verify", code=1)["findings"] if each["severity"] == "damage"]
    assert "log-ends" in finding["path"] and finding["start"] == "mends it"
    with embedded_broker(data_dir):
        pass
    assert answer(capsys, "verify")["sound"]
