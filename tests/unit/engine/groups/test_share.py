"""What share groups refuse and keep to, and that their records tell all there is of them."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.engine.groups.consumer_world import FakeTopics, owned_by_id

from penstock.engine.coordination.schemas import BegunTopic, Entry, Kind, ShareStateValue, TopicPartitions
from penstock.engine.groups.share import ShareGroup
from penstock.engine.groups.share_requests import (
    JOINING,
    LEAVING,
    ShareHeartbeat,
    ShareLimits,
    ShareStart,
    ShareTimes,
)
from penstock.errors import Code, PenstockError

ENTRIES = tuple[Entry, ...]


def make_group(limits: ShareLimits | None = None, times: ShareTimes | None = None) -> ShareGroup:
    return ShareGroup("g", limits or ShareLimits(), lambda group_id: times or ShareTimes())


def joining(member: str = "a", *topics: str, **more: Any) -> ShareHeartbeat:
    return ShareHeartbeat("g", member, JOINING, subscribed_topic_names=topics or ("orders",), **more)


@pytest.fixture
def topics() -> FakeTopics:
    return FakeTopics(orders=2)


def refused(group: ShareGroup, request: ShareHeartbeat, topics: FakeTopics, room_bytes: int = 1 << 30) -> PenstockError:
    before = list(group.dump())
    with pytest.raises(PenstockError) as caught:
        group.heartbeat(0, request, topics, room_bytes)
    assert list(group.dump()) == before
    return caught.value


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (joining(""), "member id is empty"),
        (joining(" "), "member id is empty"),
        (joining("a" * 37), "37 characters, 36 are allowed"),
        (joining(rack_id=""), "rack id is empty"),
        (joining(rack_id="r" * 250), "250 characters, 249 are allowed"),
        (ShareHeartbeat("g", "a", JOINING), "must name topics"),
        (ShareHeartbeat("g", "a", JOINING, subscribed_topic_names=()), "must name topics"),
        (ShareHeartbeat("g", "a", -2), "epoch -2 is not one"),
        (joining("a", "t" * 250), "topic name of 250 characters"),
        (joining("a", *map(str, range(10_001))), "10001 topics subscribed to, 10000 are allowed"),
    ],
)
def test_what_no_group_accepts(topics: FakeTopics, request_: ShareHeartbeat, words: str) -> None:
    error = refused(make_group(), request_, topics)
    assert error.code is Code.INVALID_REQUEST and words in str(error) and "group 'g'" in str(error)


def test_the_longest_id_is_accepted(topics: FakeTopics) -> None:
    result, _ = make_group().heartbeat(0, joining("a" * 36), topics)
    assert result.member_epoch == 1


def test_what_members_say_has_limits(topics: FakeTopics) -> None:
    long = tuple(f"{number:0>200}" for number in range(10))
    small = ShareLimits(max_member_bytes=2_000)
    error = refused(make_group(small), joining("a", *long), topics)
    assert error.code is Code.INVALID_REQUEST and "bytes, 2000 are allowed" in str(error)
    error = refused(make_group(ShareLimits(max_group_bytes=100)), joining(), topics)
    assert error.code is Code.GROUP_FULL and "100 are allowed" in str(error)


def test_what_a_group_was_given_takes_room_for_good(topics: FakeTopics) -> None:
    topics.put("many", 1_000)
    group = make_group()
    assert refused(group, joining("a", "many"), topics, room_bytes=10_000).code is Code.GROUP_FULL
    group.heartbeat(0, joining("a", "many"), topics, room_bytes=20_000)
    group.heartbeat(0, ShareHeartbeat("g", "a", LEAVING), topics)
    assert group.is_empty and group.size_bytes > 16_000
    group.heartbeat(0, joining("a", "many"), topics, room_bytes=1_000)  # it costs no more a second time
    group.heartbeat(0, ShareHeartbeat("g", "a", LEAVING), topics)
    group.delete()
    assert group.size_bytes == 0


def test_times_are_those_of_the_group_whenever_it_is_heard_of(topics: FakeTopics) -> None:
    times = {"g": ShareTimes(50_000, 7_000)}
    group = ShareGroup("g", ShareLimits(), times.__getitem__)
    assert group.heartbeat(0, joining(), topics)[0].heartbeat_interval_ms == 7_000
    assert group.next_deadline() == 50_000
    times["g"] = ShareTimes(60_000, 8_000)
    result, _ = group.heartbeat(10_000, ShareHeartbeat("g", "a", 1), topics)
    assert result.heartbeat_interval_ms == 8_000
    assert group.tick(50_000, topics) == () and not group.is_empty
    assert group.next_deadline() == 70_000
    assert group.tick(70_000, topics) and group.is_empty


def test_a_member_that_comes_with_a_new_host_is_written_down_and_changes_nothing_else(topics: FakeTopics) -> None:
    group = make_group()
    group.heartbeat(0, joining(client_host="h1"), topics)
    result, entries = group.heartbeat(0, ShareHeartbeat("g", "a", 1, client_host="h2"), topics)
    assert [entry.kind for entry in entries] == [Kind.SHARE_MEMBER] and result.member_epoch == 1


def test_a_log_that_does_not_say_when_partitions_began_leaves_their_start_open(topics: FakeTopics) -> None:
    """Kafka's own records have no such thing."""
    group, info = make_group(), topics.get("orders")
    assert info is not None
    value = ShareStateValue((), (BegunTopic(info.topic_id, "orders", (0, 1)),), ())
    group.replay(Entry(Kind.SHARE_STATE, ("g",), value), 0)
    assert group.start_of(info.topic_id, 1) == ShareStart(0, None)
    assert group.start_of(info.topic_id, 2) is None
    assert group.begun_topics() == value.initialized_topics


def test_what_begins_anew_is_remembered_by_its_last_beginning(topics: FakeTopics) -> None:
    topics.put("orders", 4)
    group, info = make_group(), topics.get("orders")
    assert info is not None
    group.heartbeat(0, joining(), topics)
    with pytest.raises(PenstockError) as refused_:
        group.restart({info: {0: 5}})
    assert refused_.value.code is Code.NON_EMPTY_GROUP
    group.heartbeat(0, ShareHeartbeat("g", "a", LEAVING), topics)
    written: list[Entry] = [*group.dump()]
    for starts in ({0: 5, 1: 5, 2: 7}, {1: 9}, {0: 6, 2: -1}):
        epoch, entries = group.restart({info: starts})
        written += entries
    restored = make_group()
    for entry in written:
        restored.replay(entry, 0)
    for each in (group, restored):
        starts_ = [each.start_of(info.topic_id, partition) for partition in range(5)]
        assert starts_ == [
            ShareStart(epoch, 6), ShareStart(epoch - 1, 9), ShareStart(epoch, None), ShareStart(1, None), None
        ]  # fmt: skip
    (begun,) = group.begun_topics()
    assert sorted(number for each in begun.beginnings for number in each.partitions) == [0, 1, 2, 3], "each once"
    epoch, _ = group.forget([info.topic_id])
    assert group.begun_topics() == () and group.start_of(info.topic_id, 0) is None
    assert group.heartbeat(0, joining(), topics)[0].member_epoch == epoch + 1
    start = group.start_of(info.topic_id, 0)
    assert start is not None and start.state_epoch > epoch, "an order to forget it that comes late is refused"


def test_what_begins_anew_has_limits(topics: FakeTopics) -> None:
    info = topics.put("many", 1_000)
    group = make_group(ShareLimits(max_group_bytes=15_000))
    for room_bytes in (1 << 30, 1_000):
        with pytest.raises(PenstockError) as caught:
            group.restart({info: dict.fromkeys(range(1_000), 0)}, room_bytes)
        assert caught.value.code is Code.GROUP_FULL and list(group.dump()) == []
    group.restart({info: dict.fromkeys(range(100), 0)}, 2_000)


class Restarts(RuleBasedStateMachine):
    """Members and topics come, change and go; the records tell all of it, and what members were last told is right."""

    names = st.sampled_from(["orders", "payments", "later"])
    members = st.sampled_from("abcde")

    @initialize()
    def begin(self) -> None:
        self.topics = FakeTopics(orders=2, payments=3)
        self.group = make_group()
        self.log: list[Entry] = []
        self.now = 0
        self.epochs: dict[str, int] = {}
        self.told: dict[str, tuple[TopicPartitions, ...]] = {}
        self.given: set[tuple[Any, int]] = set()

    def keep(self, entries: ENTRIES) -> None:
        self.log += entries

    def beat(self, request: ShareHeartbeat, lost: bool) -> None:
        try:
            result, entries = self.group.heartbeat(self.now, request, self.topics)
        except PenstockError as error:
            if error.code not in (Code.UNKNOWN_MEMBER, Code.FENCED_MEMBER_EPOCH):
                raise
            self.epochs.pop(request.member_id, None)
            self.told.pop(request.member_id, None)
            return
        self.keep(entries)
        if result.assignment is not None:
            self.given |= owned_by_id(result.assignment)
        if lost:
            return
        self.epochs[request.member_id] = result.member_epoch
        if result.assignment is not None:
            self.told[request.member_id] = result.assignment

    @rule(member=members, names=st.sets(names, min_size=1), lost=st.booleans())
    def join(self, member: str, names: set[str], lost: bool) -> None:
        self.beat(joining(member, *names), lost)

    @rule(member=members, lost=st.booleans())
    def stay(self, member: str, lost: bool) -> None:
        if member in self.epochs:
            self.beat(ShareHeartbeat("g", member, self.epochs[member]), lost)

    @rule(member=members, names=st.sets(names))
    def subscribe(self, member: str, names: set[str]) -> None:
        if member in self.epochs:
            request = ShareHeartbeat("g", member, self.epochs[member], subscribed_topic_names=tuple(names))
            self.beat(request, lost=False)

    @rule(member=members)
    def leave(self, member: str) -> None:
        if member in self.epochs:
            self.beat(ShareHeartbeat("g", member, LEAVING), lost=False)
            self.epochs.pop(member, None)
            self.told.pop(member, None)

    @rule(name=names, more=st.integers(1, 3))
    def grow(self, name: str, more: int) -> None:
        known = self.topics.get(name)
        self.topics.put(name, more + (known.partitions if known else 0))

    @rule(name=names)
    def drop(self, name: str) -> None:
        if (info := self.topics.get(name)) is not None:
            self.topics.remove(name)
            self.keep(self.group.forget_topic(name, self.topics))
            self.given = {place for place in self.given if place[0] != info.topic_id}

    @rule(seconds=st.sampled_from([1, 20, 50]))
    def wait(self, seconds: int) -> None:
        self.now += seconds * 1000
        self.keep(self.group.tick(self.now, self.topics))

    @rule()
    def restart(self) -> None:
        self.group = self.replayed()

    @precondition(lambda self: self.group.is_empty)
    @rule()
    def delete(self) -> None:
        self.keep(self.group.delete())
        assert self.group.is_dead and self.group.size_bytes == 0
        self.epochs, self.told, self.given = {}, {}, set()

    def replayed(self) -> ShareGroup:
        group = make_group()
        for entry in self.log:
            group.replay(entry, self.now)
        return group

    @invariant()
    def records_tell_it_all(self) -> None:
        again = self.replayed()
        assert set(again.dump()) == set(self.group.dump())
        assert again.describe(self.topics) == self.group.describe(self.topics)
        assert (again.state, again.size_bytes) == (self.group.state, self.group.size_bytes)

    @invariant()
    def what_was_given_is_remembered(self) -> None:
        for topic_id, number in self.given:
            assert self.group.start_of(topic_id, number) is not None

    @rule()
    def settle(self) -> None:
        """Once all have been heard of twice, each knows what it takes from, and all subscribed to has takers."""
        for _ in range(2):
            for member in list(self.epochs):
                self.beat(ShareHeartbeat("g", member, self.epochs[member]), lost=False)
        described = {member.member_id: member for member in self.group.describe(self.topics).members}
        for member, told in self.told.items():
            assert owned_by_id(told) == {
                (topic.topic_id, number) for topic in described[member].assignment for number in topic.partitions
            }
        if described.keys() == self.epochs.keys():
            infos = [info for name in self.group.subscribed_topics() if (info := self.topics.get(name)) is not None]
            wanted = {(info.topic_id, number) for info in infos for number in range(info.partitions)}
            assert set().union(*map(owned_by_id, self.told.values())) == wanted


TestRestarts = Restarts.TestCase
