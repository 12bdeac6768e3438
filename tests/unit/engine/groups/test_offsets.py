"""Committed offsets: what counts, what waits for its transaction, what is refused."""

from penstock.engine.coordination.schemas import Entry, Kind, OffsetValue
from penstock.engine.groups.offsets import NO_OFFSET, NewOffset, Offsets, Spot
from penstock.errors import Code, PenstockError

SPOT: Spot = ("t", 0)


def _commit(
    offsets: Offsets, at: int, spot: Spot = SPOT, *, producer: int | None = None, group: str = "g"
) -> list[Entry]:
    results, entries = offsets.commit(group, {spot: NewOffset(at)}, 100, producer)
    assert list(results.values()) == [None]
    return entries


def _at(offsets: Offsets, spot: Spot = SPOT, *, stable: bool = False, group: str = "g") -> int | Code:
    fetched = offsets.fetch(group, [spot], require_stable=stable)[spot]
    return fetched.code if isinstance(fetched, PenstockError) else fetched.offset


def _again(offsets: Offsets) -> Offsets:
    """What a dump makes of it, at the same log offset for all: their order must be enough."""
    copy = Offsets()
    for entry, producer_id in offsets.dump():
        copy.replay(entry, -1, producer_id)
    return copy


def test_a_commit_counts_at_once_and_keeps_all_it_says() -> None:
    offsets = Offsets()
    _, entries = offsets.commit("g", {("t", 3): NewOffset(7, 2, "note")}, 100)
    value = OffsetValue(7, 2, "note", 100)
    assert entries == [Entry(Kind.OFFSET, ("g", "t", 3), value)]
    assert offsets.fetch("g", [("t", 3), ("t", 4)], require_stable=True) == {("t", 3): value, ("t", 4): NO_OFFSET}
    assert offsets.fetch("g", None, require_stable=True) == {("t", 3): value}
    assert offsets.fetch("other", None, require_stable=False) == {}


def test_too_much_metadata_is_refused_for_its_partition_only() -> None:
    offsets = Offsets(max_metadata_chars=4)
    results, entries = offsets.commit("g", {("t", 0): NewOffset(1, -1, "fünf!"), ("t", 1): NewOffset(1, -1, "vier")}, 0)
    refusal = results["t", 0]
    assert refusal is not None and refusal.code is Code.OFFSET_METADATA_TOO_LARGE
    assert [entry.key for entry in entries] == [("g", "t", 1)]


def test_a_group_has_room_for_so_many_offsets() -> None:
    offsets = Offsets(max_per_group=2)
    _commit(offsets, 1)
    _commit(offsets, 1, ("t", 1), producer=5)
    results, entries = offsets.commit("g", {("t", 2): NewOffset(1), SPOT: NewOffset(2)}, 0)
    refusal = results["t", 2]
    assert refusal is not None and refusal.code is Code.LIMIT_EXCEEDED
    assert results[SPOT] is None and len(entries) == 1, "one that is there may change"
    assert offsets.commit("other", {("t", 2): NewOffset(1)}, 0)[1], "others have room of their own"
    offsets.end(5, committed=False)
    results, entries = offsets.commit("g", {("t", 2): NewOffset(1), ("t", 3): NewOffset(1)}, 0)
    assert results["t", 2] is None and results["t", 3] is not None and len(entries) == 1


def test_a_transaction_counts_when_its_commit_marker_comes() -> None:
    offsets = Offsets()
    _commit(offsets, 1)
    _commit(offsets, 2, producer=5)
    assert _at(offsets) == 1
    assert _at(offsets, stable=True) is Code.UNSTABLE_OFFSET
    offsets.end(5, committed=True)
    assert _at(offsets, stable=True) == 2


def test_a_transaction_that_aborts_leaves_nothing() -> None:
    offsets = Offsets()
    _commit(offsets, 2, producer=5)
    assert "g" in offsets
    offsets.end(5, committed=False)
    assert _at(offsets, stable=True) == -1 and "g" not in offsets
    offsets.end(5, committed=True)
    assert _at(offsets) == -1


def test_the_later_record_wins_not_the_later_marker() -> None:
    """With compaction of the log any other rule would depend on which record is still there (KAFKA-5600)."""
    for restart in (lambda offsets: offsets, _again):
        offsets = Offsets()
        _commit(offsets, 1, producer=5)
        _commit(offsets, 2, producer=6)
        _commit(offsets, 3)
        _commit(offsets, 4, producer=7)
        offsets = restart(offsets)
        offsets.end(5, committed=True)
        assert _at(offsets) == 3
        offsets.end(7, committed=True)
        assert _at(offsets) == 4
        offsets = restart(offsets)
        offsets.end(6, committed=True)
        assert _at(offsets) == 4


def test_log_offsets_decide_between_replayed_and_new_commits() -> None:
    offsets = Offsets()
    offsets.replay(Entry(Kind.OFFSET, ("g", *SPOT), OffsetValue(1, -1, "", 0)), 1000, 5)
    _commit(offsets, 2)
    offsets.end(5, committed=True)
    assert _at(offsets) == 2


def test_deleting_takes_pending_offsets_too() -> None:
    offsets = Offsets()
    _commit(offsets, 1)
    _commit(offsets, 2, producer=5)
    _commit(offsets, 3, ("t", 1), producer=5)
    assert offsets.delete("g", [SPOT, ("t", 9)]) == [Entry(Kind.OFFSET, ("g", *SPOT), None)]
    assert _at(offsets, stable=True) == -1
    assert [entry.key for entry in offsets.delete_some("g", 9)] == [("g", "t", 1)]
    offsets.end(5, committed=True)
    assert "g" not in offsets and list(offsets.dump()) == []


def test_a_deleted_topic_is_forgotten_bit_by_bit() -> None:
    offsets = Offsets()
    for partition in range(3):
        _commit(offsets, 1, ("t", partition))
        _commit(offsets, 2, ("t", partition), producer=5)
        _commit(offsets, 1, ("other", partition))
    steps = []
    while entries := offsets.delete_of_topic("g", "t", 2):
        steps.append([entry.key for entry in entries])
    assert all(len(step) <= 2 for step in steps)
    assert sorted(key for step in steps for key in step) == [("g", "t", partition) for partition in range(3)], "once"
    assert offsets.count("g") == 3 and _at(offsets, ("other", 0)) == 1


def test_a_deleted_topic_takes_what_is_committed_and_pending_at_once() -> None:
    offsets = Offsets()
    spots = [("t", index) for index in range(6)]
    offsets.commit("g", {spot: NewOffset(1, -1, "") for spot in spots[:4]}, 0)
    offsets.commit("g", {spot: NewOffset(1, -1, "") for spot in spots[2:]}, 0, producer_id=7)
    assert len(offsets.delete_of_topic("g", "t", 5)) == 5
    assert len(offsets.delete_of_topic("g", "t", 5)) == 1
    assert offsets.count("g") == 0


def test_a_group_is_forgotten_bit_by_bit() -> None:
    offsets = Offsets()
    for partition in range(3):
        _commit(offsets, 1, ("t", partition))
        _commit(offsets, 2, ("t", partition), producer=5)
    steps = []
    while entries := offsets.delete_some("g", 2):
        steps.append([entry.key for entry in entries])
    assert all(len(step) <= 2 for step in steps)
    assert sorted(key for step in steps for key in step) == [("g", "t", partition) for partition in range(3)], "once"
    assert "g" not in offsets


def test_a_dump_is_what_was_there_when_it_was_asked_for() -> None:
    offsets = Offsets()
    for partition in range(3):
        _commit(offsets, 1, ("t", partition))
        _commit(offsets, 1, ("t", partition), group="h")
        _commit(offsets, 2, ("t", partition), group="h", producer=5)
    wanted = list(offsets.dump())
    dump = offsets.dump()
    taken = [next(dump)]
    _commit(offsets, 3, ("t", 1))
    _commit(offsets, 3, ("t", 1), group="h")
    _commit(offsets, 4, ("t", 2), group="h", producer=5)
    offsets.end(5, committed=True)
    offsets.delete("g", [("t", 2)])
    _commit(offsets, 4, ("u", 0), group="i")
    assert [*taken, *dump] == wanted


def test_a_dump_tells_what_came_first_for_each_partition() -> None:
    offsets = Offsets()
    _commit(offsets, 1, producer=6)
    _commit(offsets, 2)
    _commit(offsets, 3, producer=5)
    _commit(offsets, 4, producer=6, spot=("t", 1))
    rows = [(entry.key[2], entry.value.offset, producer) for entry, producer in offsets.dump()]
    assert [row for row in rows if row[0] == 0] == [(0, 1, 6), (0, 2, None), (0, 3, 5)]
    assert [row for row in rows if row[0] == 1] == [(1, 4, 6)]


def test_offsets_a_transaction_may_renew_do_not_expire() -> None:
    offsets = Offsets()
    for partition in range(4):
        _commit(offsets, partition, ("t", partition))
    _commit(offsets, 9, ("t", 1), producer=5)

    def above_zero(topic: str, value: OffsetValue) -> bool:
        return value.offset > 0

    asked = [("t", 3), ("t", 0), ("t", 1), ("t", 9)]
    assert offsets.expired("g", asked, above_zero) == [("t", 3)]
    assert offsets.expired("g", offsets.committed_spots("g"), above_zero) == [("t", 2), ("t", 3)]


def test_groups_are_counted_while_they_have_offsets() -> None:
    offsets = Offsets()
    _commit(offsets, 1)
    _commit(offsets, 1, group="h", producer=5)
    assert list(offsets.groups()) == ["g", "h"] and offsets.group_count == 2 and offsets.count("h") == 1
    offsets.delete_some("g", 9)
    offsets.end(5, committed=False)
    assert list(offsets.groups()) == [] and offsets.group_count == 0
