"""The metadata store of a broker on its own: one SQLite file, all of whose work happens in one thread.

Every commit is synced before the call returns. Leases and watches live in this process, which alone uses the file. An
error that is not a plain lack of space stops the store for good: after a failed sync nobody knows what the device
holds, and the next start finds out.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from penstock.cluster.metadata.database import Committed, Database, open_database
from penstock.cluster.metadata.history import History, HistoryWatch
from penstock.cluster.metadata.leases import Leases
from penstock.cluster.metadata.transaction import make_transaction
from penstock.errors import Code, PenstockError
from penstock.ports.metadata import Change, Entry, Snapshot

if TYPE_CHECKING:
    from sqlite3 import DatabaseError

T = TypeVar("T")
Entries = list[Entry]  # inside the class, `list` is a method
Changes = list[Change]

_HISTORY_REVISIONS = 1000
_RETRY_S = 1.0


class EmbeddedStore:
    """The metadata port on SQLite. Make one with `open`."""

    def __init__(
        self,
        path: str,
        database: Database,
        thread: ThreadPoolExecutor,
        fail: Callable[[BaseException], None] | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._fail = fail
        self._path = path
        self._database = database
        self._thread = thread
        self._refusal = ""
        self._history = History(database.revision, _HISTORY_REVISIONS)
        self._leases = Leases(self._remove_soon)
        self._removals: dict[asyncio.Task[None], None] = {}

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
            database = await asyncio.get_running_loop().run_in_executor(thread, open_database, path)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return EmbeddedStore(path, database, thread, fail)

    async def get(self, key: str) -> Entry | None:
        return await self._run(lambda: self._database.get(key))

    async def list(self, prefix: str) -> Entries:
        return await self._run(lambda: self._database.list(prefix))

    async def snapshot(self, prefix: str) -> Snapshot:
        return await self._run(lambda: Snapshot(self._database.list(prefix), self._database.revision))

    async def transact(
        self,
        *,
        expect: Mapping[str, int] | None = None,
        put: Mapping[str, bytes] | None = None,
        delete: Iterable[str] = (),
        put_leased: Mapping[str, bytes] | None = None,
        lease: int = 0,
    ) -> int:
        transaction = make_transaction(expect, put, delete, put_leased, lease)
        # The thread may see a lease that ends meanwhile: its keys' removal then waits behind this transaction.
        return await self._run(lambda: self._pass_on(self._database.transact(transaction, self._leases)))

    async def grant(self, ttl_s: int) -> int:
        self._check_usable()
        return self._leases.grant(ttl_s)

    async def keep_alive(self, lease: int) -> None:
        self._check_usable()
        self._leases.keep_alive(lease)

    async def revoke(self, lease: int) -> None:
        self._check_usable()
        if self._leases.end(lease):
            await self._remove(lease)

    def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Changes]:
        return HistoryWatch(self._history, prefix, after_revision)

    async def close(self) -> None:
        """Fold the write-ahead log into the file and let go of it. Later calls raise, watches and leases end."""
        if self._refusal == "closed":
            return
        self._refusal = "closed"
        self._leases.clear()
        try:
            await self._loop.run_in_executor(self._thread, self._database.connection.close)
        finally:
            self._thread.shutdown(wait=False)
            self._history.end(f"metadata store {self._path}: closed")

    async def _remove(self, lease: int) -> None:
        """Remove the keys bound to a lease that has ended; later, if there is no room for that now."""
        try:
            await self._run(lambda: self._pass_on(self._database.remove_leased(lease)))
        except PenstockError as error:
            if error.code is Code.STORAGE_FULL:
                self._loop.call_later(_RETRY_S, self._remove_soon, lease)
            raise

    def _remove_soon(self, lease: int) -> None:
        if not self._refusal:
            task = self._loop.create_task(self._remove(lease), name=f"end of lease {lease}")
            self._removals[task] = None
            task.add_done_callback(self._removed)

    def _removed(self, task: asyncio.Task[None]) -> None:
        del self._removals[task]
        if not task.cancelled():
            task.exception()  # seen: a broken store has told `fail`, a full one is asked again

    def _check_usable(self) -> None:
        if self._refusal:
            raise PenstockError(Code.NOT_AVAILABLE, f"metadata store {self._path}: {self._refusal}")

    async def _run(self, work: Callable[[], T]) -> T:
        self._check_usable()
        try:
            return await self._loop.run_in_executor(self._thread, self._guarded, work)
        except PenstockError as error:
            if error.code is Code.STORAGE_FAILED and self._fail is not None:
                self._fail(error)
            raise

    # From here on in the store's own thread.

    def _pass_on(self, committed: Committed) -> int:
        """Have the loop note the changes before it learns that the work is done, even if nobody waits for it."""
        if committed.changes:
            self._loop.call_soon_threadsafe(self._history.append, committed.changes)
        return committed.revision

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
