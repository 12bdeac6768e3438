"""Plans for partitions that exist: what must hold of every one of them, and the cases an operator meets."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.plans import Broker, Held, Layout, Move, evacuate, replace_all, substitute, to_brokers
from penstock.cluster.rebalancing import KINDS, By, balance, levels
from penstock.errors import Code, PenstockError


@st.composite
def layouts(draw: st.DrawFn, least: int = 2) -> Layout:
    ids = draw(st.lists(st.integers(0, 50), min_size=least, max_size=7, unique=True))
    racks = st.sampled_from([None, "a", "b", "c"])
    brokers = {
        each: Broker(draw(racks), takes=draw(st.integers(0, 4)) > 0, disk_bytes=1000 * draw(st.integers(1, 3)))
        for each in ids
    }
    partitions = {}
    for index in range(draw(st.integers(0, 20))):
        replicas = draw(st.permutations(ids))[: draw(st.integers(1, min(3, len(ids))))]
        # In parts of a core that add up exactly.
        partitions["t", index] = Held(tuple(replicas), draw(st.integers(0, 100)), draw(st.integers(0, 32)) / 64)
    used = Layout(brokers, partitions).loads()
    leading: Counter[int] = Counter()
    for held in partitions.values():
        leading[held.replicas[0]] += held.lead_cpu  # type: ignore[assignment]  # a Counter of cores
    measured = {
        each: Broker(
            broker.rack,
            broker.takes,
            broker.disk_bytes,
            used[each].size_bytes,
            leading[each] + draw(st.integers(0, 16)) / 64,
        )
        for each, broker in brokers.items()
    }
    return Layout(measured, partitions)


def attempt(plan: Callable[[], list[Move]]) -> list[Move] | Code:
    try:
        return plan()
    except PenstockError as error:
        return error.code


def check(layout: Layout, moves: list[Move]) -> None:
    """What holds of every plan."""
    assert len({move.place for move in moves}) == len(moves)
    for move in moves:
        assert move.old == layout.partitions[move.place].replicas
        assert move.new != move.old
        assert len(move.new) == len(move.old) == len(set(move.new))
        assert all(layout.brokers[each].takes for each in move.adding)


@given(layouts(), st.data())
def test_an_evacuated_broker_is_empty_and_nothing_else_moves(layout: Layout, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(layout.brokers)))
    moves = attempt(lambda: evacuate(layout, gone))
    if isinstance(moves, Code):
        assert moves is Code.INVALID_REPLICATION
        most = max(len(held.replicas) for held in layout.partitions.values())
        assert len(layout.takers().keys() - {gone}) < most
        return
    check(layout, moves)
    assert layout.after(moves).loads()[gone].replicas == 0
    for move in moves:
        assert move.removing == (gone,)
        assert move.old[0] == gone or move.new[0] == move.old[0]


@given(layouts(least=4), st.data())
def test_evacuated_replicas_go_to_other_racks_where_they_can(layout: Layout, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(layout.brokers)))
    moves = attempt(lambda: evacuate(layout, gone))
    if isinstance(moves, Code):
        return
    for move in moves:
        (fresh,) = move.adding
        kept = {layout.rack_of(each) for each in move.new if each != fresh} - {None}
        free = [each for each, rack in layout.takers().items() if each not in move.old and rack not in kept]
        assert not free or layout.rack_of(fresh) not in kept


@given(layouts(least=3), st.data())
def test_a_substitute_stands_where_the_old_one_stood(layout: Layout, data: st.DataObject) -> None:
    old, new = data.draw(st.permutations(sorted(layout.brokers)))[:2]
    moves = attempt(lambda: substitute(layout, old, new))
    if isinstance(moves, Code):
        assert moves is (Code.INVALID_REPLICATION if layout.brokers[new].takes else Code.INVALID_ASSIGNMENT)
        return
    check(layout, moves)
    assert layout.after(moves).loads()[old].replicas == 0
    for move in moves:
        if new not in move.old:
            assert move.new == tuple(new if each == old else each for each in move.old)


@given(layouts(), st.data())
def test_partitions_go_only_to_the_brokers_that_are_named(layout: Layout, data: st.DataObject) -> None:
    named = data.draw(st.permutations(sorted(layout.brokers)))[: data.draw(st.integers(1, len(layout.brokers)))]
    moves = attempt(lambda: to_brokers(layout, layout.partitions, named))
    if isinstance(moves, Code):
        able = {each for each in named if layout.brokers[each].takes}
        assert any(len({*held.replicas} & {*named} | able) < len(held.replicas) for held in layout.partitions.values())
        return
    check(layout, moves)
    for held in layout.after(moves).partitions.values():
        assert set(held.replicas) <= set(named)
    for move in moves:
        assert len(move.adding) == sum(each not in named for each in move.old)
        assert move.old[0] not in named or move.new[0] == move.old[0]


@given(layouts(), st.sampled_from(KINDS))
def test_balancing_never_makes_the_worst_broker_worse(layout: Layout, by: By) -> None:
    moves = balance(layout, by)
    check(layout, moves)
    before, after = levels(layout, by), levels(_measured(layout, moves), by)
    assert max(after.values(), default=0) <= max(before.values(), default=0)
    if moves:
        assert sorted(after.values(), reverse=True) < sorted(before.values(), reverse=True)


@given(layouts(), st.sampled_from(KINDS))
def test_a_balanced_cluster_needs_no_moves(layout: Layout, by: By) -> None:
    assert balance(_measured(layout, balance(layout, by)), by) == []


@given(layouts(), st.sampled_from(KINDS))
def test_balancing_keeps_racks_apart(layout: Layout, by: By) -> None:
    for move in balance(layout, by):
        before, after = ({layout.rack_of(each) or each for each in replicas} for replicas in (move.old, move.new))
        assert len(after) >= len(before)


@given(layouts())
def test_balancing_leaders_copies_nothing_and_is_as_even_as_can_be(layout: Layout) -> None:
    moves = balance(layout, "leaders")
    assert sum(move.copied_bytes for move in moves) == 0
    if all(broker.takes for broker in layout.brokers.values()) and all(
        len(held.replicas) == len(layout.brokers) for held in layout.partitions.values()
    ):
        leads = levels(layout.after(moves), "leaders").values()
        assert max(leads) - min(leads) <= 1


def _measured(layout: Layout, moves: list[Move]) -> Layout:
    """After the moves, with what they do to disks."""
    after = layout.after(moves)
    was, is_ = layout.loads(), after.loads()
    brokers = {
        each: Broker(
            broker.rack,
            broker.takes,
            broker.disk_bytes,
            broker.used_bytes + is_[each].size_bytes - was[each].size_bytes,
            is_[each].cpu,
        )
        for each, broker in layout.brokers.items()
    }
    return Layout(brokers, after.partitions)


def spread(brokers: int, partitions: int, replication: int = 1, size: int = 10) -> Layout:
    held = {
        ("t", at): Held(tuple((at + step) % brokers + 1 for step in range(replication)), size)
        for at in range(partitions)
    }
    return Layout({each: Broker(f"r{each}") for each in range(1, brokers + 1)}, held)


def test_an_empty_broker_gets_its_share_and_no_more_is_copied() -> None:
    layout = spread(3, 12)
    wider = Layout({**layout.brokers, 4: Broker("r4")}, layout.partitions)
    moves = balance(wider)
    assert len(moves) == 3
    assert [load.size_bytes for load in wider.after(moves).loads().values()] == [30, 30, 30, 30]


def test_one_of_many_that_is_empty_counts_although_the_others_are_near_the_mean() -> None:
    layout = spread(20, 200)
    wider = Layout({**layout.brokers, 21: Broker()}, layout.partitions)
    assert wider.after(balance(wider)).loads()[21].size_bytes >= 80


def test_disks_of_different_sizes_fill_alike() -> None:
    brokers = {1: Broker(disk_bytes=1000, used_bytes=900), 2: Broker(disk_bytes=10_000, used_bytes=0)}
    layout = Layout(brokers, {("t", at): Held((1,), 90) for at in range(10)})
    assert len(balance(layout, "disk")) == 9
    assert len(balance(layout, "bytes")) == 5


def test_leadership_is_passed_on_where_two_brokers_share_nothing() -> None:
    partitions = {("t", 0): Held((1, 2)), ("t", 1): Held((1, 2)), ("t", 2): Held((2, 3)), ("t", 3): Held((1, 2))}
    layout = Layout({each: Broker() for each in (1, 2, 3)}, partitions)
    leads = levels(layout.after(balance(layout, "leaders")), "leaders")
    assert sorted(leads.values()) == [1, 1, 2]


def test_the_work_of_leading_is_shared_and_nothing_copied() -> None:
    partitions = {("t", at): Held((1, 2, 3), 10, cost) for at, cost in enumerate([0.5, 0.25, 0.25, 0.0])}
    layout = Layout({1: Broker(cpu=1.0), 2: Broker(cpu=0.0), 3: Broker(cpu=0.0)}, partitions)
    moves = balance(layout, "cpu")
    assert sum(move.copied_bytes for move in moves) == 0
    assert sorted(levels(layout.after(moves), "cpu").values()) == [0.25, 0.25, 0.5]
    assert layout.after(moves).partitions["t", 3].replicas == (1, 2, 3), "an idle partition stays"


def test_idle_brokers_are_left_alone() -> None:
    layout = Layout({1: Broker(cpu=0.015), 2: Broker(cpu=0.001)}, {("t", 0): Held((1, 2), 10, 0.005)})
    assert balance(layout, "cpu") == []


def test_nobody_leads_more_because_a_broker_is_drained() -> None:
    layout = spread(3, 6, 3)
    drained = Layout({**layout.brokers, 3: Broker("r3", takes=False)}, layout.partitions)
    assert levels(drained, "leaders") == {1: 2.0, 2: 2.0}
    assert all(move.new[0] != 3 for move in balance(drained, "leaders"))


def test_empty_partitions_are_spread_too() -> None:
    layout = spread(4, 12, size=0)
    after = layout.after(evacuate(layout, 1)).loads()
    assert [after[each].replicas for each in (2, 3, 4)] == [4, 4, 4]
    assert [after[each].leaders for each in (2, 3, 4)] == [4, 4, 4]


def test_too_few_brokers_are_named_with_the_way_out() -> None:
    with pytest.raises(PenstockError, match=r"t-\d+ has 3 replicas, and only 2 brokers may hold it") as found:
        evacuate(spread(3, 3, 3), 1)
    assert "start another broker" in found.value.help


def test_a_cordoned_broker_is_named_when_it_would_be_needed() -> None:
    layout = spread(3, 3)
    cordoned = Layout({**layout.brokers, 3: Broker("r3", takes=False)}, layout.partitions)
    with pytest.raises(PenstockError, match="broker 3 takes no replicas"):
        to_brokers(cordoned, [("t", 0)], [3])
    assert to_brokers(cordoned, [("t", 2)], [3]) == []
    with pytest.raises(PenstockError, match="broker 9 is unknown"):
        to_brokers(cordoned, [("t", 0)], [9])
    with pytest.raises(PenstockError, match="broker 3 takes no replicas"):
        substitute(cordoned, 1, 3)
    with pytest.raises(PenstockError, match="cannot replace itself"):
        substitute(cordoned, 1, 1)


def test_an_unknown_broker_is_named_wherever_others_would_do() -> None:
    for replication, brokers in ((1, [1, 7]), (2, [1, 2, 7]), (3, [1, 7])):
        with pytest.raises(PenstockError, match="broker 7 is unknown") as found:
            to_brokers(spread(3, 3, replication), [("t", 0)], brokers)
        assert found.value.help == "there are 1, 2, 3"
    layout = spread(3, 3)
    cordoned = Layout({**layout.brokers, 3: Broker("r3", takes=False)}, layout.partitions)
    with pytest.raises(PenstockError, match="broker 7, 8 is unknown") as found:
        to_brokers(cordoned, [("t", 0)], [7, 8])
    assert found.value.help == "there are 1, 2, 3, of which 1, 2 take replicas"


def test_fewer_brokers_than_replicas_are_told_apart_from_those_that_take_nothing() -> None:
    with pytest.raises(PenstockError, match="t-0 has 3 replicas, and 2 brokers are named for it") as found:
        to_brokers(spread(3, 3, 3), [("t", 0)], [1, 2])
    assert found.value.help == "name at least 3"


def test_written_plans_are_checked() -> None:
    layout = spread(3, 3)
    assert replace_all(layout, {("t", 0): [1], ("t", 1): [3]}) == [Move("t", 1, (2,), (3,), 10)]
    wrong: Any
    for wrong, text in [
        ({("u", 0): [1]}, "u-0 is unknown"),
        ({("t", 0): []}, "names no broker"),
        ({("t", 0): [2, 2]}, "or one twice"),
        ({("t", 0): [7]}, "broker 7 is unknown"),
    ]:
        with pytest.raises(PenstockError, match=text):
            replace_all(layout, wrong)


def test_a_written_plan_may_change_the_replication() -> None:
    (move,) = replace_all(spread(3, 1), {("t", 0): [1, 2]})
    assert (move.adding, move.removing, move.copied_bytes) == ((2,), (), 10)


def test_a_written_plan_is_refused_where_others_hold_the_partition_by_now() -> None:
    layout = Layout({each: Broker() for each in (1, 2, 3)}, {("t", 0): Held((1, 2)), ("t", 1): Held((2, 3))})
    targets = {("t", 0): [1, 3], ("t", 1): [2, 3]}
    with pytest.raises(PenstockError, match="t-0 is on 1, 2 by now, and was on 2, 1 when it was planned"):
        replace_all(layout, targets, {("t", 0): [2, 1]})
    (move,) = replace_all(layout, targets, {("t", 0): [1, 2], ("t", 1): [1, 2]})  # t-1 is there already
    assert move.new == (1, 3)
