"""The room that members of all groups share: taken and given back with every change, and found after a restart."""

from itertools import count
from typing import Any

import pytest
from tests.unit.engine.groups.consumer_world import FakeTopics

from penstock.engine.coordination.outcome import Outcome
from penstock.engine.groups.classic_requests import JoinRequest, LeavingMember, SyncRequest
from penstock.engine.groups.consumer_requests import LEAVING, ConsumerHeartbeat
from penstock.engine.groups.machine import GroupMachine
from penstock.engine.groups.member_room import MemberRoom
from penstock.engine.groups.topic_patterns import SEES_ALL
from penstock.errors import Code, PenstockError

LIMIT = 10_000
FULL = pytest.raises(PenstockError, check=lambda error: error.code is Code.GROUP_FULL)


def make(room: MemberRoom) -> GroupMachine:
    ids = count(1)
    return GroupMachine(0, lambda: str(next(ids)), FakeTopics(t=2), room=room.share())


def join(machine: GroupMachine, group_id: str, size: int, member_id: str = "", **changes: Any) -> Outcome:
    request = JoinRequest(
        group_id, member_id, None, "c", "/::1", "consumer", (("range", bytes(size)),), 10_000, 10_000, False
    )
    return machine.join(0, 1, request._replace(**changes))


def beat(machine: GroupMachine, group_id: str, size: int, member_id: str = "m", epoch: int = 0) -> Outcome:
    names = None if size < 0 else tuple(f"{number:096}" for number in range(size // 96))
    request = ConsumerHeartbeat(group_id, member_id, epoch, None, None, 10_000, names, topic_partitions=())
    return machine.consumer_heartbeat(0, 1, request, SEES_ALL)


def test_groups_of_all_shards_share_it() -> None:
    room = MemberRoom(LIMIT)
    one, other = make(room), make(room)
    join(one, "a", 4_000)
    beat(other, "b", 4_000)
    for machine in (one, other):
        with FULL:
            join(machine, "c", 4_000)
        with FULL:
            beat(machine, "d", 4_000)
    join(one, "e", 500)
    one.leave(0, 1, "a", (LeavingMember("c-1", None),))
    join(other, "c", 4_000)


def test_who_is_there_may_say_as_much_again_and_less_but_not_more() -> None:
    machine = make(MemberRoom(LIMIT))
    join(machine, "a", 4_000)
    beat(machine, "b", 4_800)
    join(machine, "a", 4_000, "c-1")
    with FULL:
        join(machine, "a", 5_000, "c-1")
    with FULL:
        beat(machine, "b", 6_000, epoch=1)
    beat(machine, "b", -1, epoch=1)
    beat(machine, "b", 96, epoch=1)
    join(machine, "a", 5_000, "c-1")


def test_everything_is_given_back() -> None:
    room = MemberRoom(LIMIT)
    machine = make(room)
    for number in range(10):
        join(machine, f"a{number}", 4_000)
        machine.leave(0, 1, f"a{number}", (LeavingMember(f"c-{number + 1}", None),))
        beat(machine, f"b{number}", 4_000)
        beat(machine, f"b{number}", -1, epoch=LEAVING)
    join(machine, "silent", 4_000)
    while (due := machine.next_deadline()) < 400_000:
        machine.tick(due)
    assert room.left_bytes == LIMIT


def test_what_the_leader_assigns_counts() -> None:
    room = MemberRoom(LIMIT)
    machine = make(room)
    join(machine, "a", 1_000)
    machine.tick(300)
    left = room.left_bytes
    sync = SyncRequest("a", 1, "c-1", None, "consumer", "range", (("c-1", bytes(left + 1)),))
    with pytest.raises(PenstockError, match=f"{left} are allowed"):
        machine.sync(300, 1, sync)
    machine.sync(300, 1, sync._replace(assignments=(("c-1", bytes(left)),)))
    assert room.left_bytes == 0


def test_a_restart_finds_what_was_taken() -> None:
    room = MemberRoom(LIMIT)
    machine = make(room)
    entries = list(join(machine, "a", 1_000).records)
    entries += machine.tick(300).records
    sync = SyncRequest("a", 1, "c-1", None, "consumer", "range", (("c-1", bytes(500)),))
    entries += machine.sync(300, 1, sync).records
    entries += beat(machine, "b", 4_000).records
    left = room.left_bytes
    share = machine._room
    again = GroupMachine(0, str, FakeTopics(t=2), room=share)
    assert room.left_bytes == LIMIT, "a machine that is made again begins with nothing"
    for entry in entries:
        again.replay(entry, 0, None, 0)
    assert room.left_bytes == left
    smaller = MemberRoom(1_000)
    found = make(smaller)
    for entry in entries:
        found.replay(entry, 0, None, 0)
    assert smaller.left_bytes == 0, "what is in the log stays"
    join(found, "a", 900, "c-1")
