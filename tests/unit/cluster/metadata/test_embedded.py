"""The SQLite store: durable, off the loop, and unwilling to serve a file it does not trust."""

import asyncio
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Container
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.metadata import embedded
from penstock.cluster.metadata.database import Committed, DamagedMetadataError
from penstock.cluster.metadata.embedded import EmbeddedStore
from penstock.cluster.metadata.transaction import Transaction
from penstock.errors import Code, PenstockError, StartupError
from penstock.ports.metadata import Change, Entry, LeaseLost, MetadataStore

FIRST_FORMAT = Path(__file__).parents[3] / "golden" / "v1" / "data" / "meta" / "metadata.db"


async def filled(path: Path, count: int = 3) -> list[Entry]:
    store: MetadataStore = await EmbeddedStore.open(str(path))
    for number in range(count):
        await store.transact(put={f"topics/{number}": b"value %d" % number})
    entries = await store.list("")
    await store.close()
    return entries


async def reopened(path: Path) -> list[Entry]:
    store = await EmbeddedStore.open(str(path))
    try:
        return await store.list("")
    finally:
        await store.close()


def inode(path: Path) -> int:
    return path.stat().st_ino


def replace_directory(path: Path, content: bytes) -> None:
    """The file alone with this content, without a write-ahead log of an earlier try."""
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    path.write_bytes(content)


async def test_entries_and_revision_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "meta" / "store.db"
    entries = await filled(path)
    assert await reopened(path) == entries
    store = await EmbeddedStore.open(str(path))
    await store.transact(delete=[entry.key for entry in entries])
    await store.close()
    store = await EmbeddedStore.open(str(path))
    assert await store.transact(put={"a": b""}) == 5
    await store.close()


async def test_entries_survive_without_a_clean_end(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await EmbeddedStore.open(str(path))
    await store.transact(put={"a": b"1"})
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("store.db", "store.db-wal"):  # what a kill would leave; the shared-memory file is rebuilt
        shutil.copy(tmp_path / name, copy / name)
    await store.close()
    assert await reopened(copy / "store.db") == [Entry("a", b"1", 1)]


async def test_every_commit_is_synced_and_new_names_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced_directories: set[int] = set()
    real = os.fsync

    def record(fd: int) -> None:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            synced_directories.add(status.st_ino)
        real(fd)

    monkeypatch.setattr(os, "fsync", record)
    store = await EmbeddedStore.open(str(tmp_path / "meta" / "store.db"))
    assert synced_directories == {inode(tmp_path), inode(tmp_path / "meta")}
    mode = await store._run(lambda: store._database.connection.execute("PRAGMA journal_mode").fetchone()[0])
    level = await store._run(lambda: store._database.connection.execute("PRAGMA synchronous").fetchone()[0])
    assert (mode, level) == ("wal", 2)
    await store.close()


async def test_sqlite_works_in_one_thread_that_is_not_the_loops(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(str(tmp_path / "store.db"))
    threads = await asyncio.gather(*(store._run(threading.get_ident) for _ in range(20)))
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()
    await store.close()


def test_sqlite_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, penstock.cluster.metadata.embedded; sys.exit('sqlite3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def columns(path: Path) -> tuple[int, list[tuple[Any, ...]]]:
    connection = sqlite3.connect(path)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    rows = connection.execute("SELECT key, value, revision FROM entries ORDER BY key").fetchall()
    connection.close()
    return version, rows


async def test_a_file_of_the_first_format_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    shutil.copy(FIRST_FORMAT, path)
    version, rows = columns(path)
    assert (version, len(rows)) == (1, 7)
    entries = [Entry(*row) for row in rows]
    assert await reopened(path) == entries
    assert columns(path) == (2, rows)
    assert await reopened(path) == entries
    store = await EmbeddedStore.open(str(path))
    lease = await store.grant(60)
    assert await store.transact(put_leased={"topics/gzip": b""}, lease=lease) == 17, "the revision goes on"
    await store.revoke(lease)
    await store.close()
    assert await reopened(path) == [entry for entry in entries if entry.key != "topics/gzip"]


async def test_an_upgrade_checks_every_row(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    shutil.copy(FIRST_FORMAT, path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE entries SET value = x'00' WHERE key = 'topics/lz4'")
    connection.close()
    with pytest.raises(StartupError, match=r"topics/lz4.*checksum"):
        await EmbeddedStore.open(str(path))


async def leased(path: Path) -> None:
    """A file with one key that is bound to a lease, as its process left it."""
    store = await EmbeddedStore.open(str(path))
    lease = await store.grant(600)
    await store.transact(put={"stays": b""}, put_leased={"goes": b"", "freed": b""}, lease=lease)
    await store.transact(put={"freed": b""})
    await store.close()


async def test_no_lease_outlives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await leased(path)
    store = await EmbeddedStore.open(str(path))
    assert await store.snapshot("") == ([Entry("freed", b"", 2), Entry("stays", b"", 1)], 3)
    with pytest.raises(LeaseLost):
        await store.keep_alive(1)
    await store.close()
    store = await EmbeddedStore.open(str(path))
    assert (await store.snapshot("")).revision == 3
    await store.close()


@pytest.mark.parametrize("lease", ["0", "2"])
async def test_a_row_that_lost_its_lease_is_found_at_open(tmp_path: Path, lease: str) -> None:
    path = tmp_path / "store.db"
    await leased(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT lease FROM entries WHERE key = 'goes'").fetchone() == (1,)
        connection.execute("UPDATE entries SET lease = ? WHERE key = 'goes'", (int(lease),))
    connection.close()
    with pytest.raises(StartupError, match=r"'goes' fails its checksum"):
        await EmbeddedStore.open(str(path))


async def test_a_full_device_keeps_no_lease_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_RETRY_S", 0.01)
    store = await EmbeddedStore.open(str(tmp_path / "store.db"))
    lease = await store.grant(600)
    await store.transact(put_leased={"a": b""}, lease=lease)
    remove, failures = store._database.remove_leased, 3

    def remove_if_there_is_room(lease: int) -> Committed:
        nonlocal failures
        if failures:
            failures -= 1
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return remove(lease)

    monkeypatch.setattr(store._database, "remove_leased", remove_if_there_is_room)
    with pytest.raises(PenstockError, match="no space"):
        await store.revoke(lease)
    with pytest.raises(LeaseLost):
        await store.keep_alive(lease)
    async with asyncio.timeout(60):
        assert await anext(aiter(store.watch("", 1))) == [Change("a", None, 2)]
    assert failures == 0
    await store.close()


async def test_a_change_that_nobody_waits_for_any_more_is_told_to_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await EmbeddedStore.open(str(tmp_path / "store.db"))
    transact, begun, abandoned = store._database.transact, threading.Event(), threading.Event()

    def transact_when_abandoned(transaction: Transaction, leases: Container[int]) -> Committed:
        begun.set()
        assert abandoned.wait(60)
        return transact(transaction, leases)

    monkeypatch.setattr(store._database, "transact", transact_when_abandoned)
    asking = asyncio.ensure_future(store.transact(put={"a": b"1"}))
    assert await asyncio.to_thread(begun.wait, 60)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    abandoned.set()
    async with asyncio.timeout(60):
        assert await anext(aiter(store.watch("", 0))) == [Change("a", b"1", 1)]
    await store.close()


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await filled(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(StartupError, match=r"store\.db has format version 7; this release reads 1 to 2"):
        await EmbeddedStore.open(str(path))


async def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StartupError, match="another program"):
        await EmbeddedStore.open(str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database at all, just some text" * 100, bytes(4096)])
async def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(content)
    with pytest.raises(StartupError, match=r"store\.db.*[Rr]estore") as caught:
        await EmbeddedStore.open(str(path))
    assert "logs are not touched" in str(caught.value)
    assert path.read_bytes() == content


async def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=str(tmp_path)):
        await EmbeddedStore.open(str(tmp_path))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StartupError, match="file"):
        await EmbeddedStore.open(str(tmp_path / "file" / "store.db"))


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"")
    assert len(await filled(tmp_path / "store.db")) == 3


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entries SET value = x'00' WHERE key = 'topics/1'",
        "UPDATE entries SET revision = 1 WHERE key = 'topics/1'",
        "UPDATE entries SET key = 'topics/9' WHERE key = 'topics/1'",
        "UPDATE entries SET crc = crc + 1 WHERE key = 'topics/1'",
        "UPDATE entries SET value = 'text' WHERE key = 'topics/1'",
        "UPDATE entries SET lease = 1 WHERE key = 'topics/1'",
        "UPDATE entries SET lease = -1 WHERE key = 'topics/1'",
        "UPDATE entries SET lease = 'text' WHERE key = 'topics/1'",
        "UPDATE counters SET value = 2",
        "DELETE FROM counters",
        "DROP TABLE counters",
    ],
)
async def test_a_changed_row_is_found_at_open(tmp_path: Path, change: str) -> None:
    path = tmp_path / "store.db"
    await filled(path)
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    connection.close()
    with pytest.raises(StartupError, match=r"store\.db"):
        await EmbeddedStore.open(str(path))


async def test_a_changed_row_is_found_when_read(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await filled(path)
    store = await EmbeddedStore.open(str(path))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE entries SET value = x'00' WHERE key = 'topics/1'")
    connection.close()
    assert await store.get("topics/0") is not None
    for read in (store.get("topics/1"), store.list("topics/"), store.transact(expect={"topics/1": 2})):
        with pytest.raises(DamagedMetadataError, match=r"store\.db.*topics/1"):
            await read
    assert await store.transact(put={"topics/1": b"mended"}) == 4
    await store.close()


async def test_no_flipped_byte_changes_what_is_served(tmp_path: Path) -> None:
    path = tmp_path / "meta" / "store.db"
    entries = await filled(path, 20)
    pristine = path.read_bytes()
    used = [position for position in range(len(pristine)) if pristine[position]]
    positions = [*range(100), *random.Random(1).sample(used, 150)]
    refused = 0
    for position in positions:
        damaged = bytearray(pristine)
        damaged[position] ^= 1 << (position % 8)
        replace_directory(path, bytes(damaged))
        try:
            assert await reopened(path) == entries, f"byte {position}"
        except StartupError:
            refused += 1
    assert refused > 150


async def test_a_full_device_is_said_and_survived(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(str(tmp_path / "store.db"))
    await store.transact(put={"a": b"1"})
    pages = await store._run(lambda: store._database.connection.execute("PRAGMA page_count").fetchone()[0])
    await store._run(lambda: store._database.connection.execute(f"PRAGMA max_page_count = {pages}").fetchone())
    with pytest.raises(PenstockError, match="no space") as caught:
        await store.transact(put={"a": b"2", "big": bytes(100_000)})
    assert caught.value.code is Code.STORAGE_FULL
    assert await store.list("") == [Entry("a", b"1", 1)]
    assert await store.transact(put={"a": b"2"}) == 2
    await store.close()


async def test_a_failed_device_stops_the_store(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(str(tmp_path / "store.db"))

    def fail() -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error

    with pytest.raises(PenstockError, match="I/O") as caught:
        await store._run(fail)
    assert caught.value.code is Code.STORAGE_FAILED
    with pytest.raises(PenstockError, match="stopped"):
        await store.transact(put={"a": b"1"})
    await store.close()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(str(tmp_path / "store.db"))
    last = asyncio.ensure_future(store.transact(put={"a": b"1"}))
    await asyncio.sleep(0)
    await store.close()
    await store.close()
    assert await last == 1
    with pytest.raises(PenstockError, match="closed"):
        await store.get("a")
    assert await reopened(tmp_path / "store.db") == [Entry("a", b"1", 1)]
