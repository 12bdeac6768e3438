"""Entries of the manifest: their form on disk, and what is said of damaged and missing ones."""

from pathlib import Path

import pytest

from penstock.pipelines.sinks.parquet_manifest import (
    CommittedFile,
    DamagedManifest,
    Entry,
    Manifest,
    batch_entry,
    decode,
    encode,
    files,
    read_manifest,
    table_entry,
)

GOLDEN = (
    b'{"penstock_manifest":1,"crc32c":"57bbcb54","body":{"number":7,"kind":"batch","time_ms":1794819196136,'
    b'"marks":{"5b6a7f0e/lake":3},"table":{},"chain":[],"files":[{"path":"day=2026-11-16/part-0.parquet","rows":2,'
    b'"size":1234,"partition":{"day":"2026-11-16"}},{"path":"day=__HIVE_DEFAULT_PARTITION__/part-1.parquet","rows":1,'
    b'"size":99,"partition":{"day":null}}]}}\n'
)
ENTRY = Entry(
    7,
    "batch",
    (
        CommittedFile("day=2026-11-16/part-0.parquet", 2, 1234, {"day": "2026-11-16"}),
        CommittedFile("day=__HIVE_DEFAULT_PARTITION__/part-1.parquet", 1, 99, {"day": None}),
    ),
    {"5b6a7f0e/lake": 3},
    time_ms=1794819196136,
)
SNAPSHOT_GOLDEN = (
    b'{"penstock_manifest":1,"crc32c":"83e0687b","body":{"number":8,"kind":"snapshot","time_ms":1794819196137,'
    b'"marks":{"5b6a7f0e/lake":3},"table":{"schema":{"type":"struct","fields":[]},"partition_by":["day"]},'
    b'"chain":[2,5],"files":[{"path":"part-0.parquet","rows":2,"size":1234,"partition":{}}]}}\n'
)
SNAPSHOT = Entry(
    8,
    "snapshot",
    (CommittedFile("part-0.parquet", 2, 1234, {}),),
    {"5b6a7f0e/lake": 3},
    {"schema": {"type": "struct", "fields": []}, "partition_by": ["day"]},
    (2, 5),
    1794819196137,
)


@pytest.mark.parametrize(("entry", "golden"), [(ENTRY, GOLDEN), (SNAPSHOT, SNAPSHOT_GOLDEN)])
def test_version_1_is_written_and_read_as_ever(entry: Entry, golden: bytes, tmp_path: Path) -> None:
    assert encode(entry) == golden
    assert decode(golden, Manifest(tmp_path).path(entry.number)) == entry


def made(directory: Path, batches: int = 3) -> Manifest:
    manifest = Manifest(directory)
    manifest.append(table_entry({"type": "struct", "fields": []}, ()))
    for number in range(batches):
        assert manifest.append(
            batch_entry(number + 1, "query/lake", number, (CommittedFile(f"part-{number}.parquet", 1, 10, {}),))
        )
    return manifest


def test_every_flipped_bit_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = made(tmp_path).path(2)
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            with pytest.raises(DamagedManifest, match=path.name):
                Manifest(tmp_path).refresh()
    path.write_bytes(whole)
    Manifest(tmp_path).refresh()


def test_every_shorter_entry_is_an_error(tmp_path: Path) -> None:
    path = made(tmp_path).path(2)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedManifest, match=path.name):
            read_manifest(tmp_path)
    path.write_bytes(whole + b"\n")
    with pytest.raises(DamagedManifest, match="checksum"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_entry_is_an_error(tmp_path: Path, number: int) -> None:
    path = made(tmp_path).path(number)
    path.unlink()
    with pytest.raises(DamagedManifest, match=path.name):
        read_manifest(tmp_path)


def test_an_entry_under_another_number_is_an_error(tmp_path: Path) -> None:
    manifest = made(tmp_path)
    manifest.path(3).rename(manifest.path(4))
    manifest.path(3).write_bytes(manifest.path(4).read_bytes())
    with pytest.raises(DamagedManifest, match="holds entry 3"):
        read_manifest(tmp_path)


def test_a_newer_version_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("penstock.pipelines.sinks.parquet_manifest.VERSION", 2)
        made(tmp_path, 0)
    with pytest.raises(DamagedManifest, match="format version 2; this release reads up to 1"):
        read_manifest(tmp_path)


def test_a_missing_snapshot_is_an_error(tmp_path: Path) -> None:
    manifest = made(tmp_path, 6)
    manifest.compact()
    manifest.append(batch_entry(8, "query/lake", 6, (CommittedFile("part-6.parquet", 1, 10, {}),)))
    manifest.compact()
    assert manifest.chain == (7, 9)
    assert [file.path for file in read_manifest(tmp_path)] == [f"part-{number}.parquet" for number in range(7)]
    manifest.path(7).unlink()
    with pytest.raises(DamagedManifest, match="snapshot"):
        read_manifest(tmp_path)


def test_a_number_is_taken_once(tmp_path: Path) -> None:
    one, two = made(tmp_path, 0), Manifest(tmp_path)
    two.refresh()
    assert one.append(batch_entry(1, "a/lake", 0, ()))
    assert not two.append(batch_entry(1, "b/lake", 0, ()))
    two.refresh()
    assert two.marks == {"a/lake": 0}
    assert list(one.staging.iterdir()) == []


def test_a_reader_starts_again_when_entries_vanish_under_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = made(tmp_path, 5)
    reader = Manifest(tmp_path)
    numbers = reader._numbers
    looks = []

    def compacted_meanwhile() -> list[int]:
        found = numbers()
        looks.append(len(found))
        if len(looks) == 1:
            manifest.compact()
        return found

    monkeypatch.setattr(reader, "_numbers", compacted_meanwhile)
    reader.refresh()
    assert looks == [6, 1]
    assert reader.marks == {"query/lake": 4}


def test_a_directory_without_entries_has_no_files(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) == []
    assert files(tmp_path / "nowhere") == []
