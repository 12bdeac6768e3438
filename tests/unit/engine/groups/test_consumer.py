"""Consumer groups under members that come, go, subscribe, dawdle and miss answers, in any order."""

from time import perf_counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.engine.groups.consumer_world import FakeRules, FakeSight, FakeTopics, owned_by_id

from penstock.engine.coordination.schemas import GROUP_RECORDS, Entry, TopicPartitions
from penstock.engine.groups import assignors
from penstock.engine.groups.assignors import make_assignment
from penstock.engine.groups.consumer import ConsumerGroup
from penstock.engine.groups.consumer_requests import ConsumerHeartbeat, ConsumerLimits
from penstock.engine.groups.topic_patterns import TopicPatterns
from penstock.errors import Code, PenstockError

NAMES = ("apples", "pears", "plums")
CLIENTS = ("a", "b", "static-c", "static-d")
SUBSCRIPTIONS = st.sampled_from([NAMES, NAMES, NAMES[:1], NAMES[1:], ()])
LIMITS = ConsumerLimits()


class Client:
    """A member as clients behave: it takes what it is given at once, lets go when it gets round to it, reports what it
    has, and after a missed answer says everything again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.instance_id = name if name.startswith("static") else None
        self.incarnation = 0
        self.forget()
        self.away = True
        self.names: tuple[str, ...] = ()
        self.regex: str | None = None

    @property
    def member_id(self) -> str:
        return f"{self.name}-{self.incarnation}"

    def forget(self) -> None:
        self.epoch = 0
        self.owned: set = set()
        self.told: set = set()
        self.missed_an_answer = True

    def request(self, reports: bool, epoch: int | None = None) -> ConsumerHeartbeat:
        full = self.missed_an_answer or self.epoch == 0
        return ConsumerHeartbeat(
            "g",
            self.member_id,
            self.epoch if epoch is None else epoch,
            self.instance_id,
            rebalance_timeout_ms=30_000 if full else -1,
            subscribed_topic_names=self.names if full else None,
            subscribed_topic_regex=(self.regex or "") if full else None,
            topic_partitions=self.report() if reports or full else None,
        )

    def report(self) -> tuple[TopicPartitions, ...]:
        by_topic: dict = {}
        for topic_id, number in self.owned:
            by_topic.setdefault(topic_id, set()).add(number)
        return make_assignment(by_topic)


class Members(RuleBasedStateMachine):
    @initialize(counts=st.tuples(*[st.integers(1, 4)] * len(NAMES)))
    def begin(self, counts: tuple[int, ...]) -> None:
        self.topics = FakeTopics(**dict(zip(NAMES, counts, strict=True)))
        self.rights = FakeRules()
        self.clients = {name: Client(name) for name in CLIENTS}
        self.now = 0
        self.group = self.make_group()
        self.written: list[Entry] = []

    def make_group(self) -> ConsumerGroup:
        return ConsumerGroup("g", lambda: "unused", LIMITS)

    def send(self, client: Client, request: ConsumerHeartbeat, lost: bool) -> None:
        before = self.targets()
        try:
            result, entries = self.group.heartbeat(self.now, request, self.topics, sight=self.rights.sight(client.name))
        except PenstockError as error:
            if error.code not in (Code.UNKNOWN_MEMBER, Code.FENCED_MEMBER_EPOCH, Code.UNRELEASED_INSTANCE):
                raise
            if not lost:
                client.forget()
            return
        self.written += entries
        self.nobody_gets_what_is_hidden(before, client if request.member_epoch >= 0 else None)
        assert not self.names_of(result.assignment or ()) & self.hidden(client)
        client.missed_an_answer = lost
        if not lost:
            client.epoch = max(result.member_epoch, 0)
            if result.assignment is not None:
                client.told = owned_by_id(result.assignment)
                client.owned |= client.told

    def targets(self) -> dict[str, set[str]]:
        """The topics that each member is to have something of."""
        described = self.group.describe(self.topics).members
        return {member.member_id: {topic.topic_name for topic in member.target_assignment} for member in described}

    def names_of(self, assignment: tuple[TopicPartitions, ...]) -> set[str]:
        found = (self.topics.get_by_id(topic_id) for topic_id, _ in assignment)
        return {info.name for info in found if info is not None}

    def hidden(self, client: Client) -> frozenset[str]:
        """What it may not get: what it names it has been allowed to, or would not have come so far."""
        return self.rights.sight(client.name).hidden - {*client.names} if client.regex else frozenset()

    def nobody_gets_what_is_hidden(self, before: dict[str, set[str]], heard: Client | None) -> None:
        """Not even who has not been heard of since the rules have changed, or since the group was made; who is heard of
        does not keep it either."""
        targets = self.targets()
        for member in self.group.describe(self.topics).members:
            is_heard = heard is not None and member.member_id == heard.member_id
            had = set() if is_heard else before.get(member.member_id, set())
            hidden = self.rights.sight(member.member_id.rpartition("-")[0]).hidden
            if member.subscribed_topic_regex:
                assert not (targets[member.member_id] - had) & hidden - {*member.subscribed_topic_names}

    @rule(
        name=st.sampled_from(CLIENTS),
        names=SUBSCRIPTIONS,
        regex=st.sampled_from([None, None, "p.*", ".*s"]),
        lost=st.booleans(),
    )
    def join(self, name: str, names: tuple[str, ...], regex: str | None, lost: bool) -> None:
        client = self.clients[name]
        if client.away:
            client.away = False
            client.forget()
            client.names, client.regex = names, regex
            self.send(client, client.request(True), lost)

    @rule(name=st.sampled_from(CLIENTS), reports=st.booleans(), lost=st.sampled_from([False, False, True]))
    def beat(self, name: str, reports: bool, lost: bool) -> None:
        client = self.clients[name]
        if not client.away:
            self.send(client, client.request(reports), lost)

    @rule(reports=st.tuples(*[st.booleans()] * len(CLIENTS)))
    def all_beat(self, reports: tuple[bool, ...]) -> None:
        for name, reporting in zip(CLIENTS, reports, strict=True):
            self.beat(name, reporting, lost=False)

    @rule(name=st.sampled_from(CLIENTS))
    def let_go(self, name: str) -> None:
        client = self.clients[name]
        client.owned &= client.told

    @rule(
        name=st.sampled_from(CLIENTS),
        names=SUBSCRIPTIONS,
        regex=st.sampled_from([None, "p.*"]),
        lost=st.booleans(),
    )
    def resubscribe(self, name: str, names: tuple[str, ...], regex: str | None, lost: bool) -> None:
        client = self.clients[name]
        if not client.away:
            client.names, client.regex = names, regex
            client.missed_an_answer = True
            self.send(client, client.request(True), lost)

    @rule(name=st.sampled_from(CLIENTS), how=st.sampled_from(["leave", "pause", "crash"]))
    def go_away(self, name: str, how: str) -> None:
        client = self.clients[name]
        if client.away:
            return
        if how != "crash" and client.epoch:
            self.send(client, client.request(False, -2 if how == "pause" and client.instance_id else -1), lost=True)
        client.away = True
        client.forget()
        client.incarnation += 1

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 5))
    def change_topic(self, name: str, count: int) -> None:
        known = self.topics.get(name)
        if count == 0 and known:
            self.topics.remove(name)
        elif count > (known.partitions if known else 0):
            self.topics.put(name, count)

    @rule(name=st.sampled_from(CLIENTS), names=st.sampled_from([(), (), NAMES[:1], NAMES[1:2], NAMES[1:]]))
    def change_rights(self, name: str, names: tuple[str, ...]) -> None:
        self.rights.hide(name, names)

    @rule(duration_s=st.sampled_from([1, 10, 31, 46]))
    def wait(self, duration_s: int) -> None:
        self.now += duration_s * 1000
        self.written += self.group.tick(self.now, self.topics)
        members = {member.member_id for member in self.group.describe(self.topics).members}
        for client in self.clients.values():
            if client.member_id not in members:
                client.forget()  # clients give up by their own clock what the broker has taken from them

    @rule()
    def restart(self) -> None:
        before = self.group
        self.group = self.make_group()
        for entry in self.written:
            self.group.replay(entry, self.now)
        assert self.group.state == before.state

    @invariant()
    @precondition(lambda self: hasattr(self, "group"))
    def nobody_shares_a_partition(self) -> None:
        owned = [place for client in self.clients.values() for place in client.owned]
        assert len(owned) == len(set(owned)), {client.name: client.owned for client in self.clients.values()}

    @invariant()
    @precondition(lambda self: hasattr(self, "group"))
    def records_tell_everything(self) -> None:
        live = {(entry.kind, entry.key): entry.value for entry in self.group.dump()}
        for entries in (self.written, list(self.group.dump())):
            again = self.make_group()
            for entry in entries:
                decoded = GROUP_RECORDS.decode(*GROUP_RECORDS.encode(entry))
                assert decoded == entry
                again.replay(decoded, 0)
            assert {(entry.kind, entry.key): entry.value for entry in again.dump()} == live

    def teardown(self) -> None:
        """Everybody who is left keeps sending heartbeats: the group comes to rest, and nothing is left unread."""
        if not hasattr(self, "group"):
            return
        for _ in range(20):
            self.wait(5)
            for client in self.clients.values():
                if not client.away:
                    client.owned &= client.told
                    self.send(client, client.request(True), lost=False)
                    self.nobody_shares_a_partition()
        present = [client for client in self.clients.values() if not client.away]
        assert self.group.state == "Stable" if present else self.group.state in ("Empty", "Dead")
        wanted = self.wanted_by(present)
        assert {place for client in present for place in client.owned} == set(wanted)
        assert all(client.name in wanted[place] for client in present for place in client.owned)
        # Balanced: no partition could go to somebody who has fewer by two.
        owner = {place: client for client in present for place in client.owned}
        for place, names in wanted.items():
            assert all(len(owner[place].owned) - len(self.clients[name].owned) < 2 for name in names)

    def wanted_by(self, present: list[Client]) -> dict:
        wanted: dict = {}
        for client in present:
            by_regex = {"p.*": {"pears", "plums"}, ".*s": set(NAMES), None: set()}[client.regex]
            for name in sorted({*client.names} | by_regex - self.hidden(client)):
                info = self.topics.get(name)
                for number in range(info.partitions if info else 0):
                    wanted.setdefault((info.topic_id, number), set()).add(client.name)
        return wanted


TestMembers = Members.TestCase
TestMembers.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def join(group: ConsumerGroup, topics: FakeTopics, member_id: str, **fields: Any) -> tuple[Entry, ...]:
    request = ConsumerHeartbeat(
        "g",
        member_id,
        0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=("apples",),
        topic_partitions=(),
    )._replace(**fields)
    return group.heartbeat(0, request, topics)[1]


def test_a_heartbeat_with_nothing_new_writes_nothing_and_is_cheap_in_a_large_group() -> None:
    """Ten microseconds. The limit is what looking at all the members each time would take."""
    group, topics = ConsumerGroup("g", lambda: "", LIMITS), FakeTopics(apples=1000)
    for number in range(200):
        join(group, topics, f"m{number}")
    current = group.describe(topics).members[0]
    beat = ConsumerHeartbeat("g", current.member_id, current.member_epoch)
    group.heartbeat(1, beat, topics)
    epoch = next(m.member_epoch for m in group.describe(topics).members if m.member_id == current.member_id)
    report = ConsumerHeartbeat("g", current.member_id, epoch, topic_partitions=())
    epoch = group.heartbeat(2, report, topics)[0].member_epoch
    stable = ConsumerHeartbeat("g", current.member_id, epoch)
    started = perf_counter()
    for now in range(1000):
        result, entries = group.heartbeat(now, stable, topics)
        group.next_deadline()
        assert (result.member_epoch, result.assignment, entries) == (epoch, None, ())
    assert perf_counter() - started < 0.1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member_id": "m" * 250}, Code.INVALID_REQUEST),
        ({"instance_id": ""}, Code.INVALID_REQUEST),
        ({"instance_id": "i" * 250}, Code.INVALID_REQUEST),
        ({"rack_id": ""}, Code.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -2}, Code.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, Code.INVALID_REQUEST),
        ({"subscribed_topic_names": ("x" * 250,)}, Code.INVALID_REQUEST),
        ({"subscribed_topic_names": ("x",) * 10_001}, Code.INVALID_REQUEST),
        ({"subscribed_topic_names": tuple(f"{i:0>200}" for i in range(9_000))}, Code.INVALID_REQUEST),
        ({"client_id": "c" * (1 << 20)}, Code.INVALID_REQUEST),
        ({"topic_partitions": None}, Code.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, Code.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, Code.INVALID_REGEX),
        ({"member_id": "b", "instance_id": "i"}, Code.UNRELEASED_INSTANCE),
        ({"member_epoch": 1, "member_id": "b"}, Code.UNKNOWN_MEMBER),
        ({"member_epoch": -2, "instance_id": "other"}, Code.UNKNOWN_MEMBER),
        ({"member_epoch": 7}, Code.FENCED_MEMBER_EPOCH),
    ],
)
def test_what_is_refused_changes_nothing(fields, code) -> None:
    group, topics = ConsumerGroup("g", lambda: "", LIMITS), FakeTopics(apples=2)
    join(group, topics, "a", instance_id="i")
    before = list(group.dump()), group.next_deadline(), group.state
    with pytest.raises(PenstockError) as caught:
        join(group, topics, fields.pop("member_id", "a"), **fields)
    assert caught.value.code is code
    assert "'g'" in str(caught.value) or code is Code.INVALID_REGEX
    assert (list(group.dump()), group.next_deadline(), group.state) == before


def test_the_assignors_there_are_are_named() -> None:
    with pytest.raises(PenstockError, match=r"'sticky'.*range, uniform"):
        join(ConsumerGroup("g", lambda: "", LIMITS), FakeTopics(), "a", server_assignor="sticky")


def test_what_all_members_say_of_themselves_is_bounded() -> None:
    group = ConsumerGroup("g", lambda: "", LIMITS._replace(max_group_bytes=1000))
    topics = FakeTopics()
    size = 8
    for number in range(size):
        join(group, topics, f"m{number}")
    with pytest.raises(PenstockError, match="1000 are allowed") as caught:
        join(group, topics, "one too many", client_id="c" * 200)
    assert caught.value.code is Code.GROUP_FULL
    for _ in range(50):  # the same ones again are no growth
        for number in range(size):
            join(group, topics, f"m{number}", subscribed_topic_names=("pears",))
            join(group, topics, f"m{number}")
    for number in range(size):
        group.heartbeat(0, ConsumerHeartbeat("g", f"m{number}", -1), topics)
    assert join(group, topics, "again")


def test_heartbeats_ask_for_rights_only_when_something_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    group, topics, rules = ConsumerGroup("g", lambda: "", LIMITS), FakeTopics(apples=1, pears=1), FakeRules()
    asked: list[str] = []
    monkeypatch.setattr(FakeSight, "may_see", lambda sight, name: asked.append(name) or name not in sight.hidden)
    rules.hide("by regex", ["pears"])

    def beat(member_id: str, **fields: Any) -> int:
        """How many names have been asked about."""
        asked.clear()
        epochs = {member.member_id: member.member_epoch for member in group.describe(topics).members}
        request = ConsumerHeartbeat("g", member_id, epochs.get(member_id, 0))._replace(**fields)
        group.heartbeat(0, request, topics, sight=rules.sight(member_id))
        return len(asked)

    joining = {"rebalance_timeout_ms": 1000, "topic_partitions": ()}
    assert beat("by name", subscribed_topic_names=("apples",), **joining) == 0
    assert beat("by regex", subscribed_topic_regex=".*", **joining) == 2
    assert [beat(member) for member in ("by regex", "by name", "by regex")] == [0, 0, 0]
    topics.put("plums", 1)
    assert [beat(member) for member in ("by name", "by regex")] == [3, 0]
    rules.hide("by regex", ["plums"])
    assert [beat(member) for member in ("by name", "by regex")] == [3, 0]
    assert beat("by regex", member_epoch=-1) == beat("by name") == 0


def test_groups_share_what_patterns_match() -> None:
    topics, patterns = FakeTopics(apples=1), TopicPatterns()
    for name in ("g1", "g2"):
        group = ConsumerGroup(name, lambda: "", LIMITS, patterns)
        join(group, topics, "a", subscribed_topic_names=(), subscribed_topic_regex="a.*")
        assert group.subscribed_topics() == {"apples"}
    assert len(patterns._patterns) == 1


def test_who_joins_costs_what_moves_and_not_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    divided = []
    original = assignors.assign_uniform

    def watched(subscribers, partitions):
        divided.append(len(subscribers))
        return original(subscribers, partitions)

    monkeypatch.setattr("penstock.engine.groups.consumer.ASSIGNORS", {"uniform": watched})
    group, topics = ConsumerGroup("g", lambda: "", LIMITS), FakeTopics(apples=40, pears=20)

    def is_whole(count: int) -> bool:
        targets = [member.target_assignment for member in group.describe(topics).members]
        loads = [sum(len(topic.partitions) for topic in target) for target in targets]
        places = {(topic.topic_id, number) for target in targets for topic in target for number in topic.partitions}
        return len(places) == sum(loads) == count and max(loads) - min(loads) <= 1

    for number in range(6):
        join(group, topics, f"m{number}", subscribed_topic_names=("pears", "apples"))
    assert divided == [1] and is_whole(60), "all was divided once, for the first"
    group.heartbeat(1, ConsumerHeartbeat("g", "m0", -1), topics)
    join(group, topics, "m6", subscribed_topic_names=("apples", "pears"))
    assert divided == [1, 6] and is_whole(60), "what the one who left was to have is nobody's"
    topics.put("apples", 50)
    join(group, topics, "m7", subscribed_topic_names=("apples", "pears"))
    assert divided == [1, 6, 7] and is_whole(70), "topics have changed"
    join(group, topics, "m8", subscribed_topic_names=("apples",))
    assert divided == [1, 6, 7, 8], "not all read the same"
    again = ConsumerGroup("g", lambda: "", LIMITS)
    for entry in group.dump():
        again.replay(entry, 5)
    join(again, topics, "m9", subscribed_topic_names=("apples", "pears"))
    assert divided == [1, 6, 7, 8, 9]


def test_a_topic_made_again_is_another_one() -> None:
    group, topics = ConsumerGroup("g", lambda: "", LIMITS), FakeTopics(apples=1)
    join(group, topics, "a")
    topics.remove("apples")
    again = topics.put("apples", 1)
    result, _ = group.heartbeat(1, ConsumerHeartbeat("g", "a", 1, topic_partitions=()), topics)
    assert result.assignment == (TopicPartitions(again.topic_id, (0,)),)


def test_a_compacted_log_may_come_in_another_order() -> None:
    """A member's own record is newer than what it was assigned: compaction leaves it behind that."""
    group, topics = ConsumerGroup("g", lambda: "", LIMITS), FakeTopics(apples=2)
    join(group, topics, "a", instance_id="i")
    join(group, topics, "b")
    again = ConsumerGroup("g", lambda: "", LIMITS)
    for entry in reversed(list(group.dump())):
        again.replay(entry, 5)
    assert set(again.dump()) == set(group.dump())
    assert again.describe(topics) == group.describe(topics)
    beat = ConsumerHeartbeat("g", "b", 2)
    assert again.heartbeat(6, beat, topics) == group.heartbeat(6, beat, topics)
    assert again.tick(5 + LIMITS.session_timeout_ms, topics)
