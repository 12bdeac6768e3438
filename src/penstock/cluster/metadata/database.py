"""The SQLite file of the embedded store: its layout, its checksums, its upgrade. Everything here blocks.

Each row carries a CRC-32C over its key, revision, value and lease; all rows are checked at open and each one again
whenever it is read, so a damaged byte is reported, never served. A lease does not outlive the process that granted it,
so rows bound to one are removed at open.

Version 1 had no leases. A row without one has the checksum it had then, so an upgrade writes no row anew.
"""

import errno
import os
from collections.abc import Container
from contextlib import closing
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from penstock import obstacles
from penstock.cluster.metadata.transaction import Transaction
from penstock.errors import StartupError
from penstock.ports.metadata import Change, Entry, LeaseLost, MetadataConflict

if TYPE_CHECKING:
    from sqlite3 import Connection

Changes = list[Change]  # inside the class, `list` is a method

FORMAT_VERSION = 2
_APPLICATION_ID = 0x5053544B  # "PSTK", so that `file` and a reader can tell the file from any other database
_REVISION = "revision"
_HEAD = Struct("<IQ")  # key size, revision
_LEASE = Struct("<Q")
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE entries (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL, crc INTEGER NOT NULL,
    lease INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION};
COMMIT;
"""
_UPGRADE_FROM_1 = """
BEGIN IMMEDIATE;
ALTER TABLE entries ADD COLUMN lease INTEGER NOT NULL DEFAULT 0;
PRAGMA user_version = 2;
COMMIT;
"""
_WAY_OUT = (
    "Restore the file from a backup, or move it and its -wal and -shm neighbours away to start "
    "without topics; the logs are not touched."
)


class DamagedMetadataError(RuntimeError):
    """A row is not what was written."""


class Committed(NamedTuple):
    revision: int
    """Of the store now."""
    changes: list[Change]
    """None when nothing changed, and with it the revision."""


class Database:
    """The open file. Make one with `open_database`; use it from the thread that did."""

    def __init__(self, path: str, connection: "Connection") -> None:
        self._path = path
        self.connection = connection
        self.revision = 0

    def get(self, key: str) -> Entry | None:
        query = "SELECT key, value, revision, lease, crc FROM entries WHERE key = ?"
        with closing(self.connection.execute(query, (key,))) as rows:
            for row in rows:
                return self._checked(row)
        return None

    def list(self, prefix: str) -> list[Entry]:
        # Read from the prefix on and stop at the first other key: there is no greatest string to stop at.
        query = "SELECT key, value, revision, lease, crc FROM entries WHERE key >= ? ORDER BY key"
        found = []
        with closing(self.connection.execute(query, (prefix,))) as rows:
            for row in rows:
                if not str(row[0]).startswith(prefix):
                    break
                found.append(self._checked(row))
        return found

    def transact(self, transaction: Transaction, leases: Container[int]) -> Committed:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            for key, expected in transaction.expect.items():
                entry = self.get(key)
                found = entry.revision if entry else 0
                if found != expected:
                    raise MetadataConflict(key, expected, found)
            if transaction.lease is not None and transaction.lease not in leases:
                raise LeaseLost(f"lease {transaction.lease} has ended")
            changes = self._change(transaction)
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise
        if changes:
            self.revision += 1
        return Committed(self.revision, changes)

    def remove_leased(self, lease: int | None = None) -> Committed:
        """Remove the keys bound to a lease; without one, those bound to any."""
        if lease is None:
            rows = self.connection.execute("SELECT key FROM entries WHERE lease != 0")
        else:
            rows = self.connection.execute("SELECT key FROM entries WHERE lease = ?", (lease,))
        keys = [row[0] for row in rows]
        return self.transact(Transaction({}, {}, keys, None), ()) if keys else Committed(self.revision, [])

    def verify(self) -> None:
        """Check every row, and that the counter is not behind any of them."""
        newest = max((entry.revision for entry in self.list("")), default=0)
        # The counter is a row like any other, with an empty value.
        rows = self.connection.execute("SELECT name, x'', value, 0, crc FROM counters").fetchall()
        for counter in map(self._checked, rows):
            if counter.key == _REVISION:
                self.revision = counter.revision
        if newest > self.revision:
            raise DamagedMetadataError(
                f"metadata store {self._path}: a key is at revision {newest}, the counter at {self.revision}"
            )

    def _change(self, transaction: Transaction) -> Changes:
        connection, revision = self.connection, self.revision + 1
        changes = [
            Change(key, None, revision)
            for key in transaction.delete
            if connection.execute("DELETE FROM entries WHERE key = ?", (key,)).rowcount
        ]
        changes += [Change(key, value, revision) for key, (value, _) in transaction.put.items()]
        connection.executemany(
            "INSERT OR REPLACE INTO entries (key, value, revision, lease, crc) VALUES (?, ?, ?, ?, ?)",
            [
                (key, value, revision, lease, checksum(key, revision, value, lease))
                for key, (value, lease) in transaction.put.items()
            ],
        )
        if changes:
            connection.execute(
                "INSERT OR REPLACE INTO counters (name, value, crc) VALUES (?, ?, ?)",
                (_REVISION, revision, checksum(_REVISION, revision, b"")),
            )
        return changes

    def _checked(self, row: tuple[object, ...]) -> Entry:
        key, value, revision, lease, crc = row
        # A damaged type byte makes SQLite return another type altogether.
        if isinstance(key, str) and isinstance(value, bytes) and isinstance(revision, int) and isinstance(lease, int):  # noqa: SIM102
            if revision > 0 and lease >= 0 and checksum(key, revision, value, lease) == crc:
                return Entry(key, value, revision)
        raise DamagedMetadataError(f"metadata store {self._path}: key {key!r} fails its checksum")


def checksum(key: str, revision: int, value: bytes, lease: int = 0) -> int:
    name = key.encode()
    start = crc32c(_LEASE.pack(lease)) if lease else 0
    return crc32c(value, crc32c(name, crc32c(_HEAD.pack(len(name), revision), start)))


def open_database(path: str) -> Database:
    """Open the file, creating it and its directory if there is none.

    Raises:
        StartupError: the file is damaged, from a newer release, not ours, or cannot be opened.
        WrongSettings: it, or its directory, is not for this user.
    """
    from sqlite3 import SQLITE_FULL, DatabaseError, connect

    directory = os.path.dirname(os.path.abspath(path))
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        _check_rights(directory, path)
        connection = connect(path, isolation_level=None)  # transactions are begun by hand
    except OSError as error:
        raise obstacles.refusal(f"metadata store {obstacles.tell_path(error, '--data-dir')}", error) from error
    except DatabaseError as error:
        raise StartupError(f"metadata store {path} cannot be opened: {error}") from error
    try:
        _prepare(path, connection)
        # A new file, and a new directory, are names that a power cut may take back.
        _sync_directory(directory)
        _sync_directory(os.path.dirname(directory))
        database = Database(path, connection)
        database.verify()
        database.remove_leased()
    except DamagedMetadataError as error:
        connection.close()
        raise StartupError(f"{error}. {_WAY_OUT}") from error
    except (DatabaseError, OSError, ValueError, OverflowError) as error:
        connection.close()
        if getattr(error, "sqlite_errorcode", 0) == SQLITE_FULL:
            raise StartupError(f"metadata store {path}: no space left; make room and start again") from error
        raise StartupError(f"metadata store {path} cannot be read: {error}. {_WAY_OUT}") from error
    except BaseException:
        connection.close()
        raise
    return database


def _check_rights(directory: str, path: str) -> None:
    """SQLite would say that it cannot, and not why."""
    for each, rights in ((directory, os.R_OK | os.W_OK | os.X_OK), (path, os.R_OK | os.W_OK)):
        if os.path.exists(each) and not os.access(each, rights):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), each)


def _prepare(path: str, connection: "Connection") -> None:
    """Check the file's health and version; lay out an empty one, upgrade an old one."""
    complaints = [row[0] for row in connection.execute("PRAGMA quick_check")]
    if complaints != ["ok"]:
        raise DamagedMetadataError(f"metadata store {path}: {'; '.join(complaints[:3])}")
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    owner = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    is_new = version == 0 and owner == 0 and tables == 0
    if not is_new and owner != _APPLICATION_ID:
        raise StartupError(f"metadata store {path} is a database of another program. {_WAY_OUT}")
    if not is_new and version not in (1, FORMAT_VERSION):
        raise StartupError(
            f"metadata store {path} has format version {version}; this release reads 1 to {FORMAT_VERSION}. "
            f"Start the release that wrote it, or restore a backup made by this one."
        )
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StartupError(f"metadata store {path}: no write-ahead log on this file system (mode {mode})")
    connection.execute("PRAGMA synchronous = FULL")
    if version != FORMAT_VERSION:
        connection.executescript(_SCHEMA if is_new else _UPGRADE_FROM_1)
        # Without this the tables would exist in the write-ahead log only.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
