"""One contract for every metadata store, checked against a plain dictionary."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.cluster.metadata.embedded import EmbeddedStore
from penstock.ports.metadata import Entry, MetadataConflict, MetadataStore
from penstock.testing.memory_metadata import MemoryStore

KINDS = ("embedded", "memory")


async def make(kind: str, directory: str) -> MetadataStore:
    return await EmbeddedStore.open(f"{directory}/meta/store.db") if kind == "embedded" else MemoryStore()


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    made = await make(request.param, str(tmp_path))
    yield made
    await made.close()


async def test_a_key_is_read_as_written(store: MetadataStore) -> None:
    assert await store.get("a") is None
    assert await store.transact(put={"a": b"1", "b": b""}) == 1
    assert await store.get("a") == Entry("a", b"1", 1)
    assert await store.get("b") == Entry("b", b"", 1)
    assert await store.transact(put={"a": b"2"}) == 2
    assert await store.get("a") == Entry("a", b"2", 2)


async def test_list_is_sorted_and_stops_at_the_prefix(store: MetadataStore) -> None:
    keys = ["topics/b", "topics/a", "topicsx", "topic", "topics/", "topics/é", "topics/\U0010ffff", "z"]
    await store.transact(put={key: key.encode() for key in keys})
    found = [entry.key for entry in await store.list("topics/")]
    assert found == ["topics/", "topics/a", "topics/b", "topics/é", "topics/\U0010ffff"]
    assert [entry.key for entry in await store.list("")] == sorted(keys)
    assert await store.list("topics/b/") == []


async def test_a_conflict_changes_nothing(store: MetadataStore) -> None:
    await store.transact(put={"a": b"1"})
    await store.transact(put={"b": b"1"})
    with pytest.raises(MetadataConflict) as caught:
        await store.transact(expect={"b": 2, "a": 2}, put={"a": b"2", "c": b"2"}, delete=["b"])
    assert (caught.value.key, caught.value.expected, caught.value.found) == ("a", 2, 1)
    with pytest.raises(MetadataConflict):
        await store.transact(expect={"a": 0}, put={"a": b"2"})
    assert await store.list("") == [Entry("a", b"1", 1), Entry("b", b"1", 2)]
    assert await store.transact(expect={"a": 1, "c": 0}, put={"c": b"3"}) == 3


async def test_a_revision_is_never_used_twice_even_after_deletes(store: MetadataStore) -> None:
    assert await store.transact(put={"a": b"1"}) == 1
    assert await store.transact(delete=["a"]) == 2
    assert await store.get("a") is None
    assert await store.transact(expect={"a": 0}, put={"a": b"2"}) == 3
    assert await store.get("a") == Entry("a", b"2", 3)


async def test_a_transaction_without_an_effect_keeps_the_revision(store: MetadataStore) -> None:
    assert await store.transact() == 0
    await store.transact(put={"a": b"1"})
    assert await store.transact(expect={"a": 1}) == 1
    assert await store.transact(delete=["nothing"]) == 1


async def test_putting_and_deleting_one_key_is_refused(store: MetadataStore) -> None:
    with pytest.raises(ValueError, match="both"):
        await store.transact(put={"a": b"1", "b": b""}, delete=["a"])
    assert await store.list("") == []


async def test_of_many_racing_writers_one_wins_each_round(store: MetadataStore) -> None:
    async def add() -> int:
        conflicts = 0
        while True:
            entry = await store.get("n")
            value, revision = (int(entry.value), entry.revision) if entry else (0, 0)
            try:
                await store.transact(expect={"n": revision}, put={"n": b"%d" % (value + 1)})
            except MetadataConflict:
                conflicts += 1
            else:
                return conflicts

    await asyncio.gather(*(add() for _ in range(10)))
    entry = await store.get("n")
    assert entry is not None
    assert entry.value == b"10"
    assert entry.revision == 10


KEYS = st.sampled_from(["a", "a/b", "a/c", "b", "é"])
TRANSACTIONS = st.tuples(
    st.dictionaries(KEYS, st.one_of(st.none(), st.integers(0, 4)), max_size=2),  # None: what the model has
    st.dictionaries(KEYS, st.binary(max_size=3), max_size=3),
    st.sets(KEYS, max_size=2),
    st.booleans(),
)


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
    derandomize=True,
)
@given(transactions=st.lists(TRANSACTIONS, max_size=8))
def test_it_behaves_as_a_dictionary_with_revisions(
    kind: str, transactions: list[tuple[dict[str, int | None], dict[str, bytes], set[str], bool]]
) -> None:
    async def main(directory: str) -> None:
        store = await make(kind, directory)
        model: dict[str, Entry] = {}
        newest = 0
        for expect, put, delete, reopen in transactions:
            delete = delete - set(put)
            actual = {key: model[key].revision if key in model else 0 for key in expect}
            wanted = {key: actual[key] if revision is None else revision for key, revision in expect.items()}
            if wanted != actual:
                with pytest.raises(MetadataConflict):
                    await store.transact(expect=wanted, put=put, delete=delete)
            else:
                newest += bool(put or delete & set(model))
                assert await store.transact(expect=wanted, put=put, delete=delete) == newest
                model.update({key: Entry(key, value, newest) for key, value in put.items()})
                model = {key: entry for key, entry in model.items() if key not in delete}
            if reopen and kind == "embedded":
                await store.close()
                store = await make(kind, directory)
            for prefix in ("", "a", "a/", "é"):
                wanted_list = [model[key] for key in sorted(model) if key.startswith(prefix)]
                assert await store.list(prefix) == wanted_list
            assert await store.get("a") == model.get("a")
        await store.close()

    with TemporaryDirectory() as directory:
        asyncio.run(main(directory))
