"""What others leave lying about in the metadata store, and the controller removes: old reports, unmade topics."""

from uuid import UUID

from penstock.cluster import keys
from penstock.cluster.fenced_store import AT_ONCE, FencedStore, all_at_once
from penstock.cluster.image import Image
from penstock.observe.logs import get_logger
from penstock.ports.metadata import MetadataConflict

log_ = get_logger("cluster")


class Leftovers:
    """Of one term.

    Args:
        orphan_after_s: how long the creation of a topic may take.
    """

    def __init__(self, store: FencedStore, image: Image, orphan_after_s: float) -> None:
        self._store = store
        self._image = image
        self._orphan_after_s = orphan_after_s
        self._orphans: dict[UUID, float] = {}
        """Since when partitions of which topic that does not exist have been seen."""

    def due(self) -> list[float]:
        """When to look again."""
        return [since + self._orphan_after_s for since in self._orphans.values()]

    async def remove(self, now: float) -> None:
        await self._remove_ends()
        self._look_for_orphans(now)
        due = [topic_id for topic_id, since in self._orphans.items() if now >= since + self._orphan_after_s]
        if due:
            await self._remove_orphans(due)

    async def _remove_ends(self) -> None:
        """Remove reports for partitions that wait for none.

        Each removal expects the partition as it is: a broker reports anew only when that has changed.
        """
        batches: list[tuple[dict[str, int], list[str]]] = []
        for (topic_id, index), ends in self._image.ends.items():
            state = self._image.states.get(topic_id, {}).get(index)
            if state is not None and state.last:
                continue
            names = [keys.end_key(topic_id, index, broker_id) for broker_id in ends]
            if not batches or len(batches[-1][0]) + len(batches[-1][1]) + 1 + len(names) > AT_ONCE:
                batches.append(({}, []))
            batches[-1][0][keys.partition_key(topic_id, index)] = 0 if state is None else state.revision
            batches[-1][1].extend(names)
        await all_at_once(self._delete(expect, names) for expect, names in batches)

    def _look_for_orphans(self, now: float) -> None:
        existing = {topic.record.topic_id for topic in self._image.topics.values()}
        self._orphans = {
            topic_id: self._orphans.get(topic_id, now)
            for topic_id in self._image.states
            if topic_id not in existing and topic_id not in self._image.deleted
        }

    async def _remove_orphans(self, topic_ids: list[UUID]) -> None:
        """Remove partitions of topics whose creation was cut short, if a fresh snapshot says so too.

        The first partition goes first: who creates a topic by several transactions expects it in the last of them, so
        a creation that was only slow fails.
        """
        fresh = Image()
        fresh.replace(await self._store.snapshot(keys.EVERYTHING))
        existing = {topic.record.topic_id for topic in fresh.topics.values()}
        for topic_id in topic_ids:
            del self._orphans[topic_id]
            states = sorted(fresh.states.get(topic_id, {}).items())
            if not states or topic_id in existing or topic_id in fresh.deleted:
                continue
            log_.warning("partitions of a topic that was never made are removed", topic_id=topic_id, count=len(states))
            for at in range(0, len(states), AT_ONCE):
                gone = {keys.partition_key(topic_id, n): state.revision for n, state in states[at : at + AT_ONCE]}
                if not await self._delete(gone, list(gone)):
                    break

    async def _delete(self, expect: dict[str, int], names: list[str]) -> bool:
        try:
            await self._store.transact(expect, delete=names)
        except MetadataConflict:
            return False
        return True
