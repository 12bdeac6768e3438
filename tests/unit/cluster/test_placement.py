"""Where new partitions go: apart from each other, evenly, and so that a death is shared by all who are left."""

from collections import Counter
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.placement import extend, place
from penstock.errors import Code, PenstockError

IDS = st.lists(st.integers(0, 1000), min_size=1, max_size=9, unique=True)


@st.composite
def requests(draw: st.DrawFn, racks: bool) -> tuple[dict[int, str | None], int, int, dict[int, int], int]:
    ids = draw(IDS)
    names = st.sampled_from([None, "a", "b", "c", "d"]) if racks else st.none()
    brokers = {broker_id: draw(names) for broker_id in ids}
    load = {broker_id: draw(st.integers(0, 50)) for broker_id in ids if draw(st.booleans())}
    return brokers, draw(st.integers(0, 60)), draw(st.integers(1, len(ids))), load, draw(st.integers(0, 100))


@given(requests(racks=True))
def test_replicas_are_on_different_brokers_and_racks(
    request: tuple[dict[int, str | None], int, int, dict[int, int], int],
) -> None:
    brokers, partitions, replication, load, start = request
    placed = place(brokers, partitions, replication, load, start)
    assert len(placed) == partitions
    places = len({rack for rack in brokers.values() if rack}) + sum(rack is None for rack in brokers.values())
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == replication
        assert set(replicas) <= set(brokers)
        found = {brokers[replica] or replica for replica in replicas}
        assert len(found) == min(replication, places)


@given(requests(racks=True))
def test_leaders_are_spread_evenly(request: tuple[dict[int, str | None], int, int, dict[int, int], int]) -> None:
    brokers, partitions, replication, load, start = request
    led = Counter(replicas[0] for replicas in place(brokers, partitions, replication, load, start))
    counts = [led[broker_id] for broker_id in brokers]
    assert max(counts) - min(counts) <= 1


@given(requests(racks=False))
def test_a_death_is_shared(request: tuple[dict[int, str | None], int, int, dict[int, int], int]) -> None:
    brokers, partitions, replication, load, start = request
    placed = place(brokers, partitions, replication, load, start)
    replicas = Counter(member for members in placed for member in members)
    counts = [replicas[broker_id] for broker_id in brokers]
    assert max(counts) - min(counts) <= 3
    if replication == 1:
        return
    for broker_id in brokers:
        heirs = Counter(members[1] for members in placed if members[0] == broker_id)
        assert max(heirs.values(), default=0) <= ceil(heirs.total() / (len(brokers) - 1))


def test_the_least_loaded_lead_first() -> None:
    brokers = {1: None, 2: None, 3: None}
    assert place(brokers, 1, 1, {1: 5, 2: 4, 3: 9}) == [(2,)]
    assert place(brokers, 1, 2, {1: 5, 2: 4, 3: 3}) == [(3, 2)]


def test_start_decides_between_equals() -> None:
    brokers = {1: None, 2: None, 3: None}
    assert [place(brokers, 1, 1, {}, start)[0][0] for start in range(4)] == [1, 2, 3, 1]


def test_example() -> None:
    brokers = {1: None, 2: None, 3: None}
    assert place(brokers, 6, 2, {}) == [(1, 2), (2, 3), (3, 1), (1, 3), (2, 1), (3, 2)]


@pytest.mark.parametrize(("brokers", "replication"), [(2, 3), (0, 1), (3, 0), (3, -1)])
def test_numbers_that_cannot_be(brokers: int, replication: int) -> None:
    with pytest.raises(PenstockError) as caught:
        place(dict.fromkeys(range(brokers)), 1, replication, {})
    assert caught.value.code is Code.INVALID_REPLICATION
    assert str(replication) in str(caught.value)


def test_extend_appends() -> None:
    brokers = {1: "a", 2: "a", 3: "b", 4: "c"}
    assert extend((1,), brokers, 3, {3: 7}) == (1, 4, 3)
    assert extend((1, 2), brokers, 2, {}) == (1, 2)
    assert extend((1,), {1: None, 2: None}, 3, {}) == (1, 2)
    assert extend((9, 1), brokers, 3, {4: 1}) == (9, 1, 3)
