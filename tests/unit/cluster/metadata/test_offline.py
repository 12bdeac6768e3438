"""The embedded store without a broker: what is read of it goes into the one that is put in its place."""

import asyncio
from pathlib import Path
from uuid import UUID

import orjson

from penstock.cluster.metadata.embedded import EmbeddedStore
from penstock.cluster.metadata.offline import load_catalogue, replace_store
from penstock.engine.groups.group_configs import group_key
from penstock.engine.topics import TOPICS, TopicRecord

RECORD = TopicRecord(
    UUID(int=7), 2, {"flush": "os"}, 3, {"count": {"segment.ms": "5"}}, {"orders": {"ttl": "1h"}, "t": {}}
)
OF_GROUPS = {"a/b": {"share.delivery.count.limit": "3"}, "g": {"share.isolation.level": "read_committed"}}


def test_a_store_that_is_put_in_place_of_another_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    put = {group_key(group_id): orjson.dumps(given) for group_id, given in OF_GROUPS.items()}
    put |= {TOPICS + "t": RECORD.encode(), "cluster": b'{"id": "c"}', "producer-ids": b"1000"}

    async def write() -> None:
        store = await EmbeddedStore.open(str(tmp_path / "meta" / "metadata.db"))
        await store.transact(put=put)
        await store.close()

    asyncio.run(write())
    before = load_catalogue(str(tmp_path))
    assert before.problem is None and before.groups == OF_GROUPS
    assert before.topics["t"].queues == RECORD.queues and before.topics["t"].attached == RECORD.attached
    assert replace_store(str(tmp_path), before)
    assert load_catalogue(str(tmp_path)) == before
