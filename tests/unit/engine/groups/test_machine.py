"""The groups of one shard: which kind a group id is, who may commit, what expires, and what a restart brings back."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, permutations
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.engine.coordination.outcome import Outcome
from penstock.engine.coordination.schemas import GROUP_RECORDS, Entry, Kind, OffsetValue
from penstock.engine.groups.classic_requests import (
    HeartbeatRequest,
    JoinRequest,
    LeavingMember,
    MemberIdRequired,
    SyncRequest,
)
from penstock.engine.groups.consumer_requests import ConsumerHeartbeat
from penstock.engine.groups.known_topics import TopicInfo
from penstock.engine.groups.machine import RECORDS_PER_STEP, SWEEP_MS, GroupListing, GroupMachine
from penstock.engine.groups.member_room import MemberRoom
from penstock.engine.groups.offsets import (
    CommitRequest,
    FetchRequest,
    NewOffset,
    Offsets,
    Spot,
    TransactionalCommit,
)
from penstock.engine.groups.retention import RETENTION_MS
from penstock.engine.groups.share_requests import ShareHeartbeat
from penstock.engine.groups.topic_patterns import SEES_ALL
from penstock.errors import Code, PenstockError

T0: Spot = ("t", 0)
U0: Spot = ("u", 0)
BEGIN = 1_000_000


class Topics:
    """A TopicView of t and u with two partitions each."""

    revision = 1

    def get(self, name: str) -> TopicInfo | None:
        return TopicInfo(name, UUID(int=ord(name)), 2) if name in self.names() else None

    def get_by_id(self, topic_id: UUID) -> TopicInfo | None:
        return next((info for name in self.names() if (info := self.get(name)) and info.topic_id == topic_id), None)

    def names(self) -> Sequence[str]:
        return ("t", "u")


class Record(NamedTuple):
    key: bytes
    value: bytes | None
    producer_id: int | None


class Marker(NamedTuple):
    producer_id: int
    committed: bool


@dataclass
class Shard:
    """A machine, its clock and its log; a token is told its answer at once."""

    limits: dict[str, Any] = field(default_factory=dict)
    now: int = BEGIN
    log: list[Record | Marker] = field(default_factory=list)
    answers: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tokens = count()
        self._ids = count()
        self.machine = self.blank()

    def blank(self) -> GroupMachine:
        return GroupMachine(self.now, lambda: f"id{next(self._ids)}", Topics(), **self.limits)

    def keep(self, outcome: Outcome, producer_id: int | None = None) -> list[Entry]:
        self.log += [Record(*GROUP_RECORDS.encode(entry), producer_id) for entry in outcome.records]
        for token, answer in outcome.replies:
            assert token not in self.answers
            self.answers[token] = answer
        return list(outcome.records)

    def ask(self, verb: str, *request: Any, producer_id: int | None = None) -> Any:
        """The answer to a verb; None when it is still to come."""
        token = next(self._tokens)
        self.keep(getattr(self.machine, verb)(self.now, token, *request), producer_id)
        answer = self.answers.get(token)
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    def refused(self, verb: str, *request: Any) -> Code:
        """The code of a refusal; that it changed nothing is checked."""
        before = list(self.machine.dump()), self.machine.next_deadline()
        with pytest.raises(PenstockError) as caught:
            self.ask(verb, *request)
        assert (list(self.machine.dump()), self.machine.next_deadline()) == before
        return caught.value.code

    def wait(self, milliseconds: int) -> list[Entry]:
        """Let time pass, ticking when something is due."""
        until, written = self.now + milliseconds, []
        while (due := self.machine.next_deadline()) <= until:
            self.now = max(self.now, due)
            written += self.keep(self.machine.tick(self.now))
        self.now = until
        return written

    def marker(self, producer_id: int, *, committed: bool) -> None:
        self.log.append(Marker(producer_id, committed))
        self.machine.marker(producer_id, committed=committed)

    def replayed(self, start: Sequence[tuple[Entry, int | None]] = (), since: int = 0) -> GroupMachine:
        """A machine made of a dump and of the log behind it."""
        machine = self.blank()
        for entry, producer_id in start:
            machine.replay(entry, -1, producer_id, self.now)
        for offset, kept in enumerate(self.log[since:], since):
            if isinstance(kept, Marker):
                machine.marker(kept.producer_id, committed=kept.committed)
            else:
                entry = GROUP_RECORDS.decode(kept.key, kept.value)
                assert entry is not None
                machine.replay(entry, offset, kept.producer_id, self.now)
        return machine

    # --- what clients do

    def commit(self, group: str = "g", spot: Spot = T0, at: int = 1, **more: Any) -> PenstockError | None:
        fields = {"member_id": "", "generation": -1, "group_instance_id": None, **more}
        return self.ask("commit", CommitRequest(group, offsets={spot: NewOffset(at)}, **fields))[spot]

    def commit_in_transaction(
        self, producer_id: int, group: str = "g", spot: Spot = T0, at: int = 1, **more: Any
    ) -> None:
        fields = {"member_id": "", "generation": -1, "group_instance_id": None, **more}
        request = TransactionalCommit(group, producer_id, 0, offsets={spot: NewOffset(at)}, **fields)
        assert self.ask("commit_in_transaction", request, producer_id=producer_id) == {spot: None}

    def fetch(self, group: str = "g", *, stable: bool = False) -> dict[Spot, int | Code]:
        fetched = self.ask("fetch", FetchRequest(group, (T0, ("t", 1), U0), stable))
        return {spot: got.code if isinstance(got, PenstockError) else got.offset for spot, got in fetched.items()}

    def join(self, group: str = "g", *topics: str, **more: Any) -> dict[str, Any]:
        """One member joins a classic group that is empty; Stable when this returns. Who it is when it commits."""
        token = next(self._tokens)
        self.keep(self.machine.join(self.now, token, join_request(group, *topics, **more)))
        self.wait(500)
        joined = self.answers[token]
        if isinstance(joined, PenstockError):
            raise joined
        sync = SyncRequest(group, joined.generation, joined.member_id, None, None, None, ((joined.member_id, b"a"),))
        assert self.ask("sync", sync).assignment == b"a"
        return {"member_id": joined.member_id, "generation": joined.generation}

    def beat(self, group: str = "g", member: str = "m", epoch: int = 0, topics: tuple[str, ...] = ("t",)) -> Any:
        joining: dict[str, Any] = {
            "rebalance_timeout_ms": 1000,
            "subscribed_topic_names": topics,
            "topic_partitions": (),
        }
        return self.ask(
            *("consumer_heartbeat", ConsumerHeartbeat(group, member, epoch, **(joining if epoch == 0 else {}))),
            SEES_ALL,
        )

    def share(self, group: str = "s", member: str = "m", epoch: int = 0, topics: tuple[str, ...] = ("t",)) -> Any:
        names = topics if epoch == 0 else None
        return self.ask("share_heartbeat", ShareHeartbeat(group, member, epoch, subscribed_topic_names=names))

    def listed(self, *, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> list[GroupListing]:
        return sorted(self.ask("list_groups", frozenset(states), frozenset(types)))


def join_request(group: str, *topics: str, **more: Any) -> JoinRequest:
    wanted = b"\0\0" + len(topics).to_bytes(4, "big")
    wanted += b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    fields: dict[str, Any] = {"member_id": "", "protocol_type": "consumer", "requires_known_member_id": False}
    fields |= {"session_timeout_ms": 10_000, **more}
    return JoinRequest(
        group_id=group,
        group_instance_id=None,
        client_id="c",
        client_host="h",
        protocols=(("range", wanted),),
        rebalance_timeout_ms=10_000,
        **fields,
    )


def leave(shard: Shard, member: dict[str, Any], group: str = "g") -> None:
    (result,) = shard.ask("leave", group, (LeavingMember(member["member_id"], None),))
    assert result.error is None


@pytest.fixture
def shard() -> Shard:
    return Shard()


# --- offsets


def test_offsets_alone_make_a_simple_group(shard: Shard) -> None:
    assert shard.commit(at=7) is None
    assert shard.fetch() == {T0: 7, ("t", 1): -1, U0: -1}
    assert shard.listed() == [GroupListing("g", "", "Empty", "classic")]
    described = shard.ask("describe_classic", "g")
    assert (described.state, described.protocol_type, described.members) == ("Empty", "", ())


def test_a_group_nobody_knows_has_no_offsets_and_no_generation(shard: Shard) -> None:
    assert shard.fetch() == {T0: -1, ("t", 1): -1, U0: -1}
    assert shard.ask("fetch", FetchRequest("g", None)) == {}
    request = CommitRequest("g", "m", 3, None, {T0: NewOffset(1)})
    assert shard.refused("commit", request) is Code.GROUP_NOT_FOUND
    assert shard.refused("commit", request._replace(knows_epochs=False)) is Code.ILLEGAL_GENERATION
    in_transaction = TransactionalCommit("g", 5, 0, "m", 3, None, {T0: NewOffset(1)})
    assert shard.refused("commit_in_transaction", in_transaction) is Code.ILLEGAL_GENERATION
    for verb in ("describe_classic", "describe_consumer", "delete"):
        assert shard.refused(verb, "g") is Code.GROUP_NOT_FOUND
    assert shard.refused("delete_offsets", "g", [T0]) is Code.GROUP_NOT_FOUND


def test_only_members_commit_while_a_classic_group_has_some(shard: Shard) -> None:
    member = shard.join("g", "t")
    assert shard.commit(**member) is None
    stranger = CommitRequest("g", "", -1, None, {T0: NewOffset(1)})
    assert shard.refused("commit", stranger) is Code.UNKNOWN_MEMBER
    assert shard.refused("commit", stranger._replace(**{**member, "generation": 2})) is Code.ILLEGAL_GENERATION
    shard.commit_in_transaction(5)  # by a producer that cannot name its member
    leave(shard, member)
    assert shard.commit(at=2) is None


def test_only_members_commit_while_a_consumer_group_has_some(shard: Shard) -> None:
    epoch = shard.beat().member_epoch
    assert shard.commit(member_id="m", generation=epoch) is None
    stranger = CommitRequest("g", "", -1, None, {T0: NewOffset(1)})
    member = stranger._replace(member_id="m", generation=epoch)
    assert shard.refused("commit", stranger) is Code.UNKNOWN_MEMBER
    assert shard.refused("commit", member._replace(generation=epoch + 1)) is Code.STALE_MEMBER_EPOCH
    assert shard.refused("commit", member._replace(knows_epochs=False)) is Code.UNSUPPORTED_VERSION
    in_transaction = TransactionalCommit("g", 5, 0, "m", epoch + 1, None, {T0: NewOffset(1)})
    assert shard.refused("commit_in_transaction", in_transaction) is Code.ILLEGAL_GENERATION
    assert shard.refused("fetch", FetchRequest("g", None, False, "m", epoch + 1)) is Code.STALE_MEMBER_EPOCH
    assert shard.refused("fetch", FetchRequest("g", None, False, "x", epoch)) is Code.UNKNOWN_MEMBER
    assert set(shard.ask("fetch", FetchRequest("g", None, False, "m", epoch))) == {T0}
    assert set(shard.ask("fetch", FetchRequest("g", None))) == {T0}
    shard.beat(epoch=-1)
    assert shard.commit(at=2) is None


def test_whoever_insists_on_stable_offsets_waits_for_transactions(shard: Shard) -> None:
    shard.commit(at=1)
    shard.commit_in_transaction(5, at=2)
    shard.commit_in_transaction(6, spot=U0, at=3)
    assert shard.fetch() == {T0: 1, ("t", 1): -1, U0: -1}
    assert shard.fetch(stable=True) == {T0: Code.UNSTABLE_OFFSET, ("t", 1): -1, U0: Code.UNSTABLE_OFFSET}
    shard.marker(5, committed=True)
    shard.marker(6, committed=False)
    assert shard.fetch(stable=True) == {T0: 2, ("t", 1): -1, U0: -1}


def test_offsets_of_topics_a_group_reads_cannot_be_deleted(shard: Shard) -> None:
    classic = shard.join("g", "t")
    epoch = shard.beat("h").member_epoch
    for spot in (T0, U0):
        shard.commit("g", spot, **classic)
        shard.commit("h", spot, member_id="m", generation=epoch)
    for group in ("g", "h"):
        results = shard.ask("delete_offsets", group, [T0, U0, ("u", 1)])
        assert results[T0].code is Code.GROUP_SUBSCRIBED_TO_TOPIC
        assert (results[U0], results["u", 1]) == (None, None)
        assert shard.fetch(group) == {T0: 1, ("t", 1): -1, U0: -1}
    leave(shard, classic)
    shard.beat("h", epoch=-1)
    for group in ("g", "h"):
        assert shard.ask("delete_offsets", group, [T0]) == {T0: None}
        assert shard.fetch(group)[T0] == -1


def test_nobody_knows_what_members_of_another_protocol_read(shard: Shard) -> None:
    shard.join("g", protocol_type="connect")
    assert shard.refused("delete_offsets", "g", [T0]) is Code.NON_EMPTY_GROUP


def test_a_deleted_topic_takes_its_offsets_along(shard: Shard) -> None:
    shard.commit(spot=T0)
    shard.commit(spot=U0)
    assert shard.keep(shard.machine.topic_deleted("t", ["g"])) == [Entry(Kind.OFFSET, ("g", *T0), None)]
    assert shard.fetch() == {T0: -1, ("t", 1): -1, U0: 1}


# --- kinds of groups


def test_a_classic_group_with_members_is_no_consumer_group(shard: Shard) -> None:
    member = shard.join("g", "t")
    joining = ConsumerHeartbeat("g", "m", 0, None, None, 1000, ("t",), topic_partitions=())
    assert shard.refused("consumer_heartbeat", joining, SEES_ALL) is Code.GROUP_NOT_FOUND
    assert shard.refused("describe_consumer", "g") is Code.GROUP_NOT_FOUND
    leave(shard, member)
    shard.commit(at=4)
    assert shard.refused("consumer_heartbeat", joining._replace(member_epoch=5), SEES_ALL) is Code.GROUP_NOT_FOUND
    invalid = joining._replace(rebalance_timeout_ms=-1)
    assert shard.refused("consumer_heartbeat", invalid, SEES_ALL) is Code.INVALID_REQUEST
    assert shard.listed() == [GroupListing("g", "consumer", "Empty", "classic")]
    position = len(shard.log)
    shard.ask("consumer_heartbeat", joining, SEES_ALL)
    assert shard.log[position] == Record(*GROUP_RECORDS.encode(Entry(Kind.GROUP, ("g",), None)), None)
    assert shard.listed() == [GroupListing("g", "consumer", "Stable", "consumer")]
    assert shard.fetch()[T0] == 4


def test_a_consumer_group_with_members_is_no_classic_group(shard: Shard) -> None:
    shard.beat()
    assert shard.refused("join", join_request("g", "t")) is Code.INCONSISTENT_PROTOCOL
    assert shard.refused("describe_classic", "g") is Code.GROUP_NOT_FOUND
    heartbeat = HeartbeatRequest("g", 1, "m", None)
    assert shard.refused("heartbeat", heartbeat) is Code.UNKNOWN_MEMBER
    shard.beat(epoch=-1)
    assert shard.refused("join", join_request("g", "t", member_id="m")) is Code.UNKNOWN_MEMBER
    assert shard.refused("join", join_request("g", "t")._replace(protocols=())) is Code.INCONSISTENT_PROTOCOL
    assert shard.listed() == [GroupListing("g", "consumer", "Empty", "consumer")]
    was, position = list(shard.machine.dump()), len(shard.log)
    shard.join("g", "t")
    assert shard.listed() == [GroupListing("g", "consumer", "Stable", "classic")]
    taken_back = shard.log[position : position + len(was)]
    assert set(taken_back) == {Record(GROUP_RECORDS.encode(entry)[0], None, None) for entry, _ in was}


def test_a_share_group_is_one_for_good(shard: Shard) -> None:
    shard.share()
    for _ in range(2):
        assert shard.refused("join", join_request("s", "t")) is Code.INCONSISTENT_PROTOCOL
        joining = ConsumerHeartbeat("s", "m", 0, None, None, 1000, ("t",), topic_partitions=())
        assert shard.refused("consumer_heartbeat", joining, SEES_ALL) is Code.GROUP_NOT_FOUND
        commit = CommitRequest("s", "", -1, None, {T0: NewOffset(1)})
        for request in (commit, commit._replace(member_id="m", generation=1)):
            assert shard.refused("commit", request) is Code.GROUP_NOT_FOUND
        in_transaction = TransactionalCommit("s", 5, 0, "", -1, None, {T0: NewOffset(1)})
        assert shard.refused("commit_in_transaction", in_transaction) is Code.GROUP_NOT_FOUND
        assert shard.refused("delete_offsets", "s", [T0]) is Code.GROUP_NOT_FOUND
        for verb in ("describe_classic", "describe_consumer"):
            assert shard.refused(verb, "s") is Code.GROUP_NOT_FOUND
        sync, heartbeat = SyncRequest("s", 1, "m", None, None, None, ()), HeartbeatRequest("s", 1, "m", None)
        assert shard.refused("sync", sync) is Code.UNKNOWN_MEMBER
        assert shard.refused("heartbeat", heartbeat) is Code.UNKNOWN_MEMBER
        assert shard.refused("leave", "s", (LeavingMember("m", None),)) is Code.UNKNOWN_MEMBER
        assert shard.fetch("s") == {T0: -1, ("t", 1): -1, U0: -1}
        if shard.listed()[0].state == "Stable":
            assert shard.refused("delete", "s") is Code.NON_EMPTY_GROUP
            shard.share(epoch=-1)
    assert shard.listed() == [GroupListing("s", "share", "Empty", "share")]
    assert shard.listed(types=("Share",)) == shard.listed(states=("empty",)) == shard.listed()
    shard.ask("delete", "s")
    assert shard.listed() == [] and list(shard.replayed().dump()) == []


def test_no_other_group_becomes_a_share_group(shard: Shard) -> None:
    member = shard.join("classic", "t")
    shard.beat("consumer")
    shard.commit("simple")
    shard.commit_in_transaction(5, "unsettled")
    for _ in range(2):
        for group in ("classic", "consumer", "simple", "unsettled"):
            request = ShareHeartbeat(group, "m", 0, subscribed_topic_names=("t",))
            assert shard.refused("share_heartbeat", request) is Code.GROUP_NOT_FOUND
            assert shard.refused("describe_share", group) is Code.GROUP_NOT_FOUND
            assert shard.refused("share_topics", group) is Code.GROUP_NOT_FOUND
        if shard.listed(states=("stable",)):
            leave(shard, member, "classic")
            shard.beat("consumer", epoch=-1)


def test_a_share_group_begins_with_a_member_that_joins(shard: Shard) -> None:
    for epoch in (3, -1):
        assert shard.refused("share_heartbeat", ShareHeartbeat("s", "m", epoch)) is Code.GROUP_NOT_FOUND
    assert shard.refused("share_heartbeat", ShareHeartbeat("s", "m", 0)) is Code.INVALID_REQUEST
    assert shard.refused("describe_share", "s") is Code.GROUP_NOT_FOUND
    assert shard.listed() == []


def test_a_share_group_stays_when_it_was_given_anything(shard: Shard) -> None:
    """Where its partitions begin is known nowhere else."""
    for group, topic in (("s", "t"), ("nothing", "missing")):
        shard.share(group, topics=(topic,))
        shard.share(group, epoch=-1)
    shard.wait(3 * SWEEP_MS)
    assert shard.listed() == [GroupListing("s", "share", "Empty", "share")]
    start = shard.ask("share_start", "s", UUID(int=ord("t")), 1)
    assert (start.state_epoch, start.offset) == (1, None)
    shard.machine = shard.replayed()
    assert shard.ask("share_start", "s", UUID(int=ord("t")), 1) == start
    assert shard.ask("share_start", "s", UUID(int=ord("u")), 0) is None
    (begun,) = shard.ask("share_topics", "s")
    assert (begun.topic_name, begun.partitions) == ("t", (0, 1))


def test_a_deleted_topic_is_forgotten_by_share_groups(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    for group, topics in (("s", ("t",)), ("both", ("t", "u"))):
        shard.share(group, topics=topics)
    assert shard.machine.groups_with_topics() == ["s", "both"]
    assert shard.keep(shard.machine.topic_deleted("t", ["s", "both", "gone"])) == [], "it is there"
    monkeypatch.setattr(Topics, "names", lambda self: ("u",))
    written = shard.keep(shard.machine.topic_deleted("t", ["s", "both", "gone"]))
    assert [(entry.key, entry.value is None) for entry in written] == [(("both",), False), (("s",), True)]
    assert shard.ask("share_topics", "s") == ()
    assert [begun.topic_name for begun in shard.ask("share_topics", "both")] == ["u"]
    assert sorted(shard.replayed().dump(), key=repr) == sorted(shard.machine.dump(), key=repr)


def test_room_that_a_share_group_takes_is_given_back(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    room = MemberRoom()
    shard = Shard({"room": room.share()})
    before = room.left_bytes
    shard.share()
    shard.share(epoch=-1)
    assert room.left_bytes < before, "it remembers what it was given"
    monkeypatch.setattr(Topics, "names", lambda self: ())
    shard.keep(shard.machine.topic_deleted("t", ["s"]))
    assert room.left_bytes == before
    shard.wait(2 * SWEEP_MS)
    assert shard.listed() == []


def test_members_of_a_consumer_group_are_removed_by_administrators(shard: Shard) -> None:
    shard.beat("g", "m")
    results = shard.ask("leave", "g", (LeavingMember("m", None), LeavingMember("x", None)))
    assert [result.error and result.error.code for result in results] == [None, Code.UNKNOWN_MEMBER]
    assert shard.listed() == [GroupListing("g", "consumer", "Empty", "consumer")]
    assert sorted(shard.replayed().dump()) == sorted(shard.machine.dump())


def test_a_dump_is_what_was_there_when_it_was_asked_for(shard: Shard) -> None:
    shard.beat("consumer")
    classic = shard.join("classic", "t")
    shard.commit("simple")
    wanted = list(shard.machine.dump())
    dump = shard.machine.dump()
    taken = [next(dump)]
    shard.beat("consumer", epoch=-1)
    shard.beat("later")
    leave(shard, classic, "classic")
    shard.ask("delete", "simple")
    assert [*taken, *dump] == wanted


def test_a_consumer_group_begins_with_a_member_that_joins(shard: Shard) -> None:
    assert shard.refused("consumer_heartbeat", ConsumerHeartbeat("g", "m", 3), SEES_ALL) is Code.GROUP_NOT_FOUND
    assert shard.refused("consumer_heartbeat", ConsumerHeartbeat("g", "m", -1), SEES_ALL) is Code.GROUP_NOT_FOUND
    assert shard.listed() == []


def test_requests_of_members_name_a_group_that_is_there(shard: Shard) -> None:
    assert shard.refused("join", join_request("g", "t", member_id="m")) is Code.UNKNOWN_MEMBER
    assert shard.refused("sync", SyncRequest("g", 1, "m", None, None, None, ())) is Code.UNKNOWN_MEMBER
    assert shard.refused("heartbeat", HeartbeatRequest("g", 1, "m", None)) is Code.UNKNOWN_MEMBER
    assert shard.refused("leave", "g", (LeavingMember("m", None),)) is Code.UNKNOWN_MEMBER


def test_an_id_nobody_comes_back_with_leaves_no_group_behind(shard: Shard) -> None:
    with pytest.raises(MemberIdRequired):
        shard.ask("join", join_request("g", "t", requires_known_member_id=True))
    assert shard.listed() == [GroupListing("g", "", "Empty", "classic")]
    assert shard.wait(10_000) == [] and shard.listed() == []


def test_groups_are_listed_by_state_and_type(shard: Shard) -> None:
    shard.commit("simple")
    shard.join("classic", "t")
    shard.beat("consumer")
    names = [listing.group_id for listing in shard.listed()]
    assert names == ["classic", "consumer", "simple"]
    assert [listing.group_id for listing in shard.listed(states=("stable",))] == ["classic", "consumer"]
    assert [listing.group_id for listing in shard.listed(types=("Consumer",))] == ["consumer"]
    assert [listing.group_id for listing in shard.listed(states=("Empty",), types=("classic",))] == ["simple"]
    assert shard.listed(types=("share",)) == []


def test_a_shard_has_room_for_so_many_groups() -> None:
    shard = Shard({"max_groups": 2})
    shard.commit("a")
    shard.commit("b")
    assert shard.refused("commit", CommitRequest("c", "", -1, None, {T0: NewOffset(1)})) is Code.LIMIT_EXCEEDED
    assert shard.refused("join", join_request("c", "t")) is Code.LIMIT_EXCEEDED
    assert shard.commit("a", at=2) is None
    shard.ask("delete", "b")
    shard.beat("c")


def test_a_group_is_deleted_with_its_offsets_when_it_is_empty(shard: Shard) -> None:
    member = shard.join("g", "t")
    epoch = shard.beat("h").member_epoch
    shard.commit("g", **member)
    shard.commit("h", member_id="m", generation=epoch)
    shard.commit("simple")
    shard.commit_in_transaction(5, "simple", U0)
    for group in ("g", "h"):
        assert shard.refused("delete", group) is Code.NON_EMPTY_GROUP
    leave(shard, member)
    shard.beat("h", epoch=-1)
    for group in ("g", "h", "simple"):
        shard.ask("delete", group)
        assert shard.refused("delete", group) is Code.GROUP_NOT_FOUND
    shard.marker(5, committed=True)
    for machine in (shard.machine, shard.replayed()):
        shard.machine = machine
        assert shard.listed() == [] and list(machine.dump()) == []


MANY = {("many", partition): NewOffset(1) for partition in range(2 * RECORDS_PER_STEP + 1)}


def _empty_group(shard: Shard, kind: str) -> None:
    """Group g with many offsets, which had a member of that kind."""
    if kind == "classic":
        leave(shard, shard.join("g", "t"))
    elif kind == "consumer":
        shard.beat("g", epoch=shard.beat("g").member_epoch)
        shard.beat("g", epoch=-1)
    shard.ask("commit", CommitRequest("g", "", -1, None, MANY))


@pytest.mark.parametrize("kind", ["simple", "classic", "consumer"])
def test_a_group_with_many_offsets_is_deleted_bit_by_bit_and_answered_at_the_end(shard: Shard, kind: str) -> None:
    _empty_group(shard, kind)
    shard.commit_in_transaction(5, "g", U0)
    kept = len(shard.log)
    steps = [shard.keep(shard.machine.delete(shard.now, "first", "g"))]
    steps += [shard.keep(shard.machine.delete(shard.now, "second", "g"))]
    assert "first" not in shard.answers and not steps[1]
    while shard.machine.next_deadline() <= shard.now:
        assert "first" not in shard.answers
        steps.append(shard.keep(shard.machine.tick(shard.now)))
    assert shard.answers.keys() >= {"first", "second"}
    assert max(map(len, steps)) <= RECORDS_PER_STEP + 3
    groups = [entry.kind is not Kind.OFFSET for step in steps for entry in step]
    assert groups == sorted(groups) and any(groups) == (kind != "simple"), "the group goes last"
    assert len(shard.log) - kept == len(MANY) + 1 + sum(groups)
    for machine in (shard.machine, shard.replayed()):
        assert list(machine.dump()) == []


@pytest.mark.parametrize("kind", ["simple", "classic", "consumer"])
def test_a_group_that_is_being_deleted_is_nobodys(shard: Shard, kind: str) -> None:
    _empty_group(shard, kind)
    shard.ask("delete", "g")
    for verb, request in (
        ("join", join_request("g", "t")),
        ("commit", CommitRequest("g", "", -1, None, {T0: NewOffset(1)})),
        ("commit_in_transaction", TransactionalCommit("g", 5, 0, "", -1, None, {T0: NewOffset(1)})),
        ("fetch", FetchRequest("g", None)),
    ):
        assert shard.refused(verb, request) is Code.COORDINATOR_LOADING
    for verb in ("describe_classic", "describe_consumer"):
        assert shard.refused(verb, "g") is Code.COORDINATOR_LOADING
    assert shard.refused("delete_offsets", "g", [T0]) is Code.COORDINATOR_LOADING
    with pytest.raises(PenstockError, match="being deleted"):
        shard.beat("g")
    assert shard.listed() == []
    shard.machine = shard.replayed()  # a crash: nobody was told that the group is gone
    left = len(shard.ask("fetch", FetchRequest("g", None)))
    assert left == len(MANY) - RECORDS_PER_STEP and [listing.group_id for listing in shard.listed()] == ["g"]
    shard.ask("delete", "g")
    shard.wait(0)
    assert list(shard.machine.dump()) == [] and list(shard.replayed().dump()) == []


# --- time


def test_a_sweep_looks_at_so_many_offsets_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.groups.machine._OFFSETS_PER_TICK", 700)
    looked_at = []
    original = Offsets.expired

    def watched(offsets: Offsets, group_id: str, spots: list[Spot], is_expired: Any) -> list[Spot]:
        looked_at.append(len(spots))
        return original(offsets, group_id, spots, is_expired)

    monkeypatch.setattr(Offsets, "expired", watched)
    shard = Shard({"retention_ms": SWEEP_MS})
    shard.ask("commit", CommitRequest("g", "", -1, None, MANY))
    for spot in (T0, U0):
        shard.commit("h", spot)
    shard.now += SWEEP_MS
    steps = []
    while shard.machine.next_deadline() <= shard.now:
        steps.append(len(shard.keep(shard.machine.tick(shard.now))))
    assert sum(steps) == len(MANY) + 2 and max(steps) == RECORDS_PER_STEP
    assert max(looked_at) == 700 and shard.listed() == []


def _lives_on(shard: Shard, milliseconds: int, beat: Any) -> None:
    for _ in range(0, milliseconds, 4_000):
        beat()
        shard.wait(4_000)


def test_offsets_of_a_simple_group_expire_some_time_after_their_commit() -> None:
    shard = Shard({"retention_ms": SWEEP_MS})
    shard.commit(spot=T0)
    shard.wait(1)
    shard.commit(spot=U0)
    assert shard.wait(SWEEP_MS) == [Entry(Kind.OFFSET, ("g", *T0), None)]
    assert shard.fetch() == {T0: -1, ("t", 1): -1, U0: 1}
    assert shard.wait(SWEEP_MS) == [Entry(Kind.OFFSET, ("g", *U0), None)]
    assert shard.listed() == []


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_offsets_of_a_group_expire_when_it_has_been_empty_for_long(kind: str) -> None:
    shard = Shard({"retention_ms": SWEEP_MS})
    if kind == "classic":
        member = shard.join("g", "t")
        shard.commit(**member)
        beat = lambda: shard.ask("heartbeat", HeartbeatRequest("g", group_instance_id=None, **member))  # noqa: E731
    else:
        epoch = shard.beat().member_epoch
        shard.commit(member_id="m", generation=epoch)
        beat = lambda: shard.beat(epoch=epoch)  # noqa: E731
    shard.commit("simple", at=2)
    _lives_on(shard, 3 * SWEEP_MS + SWEEP_MS // 2, beat)
    assert shard.fetch()[T0] == 1 and shard.fetch("simple")[T0] == -1
    if kind == "classic":
        leave(shard, member)
    else:
        shard.beat(epoch=-1)
    shard.wait(SWEEP_MS - 1)
    assert shard.fetch()[T0] == 1
    written = shard.wait(SWEEP_MS)
    assert written[0] == Entry(Kind.OFFSET, ("g", *T0), None)
    assert len(written) > 1 and shard.listed() == [], "and the group is forgotten with them"
    assert list(shard.replayed().dump()) == []


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_offsets_of_topics_a_group_has_left_expire_while_it_lives(kind: str) -> None:
    shard = Shard({"retention_ms": SWEEP_MS})
    if kind == "classic":
        who = shard.join("g", "t")
        beat = lambda: shard.ask("heartbeat", HeartbeatRequest("g", group_instance_id=None, **who))  # noqa: E731
    else:
        who = {"member_id": "m", "generation": (epoch := shard.beat().member_epoch)}
        beat = lambda: shard.beat(epoch=epoch)  # noqa: E731
    shard.commit(spot=T0, **who)
    shard.commit(spot=U0, **who)
    _lives_on(shard, 2 * SWEEP_MS, beat)
    assert shard.fetch() == {T0: 1, ("t", 1): -1, U0: -1}


def test_a_consumer_group_that_is_used_again_counts_anew() -> None:
    shard = Shard({"retention_ms": 2 * SWEEP_MS})
    shard.commit()
    for _ in range(3):
        shard.beat()
        shard.beat(epoch=-1)
        shard.wait(2 * SWEEP_MS - 1)
        assert shard.fetch()[T0] == 1
    shard.wait(SWEEP_MS)
    assert shard.fetch()[T0] == -1


def test_what_is_committed_into_an_empty_group_is_kept_as_long() -> None:
    shard = Shard({"retention_ms": 3 * SWEEP_MS})
    member = shard.join("g", "t")
    shard.commit(**member)
    leave(shard, member)
    shard.wait(2 * SWEEP_MS)
    shard.commit(spot=U0)
    shard.wait(2 * SWEEP_MS)
    assert shard.fetch() == {T0: -1, ("t", 1): -1, U0: 1}


def test_members_of_another_protocol_keep_all_offsets() -> None:
    shard = Shard({"retention_ms": SWEEP_MS})
    member = shard.join("g", protocol_type="connect")
    shard.commit(**member)
    _lives_on(
        shard, 2 * SWEEP_MS, lambda: shard.ask("heartbeat", HeartbeatRequest("g", group_instance_id=None, **member))
    )
    assert shard.fetch()[T0] == 1


def test_many_offsets_expire_in_several_ticks() -> None:
    shard = Shard({"offsets": Offsets(), "retention_ms": RETENTION_MS})
    offsets = {("t", partition): NewOffset(1) for partition in range(2_500)}
    shard.ask("commit", CommitRequest("g", "", -1, None, offsets))
    shard.commit("h")
    shard.now += RETENTION_MS
    sizes = []
    while shard.machine.next_deadline() <= shard.now:
        sizes.append(len(shard.keep(shard.machine.tick(shard.now))))
    assert sum(sizes) == 2_501 and max(sizes) <= 1_001
    assert shard.listed() == []


def test_members_that_fall_silent_are_given_up(shard: Shard) -> None:
    shard.join("g", "t")
    shard.beat("h")
    shard.wait(60_000)
    assert [listing.state for listing in shard.listed()] == ["Empty", "Empty"]
    assert [(entry, None) for entry, _ in shard.machine.dump()] == list(shard.replayed().dump())


# --- restarts

_groups = st.sampled_from(["g", "h"])
_spots = st.sampled_from([T0, ("t", 1), U0])
_producers = st.sampled_from([5, 6])


class Restarts(RuleBasedStateMachine):
    """Offsets, transactions and members come and go; a machine made again is the same. The model is of offsets."""

    @initialize()
    def begin(self) -> None:
        self.shard = Shard()
        self.position = 0
        self.committed: dict[tuple[str, Spot], int] = {}
        """The offset of each commit is the position of its record."""
        self.pending: dict[int, dict[tuple[str, Spot], int]] = {5: {}, 6: {}}
        self.members: dict[str, dict[str, Any]] = {"g": {}, "h": {}}
        """Who is in a group: nobody, or one who joined."""
        self.shares: dict[str, int] = {}
        """The epochs of those that share."""
        self.saved: tuple[list[tuple[Entry, int | None]], int] = ([], 0)

    @rule(group=_groups, spot=_spots)
    def commit(self, group: str, spot: Spot) -> None:
        self.position += 1
        assert self.shard.commit(group, spot, self.position, **self.members[group]) is None
        self.committed[group, spot] = self.position

    @rule(group=_groups, spot=_spots, producer=_producers)
    def commit_in_transaction(self, group: str, spot: Spot, producer: int) -> None:
        self.position += 1
        self.shard.commit_in_transaction(producer, group, spot, self.position, **self.members[group])
        self.pending[producer][group, spot] = self.position

    @rule(producer=_producers, committed=st.booleans())
    def end(self, producer: int, committed: bool) -> None:
        self.shard.marker(producer, committed=committed)
        for key, position in self.pending[producer].items():
            if committed:
                self.committed[key] = max(position, self.committed.get(key, -1))
        self.pending[producer] = {}

    def forget(self, group: str, spots: Sequence[Spot]) -> None:
        for offsets in (self.committed, *self.pending.values()):
            for spot in spots:
                offsets.pop((group, spot), None)

    @rule(group=_groups, spot=_spots)
    def delete_offset(self, group: str, spot: Spot) -> None:
        if not self.members[group]:
            with suppress(PenstockError):  # there may be no such group
                self.shard.ask("delete_offsets", group, [spot])
            self.forget(group, [spot])

    @rule(group=_groups)
    def delete_group(self, group: str) -> None:
        if not self.members[group]:
            with suppress(PenstockError):
                self.shard.ask("delete", group)
            self.forget(group, [T0, ("t", 1), U0])

    @rule()
    def delete_topic(self) -> None:
        self.shard.keep(self.shard.machine.topic_deleted("t", self.shard.machine.groups_with_topics()))
        for group in ("g", "h"):
            self.forget(group, [T0, ("t", 1)])

    @rule(group=_groups, consumer=st.booleans())
    def come(self, group: str, consumer: bool) -> None:
        if not self.members[group]:
            if consumer:
                self.members[group] = {"member_id": "m", "generation": self.shard.beat(group).member_epoch}
            else:
                self.members[group] = self.shard.join(group, "t", session_timeout_ms=60_000)

    @rule(group=_groups)
    def go(self, group: str) -> None:
        member, self.members[group] = self.members[group], {}
        if member.get("member_id") == "m":
            self.shard.beat(group, epoch=-1)
        elif member:
            leave(self.shard, member, group)

    @rule(member=st.sampled_from("ab"), topic=st.sampled_from("tu"))
    def come_to_share(self, member: str, topic: str) -> None:
        self.shares[member] = self.shard.share("s", member, topics=(topic,)).member_epoch

    @rule(member=st.sampled_from("ab"))
    def go_from_sharing(self, member: str) -> None:
        if self.shares.pop(member, None) is not None:
            self.shard.share("s", member, -1)

    @rule()
    def delete_what_is_shared(self) -> None:
        if not self.shares:
            with suppress(PenstockError):
                self.shard.ask("delete", "s")

    @rule()
    def save(self) -> None:
        self.saved = list(self.shard.machine.dump()), len(self.shard.log)

    @rule(how=st.sampled_from(["log", "dump", "saved"]))
    def restart(self, how: str) -> None:
        before = self.dump(), self.shard.listed()
        if how == "log":
            self.shard.machine = self.shard.replayed()
        elif how == "dump":
            self.shard.machine = self.shard.replayed(list(self.shard.machine.dump()), len(self.shard.log))
        else:
            self.shard.machine = self.shard.replayed(*self.saved)
        assert (self.dump(), self.shard.listed()) == before

    def dump(self) -> list[tuple[Entry, int | None]]:
        return sorted(self.shard.machine.dump(), key=repr)

    @invariant()
    def offsets_are_those_of_the_model(self) -> None:
        for group in ("g", "h"):
            for stable in (False, True):
                unsettled = {spot for offsets in self.pending.values() for name, spot in offsets if name == group}
                assert self.shard.fetch(group, stable=stable) == {
                    spot: Code.UNSTABLE_OFFSET
                    if stable and spot in unsettled
                    else self.committed.get((group, spot), -1)
                    for spot in (T0, ("t", 1), U0)
                }


TestRestarts = Restarts.TestCase


def test_a_record_of_another_kind_takes_a_group_over_whatever_became_of_the_first(shard: Shard) -> None:
    """Two kinds never mix, even where the end of the first group is missing from the log."""
    shard.join("g", "t")
    classic = [entry for entry, _ in shard.machine.dump()]
    other = Shard()
    other.beat("g")
    consumer = [entry for entry, _ in other.machine.dump()]
    another = Shard()
    another.share("g")
    share = [entry for entry, _ in another.machine.dump()]
    kinds = {"classic": classic, "consumer": consumer, "share": share}
    for (_, first), (kind, second) in permutations(kinds.items(), 2):
        machine = shard.blank()
        for entry in (*first, *second):
            machine.replay(entry, 0, None, shard.now)
        assert [entry for entry, _ in machine.dump()] == second
        shard.machine = machine
        assert [listing.group_type for listing in shard.listed()] == [kind]
        for entry in first:
            machine.replay(entry._replace(value=None), 0, None, shard.now)
        assert [entry for entry, _ in machine.dump()] == second


def test_values_of_offsets_survive_with_all_they_say(shard: Shard) -> None:
    shard.ask("commit", CommitRequest("g", "", -1, None, {T0: NewOffset(7, 3, "note")}))
    shard.machine = shard.replayed()
    assert shard.ask("fetch", FetchRequest("g", None)) == {T0: OffsetValue(7, 3, "note", BEGIN)}
