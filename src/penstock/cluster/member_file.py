"""DIR/cluster: which broker of which cluster a data directory belongs to, and how far it has seen the metadata store.

It keeps records from being mixed with those of another broker or cluster, and an old copy of the metadata store from
passing for the present one. The revision in it may be some seconds old: it is a lower bound.
"""

import asyncio
from collections.abc import Callable

import orjson

from penstock.cluster.watcher import OlderStore
from penstock.errors import StartupError, WrongSettings
from penstock.observe.logs import get_logger
from penstock.ports.disk import Disk, is_shortage
from penstock.storage import checked_file
from penstock.storage.checked_file import DamagedFile
from penstock.storage.data_directory import MEMBER_FILE

log_ = get_logger("cluster")
KIND = b"clst"
FORMAT_VERSION = 1


class MemberFile:
    """One broker's note of its membership.

    Args:
        directory: the data directory.
        accept_older: an operator's word that an older copy of the metadata store is to be gone on from.
        store_name: of the metadata store, for people.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        node_id: int,
        *,
        accept_older: bool = False,
        store_name: str = "the metadata store",
        save_every_s: float = 10.0,
    ) -> None:
        self.path = f"{directory}/{MEMBER_FILE}"
        self._disk = disk
        self._node_id = node_id
        self._accept_older = accept_older
        self._store_name = store_name
        self._save_every_s = save_every_s
        self._cluster_id = ""
        self._revision = 0
        self._writing = asyncio.Lock()

    async def load(self) -> int:
        """The lowest revision the store may be at: 0 if there is no file yet, or an operator accepts an older one.

        Raises:
            StartupError: the file is damaged.
            WrongSettings: the directory is another broker's.
        """
        try:
            payload = await self._disk.run(checked_file.load, self._disk, self.path, KIND, FORMAT_VERSION)
            fields = orjson.loads(payload)
        except FileNotFoundError:
            return 0
        except DamagedFile as error:
            raise StartupError(
                f"{error}; it says which broker and cluster this data directory belongs to. Restore it from a copy, "
                f"or, if the directory is that of node {self._node_id} of the cluster in {self._store_name} for sure, "
                "and that store is no old copy, remove this one file and start again"
            ) from error
        if fields["node"] != self._node_id:
            raise WrongSettings(
                f"{self.path}: the data directory belongs to node {fields['node']}, this is node {self._node_id}; "
                f"start it as node {fields['node']}, or choose another --data-dir"
            )
        self._cluster_id, self._revision = fields["cluster"], fields["revision"]
        return 0 if self._accept_older else self._revision

    async def join(self, cluster_id: str, revision: int) -> None:
        """Note that the directory is this cluster's, whose store is at a revision. After `load`.

        Raises:
            WrongSettings: the directory is another cluster's.
            OlderStore: the store is an old copy.
            OSError: the note could not be saved.
        """
        if self._cluster_id not in ("", cluster_id):
            raise WrongSettings(
                f"{self.path}: the data directory belongs to cluster {self._cluster_id}, but {self._store_name} is "
                f"that of cluster {cluster_id}; point the broker to its own store, or choose another --data-dir"
            )
        if revision < self._revision:
            if not self._accept_older:
                raise OlderStore(self._store_name, revision, self._revision)
            log_.warning("an old copy of the metadata store is accepted", found=revision, known=self._revision)
        if (self._cluster_id, self._revision) != (cluster_id, revision):
            self._cluster_id = cluster_id
            await self._save(revision)

    async def save(self, revision: int) -> None:
        """Note the highest revision seen, if it has grown. After `join`. Raises OSError."""
        if revision > self._revision:
            await self._save(revision)

    async def run(self, revision: Callable[[], int]) -> None:
        """Save `revision()` every few seconds, until cancelled. Raises OSError unless space ran out."""
        while True:
            await asyncio.sleep(self._save_every_s)
            try:
                await self.save(revision())
            except OSError as error:
                if not is_shortage(error):
                    raise
                log_.warning("cannot note the revision of the metadata store", path=self.path, error=str(error))

    async def _save(self, revision: int) -> None:
        # Whoever waits may be cancelled, the thread that writes cannot: two at once would damage the file.
        await asyncio.shield(asyncio.get_running_loop().create_task(self._write(revision), name="save the member file"))

    async def _write(self, revision: int) -> None:
        async with self._writing:
            payload = orjson.dumps({"cluster": self._cluster_id, "node": self._node_id, "revision": revision})
            await self._disk.run(checked_file.save, self._disk, self.path, KIND, FORMAT_VERSION, payload)
            self._revision = revision
