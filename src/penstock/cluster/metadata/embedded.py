"""The metadata store of a broker on its own: one SQLite file, all of whose work happens in one thread.

Every commit is synced before the call returns. Each row carries a CRC-32C over its key, revision and value;
all rows are checked at open and each one again whenever it is read, so a damaged byte is reported, never
served. An error that is not a plain lack of space stops the store for good: after a failed sync nobody knows
what the device holds, and the next start finds out.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from struct import Struct
from typing import TYPE_CHECKING, TypeVar

from crc32c import crc32c

from penstock.errors import Code, PenstockError, StartupError
from penstock.ports.metadata import Entry, MetadataConflict

if TYPE_CHECKING:
    from sqlite3 import Connection, DatabaseError

T = TypeVar("T")
Entries = list[Entry]  # inside the class, `list` is a method

FORMAT_VERSION = 1
_APPLICATION_ID = 0x5053544B  # "PSTK", so that `file` and a reader can tell the file from any other database
_REVISION = "revision"
_HEAD = Struct("<IQ")  # key size, revision
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE entries (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL, crc INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION};
COMMIT;
"""
_WAY_OUT = (
    "Restore the file from a backup, or move it and its -wal and -shm neighbours away to start "
    "without topics; the logs are not touched."
)


class DamagedMetadataError(RuntimeError):
    """A row is not what was written."""


class EmbeddedStore:
    """The metadata port on SQLite. Make one with `open`."""

    def __init__(
        self,
        path: str,
        connection: "Connection",
        thread: ThreadPoolExecutor,
        fail: Callable[[BaseException], None] | None,
    ) -> None:
        self._fail = fail
        self._path = path
        self._connection = connection
        self._thread = thread
        self._revision = 0
        self._refusal = ""

    @staticmethod
    async def open(path: str, fail: Callable[[BaseException], None] | None = None) -> "EmbeddedStore":
        """Open the store, creating it and its directory if there is none.

        Args:
            fail: told when the store stops for good, so that the broker stops too.

        Raises:
            StartupError: the file is damaged, from a newer release, not ours, or cannot be opened.
        """
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-metadata")
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, _open, path, thread, fail)
        except BaseException:
            thread.shutdown(wait=False)
            raise

    async def get(self, key: str) -> Entry | None:
        return await self._run(lambda: self._get(key))

    async def list(self, prefix: str) -> Entries:
        return await self._run(lambda: self._list(prefix))

    async def transact(
        self,
        *,
        expect: Mapping[str, int] | None = None,
        put: Mapping[str, bytes] | None = None,
        delete: Iterable[str] = (),
    ) -> int:
        # Copied here: the caller's mappings must not be read from another thread.
        expected = dict(expect or {})
        values = {key: bytes(value) for key, value in (put or {}).items()}
        gone = set(delete)
        if not gone.isdisjoint(values):
            raise ValueError(f"keys both put and deleted: {sorted(gone.intersection(values))}")
        return await self._run(lambda: self._transact(expected, values, gone))

    async def close(self) -> None:
        """Fold the write-ahead log into the file and let go of it. Later calls raise."""
        if self._refusal == "closed":
            return
        self._refusal = "closed"
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        finally:
            self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._refusal:
            raise PenstockError(Code.NOT_AVAILABLE, f"metadata store {self._path}: {self._refusal}")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, work)
        except PenstockError as error:
            if error.code is Code.STORAGE_FAILED and self._fail is not None:
                self._fail(error)
            raise

    # From here on in the store's own thread.

    def _guarded(self, work: Callable[[], T]) -> T:
        from sqlite3 import DatabaseError

        if self._refusal and self._refusal != "closed":  # work that was queued when an earlier one failed
            raise PenstockError(Code.NOT_AVAILABLE, f"metadata store {self._path}: {self._refusal}")
        try:
            return work()
        except DatabaseError as error:
            raise self._translated(error) from error

    def _translated(self, error: "DatabaseError") -> PenstockError:
        from sqlite3 import SQLITE_FULL

        if getattr(error, "sqlite_errorcode", 0) == SQLITE_FULL:
            return PenstockError(
                Code.STORAGE_FULL,
                f"metadata store {self._path}: no space left",
                help="Free space on the device; nothing was changed.",
            )
        self._refusal = f"stopped after an error: {error}"
        return PenstockError(
            Code.STORAGE_FAILED,
            f"metadata store {self._path}: {error}",
            help="Check the device, then restart the broker; it verifies the file before it serves.",
        )

    def _get(self, key: str) -> Entry | None:
        query = "SELECT key, value, revision, crc FROM entries WHERE key = ?"
        with closing(self._connection.execute(query, (key,))) as rows:
            for row in rows:
                return self._checked(row)
        return None

    def _list(self, prefix: str) -> Entries:
        # Read from the prefix on and stop at the first other key: there is no greatest string to stop at.
        query = "SELECT key, value, revision, crc FROM entries WHERE key >= ? ORDER BY key"
        found = []
        with closing(self._connection.execute(query, (prefix,))) as rows:
            for row in rows:
                if not str(row[0]).startswith(prefix):
                    break
                found.append(self._checked(row))
        return found

    def _transact(self, expect: dict[str, int], put: dict[str, bytes], delete: set[str]) -> int:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            for key, expected in expect.items():
                entry = self._get(key)
                found = entry.revision if entry else 0
                if found != expected:
                    raise MetadataConflict(key, expected, found)
            revision = self._revision + 1
            changes = len(put)
            for key in delete:
                changes += connection.execute("DELETE FROM entries WHERE key = ?", (key,)).rowcount
            connection.executemany(
                "INSERT OR REPLACE INTO entries (key, value, revision, crc) VALUES (?, ?, ?, ?)",
                [(key, value, revision, _checksum(key, revision, value)) for key, value in put.items()],
            )
            if changes:
                _save_revision(connection, revision)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if changes:
            self._revision = revision
        return self._revision

    def _checked(self, row: tuple[object, ...]) -> Entry:
        key, value, revision, crc = row
        # A damaged type byte makes SQLite return another type altogether.
        if isinstance(key, str) and isinstance(value, bytes) and isinstance(revision, int):  # noqa: SIM102
            if revision > 0 and _checksum(key, revision, value) == crc:
                return Entry(key, value, revision)
        raise DamagedMetadataError(f"metadata store {self._path}: key {key!r} fails its checksum")

    def _verify(self) -> None:
        """Check every row, and that the counter is not behind any of them."""
        newest = max((entry.revision for entry in self._list("")), default=0)
        # The counter is a row like any other, with an empty value.
        rows = self._connection.execute("SELECT name, x'', value, crc FROM counters").fetchall()
        for counter in map(self._checked, rows):
            if counter.key == _REVISION:
                self._revision = counter.revision
        if newest > self._revision:
            raise DamagedMetadataError(
                f"metadata store {self._path}: a key is at revision {newest}, the counter at {self._revision}"
            )


def _checksum(key: str, revision: int, value: bytes) -> int:
    name = key.encode()
    return crc32c(value, crc32c(name, crc32c(_HEAD.pack(len(name), revision))))


def _save_revision(connection: "Connection", revision: int) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO counters (name, value, crc) VALUES (?, ?, ?)",
        (_REVISION, revision, _checksum(_REVISION, revision, b"")),
    )


def _open(path: str, thread: ThreadPoolExecutor, fail: Callable[[BaseException], None] | None) -> EmbeddedStore:
    from sqlite3 import DatabaseError, connect

    directory = os.path.dirname(os.path.abspath(path))
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        connection = connect(path, isolation_level=None)  # transactions are begun by hand
    except (OSError, DatabaseError) as error:
        raise StartupError(f"metadata store {path} cannot be opened: {error}") from error
    try:
        _prepare(path, connection)
        # A new file, and a new directory, are names that a power cut may take back.
        _sync_directory(directory)
        _sync_directory(os.path.dirname(directory))
        store = EmbeddedStore(path, connection, thread, fail)
        store._verify()
    except DamagedMetadataError as error:
        connection.close()
        raise StartupError(f"{error}. {_WAY_OUT}") from error
    except (DatabaseError, OSError, ValueError, OverflowError) as error:
        connection.close()
        raise StartupError(f"metadata store {path} cannot be read: {error}. {_WAY_OUT}") from error
    except BaseException:
        connection.close()
        raise
    return store


def _prepare(path: str, connection: "Connection") -> None:
    """Check the file's health and version; lay out an empty one."""
    complaints = [row[0] for row in connection.execute("PRAGMA quick_check")]
    if complaints != ["ok"]:
        raise DamagedMetadataError(f"metadata store {path}: {'; '.join(complaints[:3])}")
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    owner = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    is_new = version == 0 and owner == 0 and tables == 0
    if not is_new and owner != _APPLICATION_ID:
        raise StartupError(f"metadata store {path} is a database of another program. {_WAY_OUT}")
    if not is_new and version != FORMAT_VERSION:
        raise StartupError(
            f"metadata store {path} has format version {version}; this release reads {FORMAT_VERSION}. "
            f"Start the release that wrote it, or restore a backup made by this one."
        )
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StartupError(f"metadata store {path}: no write-ahead log on this file system (mode {mode})")
    connection.execute("PRAGMA synchronous = FULL")
    if is_new:
        connection.executescript(_SCHEMA)
        # Without this the tables would exist in the write-ahead log only.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
