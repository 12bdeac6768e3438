"""A classic group under whatever members do: laws that hold in every order of events, and its edges."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.coordination.outcome import Outcome
from penstock.engine.coordination.schemas import GROUP_RECORDS, Entry
from penstock.engine.groups.classic import (
    ClassicGroup,
    GroupLimits,
    HeartbeatRequest,
    JoinRequest,
    JoinResult,
    LeavingMember,
    MemberIdRequired,
    SyncRequest,
    SyncResult,
)
from penstock.engine.groups.classic_member import MOST_TOPICS, decode_all, decode_topics
from penstock.errors import Code, PenstockError

GROUP = "g"
SESSION_MS, REBALANCE_MS = 10_000, 20_000
ROUND_MS = 400


def subscription(*topics: str) -> bytes:
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return (0).to_bytes(2, "big") + len(topics).to_bytes(4, "big") + names + b"user data"


def join_request(client: str = "a", member_id: str = "", **changes: Any) -> JoinRequest:
    request = JoinRequest(
        GROUP, member_id, None, client, "/::1", "consumer", (("range", b"x"),), SESSION_MS, REBALANCE_MS, False
    )
    return request._replace(**changes)


def make_group(limits: GroupLimits | None = None) -> ClassicGroup:
    ids = count(1)
    return ClassicGroup(GROUP, lambda: str(next(ids)), limits or GroupLimits())


def refused(code: Code) -> Any:
    return pytest.raises(PenstockError, check=lambda error: error.code is code)


# --- any order of events


@dataclass
class Client:
    """A client that does what it should, as long as it is asked to."""

    name: str
    instance_id: str | None
    version: int
    life: int = 0
    member_id: str = ""
    generation: int = -1
    assigned: bool = False
    members: tuple[str, ...] = ()
    """To assign to, when it leads."""
    waits: bool = False
    metadata: int = 0

    def forget(self) -> None:
        self.generation, self.assigned, self.members, self.waits = -1, False, (), False


@dataclass
class GroupAndClients:
    """Clients around one group, and what must never happen."""

    group: ClassicGroup = field(default_factory=make_group)
    now: int = 0
    clients: list[Client] = field(
        default_factory=lambda: [Client("a", None, 9), Client("b", None, 3), Client("c", "i", 9), Client("d", "j", 8)]
    )
    records: list[Entry] = field(default_factory=list)
    open: set[tuple[int, int, int]] = field(default_factory=set)
    tokens: Any = field(default_factory=count)
    assigning: dict[int, str] = field(default_factory=dict)
    """Who was told to assign, by generation."""

    def token(self, who: int) -> tuple[int, int, int]:
        token = (who, self.clients[who].life, next(self.tokens))
        self.open.add(token)
        return token

    def take(self, outcome: Outcome) -> None:
        for entry in outcome.records:
            assert GROUP_RECORDS.decode(*GROUP_RECORDS.encode(entry)) == entry
            self.records.append(entry)
        for reply in outcome.replies:
            assert reply.to in self.open, "answered twice, or somebody who did not ask"
            self.open.remove(reply.to)
            who, life, _ = reply.to
            if isinstance(reply.answer, JoinResult):
                self._check_joined(reply.answer)
            elif isinstance(reply.answer, SyncResult):
                self._check_assigned(reply.answer)
            if life == self.clients[who].life:
                self._told(self.clients[who], reply.answer)
        self._check_durable()

    def _check_joined(self, answer: JoinResult) -> None:
        assert answer.generation == self.group.generation
        if answer.members and not answer.skip_assignment:
            assert answer.leader == answer.member_id
            assert self.assigning.setdefault(answer.generation, answer.member_id) == answer.member_id

    def _check_assigned(self, answer: SyncResult) -> None:
        assert answer.assignment in (b"", b"%d" % self.group.generation), "an assignment of another generation"

    def _check_durable(self) -> None:
        again = make_group()
        for entry in self.records:
            again.replay(entry.value, self.now)
        dumped = make_group()
        if (entry := self.group.dump()) is not None:
            dumped.replay(entry.value, self.now)
        assert again.dump() == self.group.dump()
        assert again.describe() == dumped.describe()
        assert again.generation <= self.group.generation
        if self.group.state == "Stable" or (self.group.is_empty and self.records):
            assert again.describe() == self.group.describe()

    def _told(self, client: Client, answer: Any) -> None:
        client.waits = False
        if isinstance(answer, MemberIdRequired):
            client.member_id = answer.member_id
        elif isinstance(answer, PenstockError):
            client.forget()
            if answer.code in (Code.UNKNOWN_MEMBER, Code.FENCED_INSTANCE):
                client.member_id = ""
        elif isinstance(answer, JoinResult):
            client.forget()
            client.member_id, client.generation = answer.member_id, answer.generation
            if not answer.skip_assignment:
                client.members = tuple(member.member_id for member in answer.members)
        else:
            client.assigned = True

    # --- what happens

    def join(self, who: int) -> None:
        client = self.clients[who]
        request = join_request(
            client.name,
            client.member_id,
            group_instance_id=client.instance_id,
            protocols=(("range", subscription(f"t{client.metadata}")), ("sticky", b"")),
            requires_known_member_id=client.version >= 4,
            supports_skipping_assignment=client.version >= 9,
        )
        client.waits = True
        self._ask(client, lambda token: self.group.join(self.now, token, request), who)

    def sync(self, who: int) -> None:
        client = self.clients[who]
        assignments = tuple((member_id, b"%d" % client.generation) for member_id in client.members)
        request = SyncRequest(
            GROUP, client.generation, client.member_id, client.instance_id, "consumer", None, assignments
        )
        client.waits = True
        self._ask(client, lambda token: self.group.sync(self.now, token, request), who)

    def _ask(self, client: Client, step: Any, who: int) -> None:
        token = self.token(who)
        try:
            self.take(step(token))
        except PenstockError as error:
            self.open.remove(token)
            self._told(client, error)

    def heartbeat(self, who: int) -> None:
        client = self.clients[who]
        request = HeartbeatRequest(GROUP, client.generation, client.member_id, client.instance_id)
        try:
            self.group.heartbeat(self.now, request)
        except PenstockError as error:
            self._told(client, error)

    def poll(self, who: int) -> None:
        client = self.clients[who]
        if client.waits:
            return
        if client.generation < 0:
            self.join(who)
        elif not client.assigned:
            self.sync(who)
        else:
            self.heartbeat(who)

    def change(self, who: int) -> None:
        self.clients[who].metadata += 1
        self.join(who)

    def leave(self, who: int) -> None:
        client = self.clients[who]
        results, outcome = self.group.leave(self.now, (LeavingMember(client.member_id, client.instance_id),))
        assert len(results) == 1
        self.take(outcome)
        self.restart(who)

    def restart(self, who: int) -> None:
        client = self.clients[who]
        client.forget()
        client.life += 1
        client.member_id = ""

    def crash(self, who: int) -> None:
        self.group = make_group_after(self.tokens)
        for entry in self.records:
            self.group.replay(entry.value, self.now)
        self.open.clear()
        self.assigning = {n: leader for n, leader in self.assigning.items() if n <= self.group.generation}
        for client in self.clients:
            client.waits = False
            client.generation = min(client.generation, self.group.generation)

    def wait(self, duration_ms: int) -> None:
        until = self.now + duration_ms
        while (due := self.group.next_deadline()) is not None and due <= until:
            self.now = max(due, self.now)
            self.take(self.group.tick(self.now))
        self.now = until
        due = self.group.next_deadline()
        assert due is None or due > self.now

    def settled(self) -> bool:
        return (
            self.group.state == "Stable"
            and all(client.assigned and client.generation == self.group.generation for client in self.clients)
            and {member.member_id for member in self.group.describe().members}
            == {client.member_id for client in self.clients}
        )


def make_group_after(numbers: Any) -> ClassicGroup:
    """Member ids are unique across crashes."""
    return ClassicGroup(GROUP, lambda: f"again-{next(numbers)}")


EVENTS = ("poll", "poll", "poll", "join", "sync", "heartbeat", "change", "leave", "restart", "crash")
events = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.integers(0, 3))
    | st.tuples(st.just("wait"), st.sampled_from([100, 700, 7000])),
    max_size=60,
)


@settings(deadline=None)
@given(events)
def test_whatever_happens_all_who_go_on_meet_in_one_generation(happens: list[tuple[str, int]]) -> None:
    world = GroupAndClients()
    for event, number in happens:
        getattr(world, event)(number)
    for _ in range(300):  # two minutes: sessions and rebalance time-outs of those who are gone are shorter
        for who in range(len(world.clients)):
            world.poll(who)
        world.wait(ROUND_MS)
        if world.settled():
            return
    raise AssertionError(f"not settled: {world.group.describe()} {world.clients}")


# --- bounds


def test_many_joins_of_one_client_are_bounded_and_refused() -> None:
    group = make_group(GroupLimits(max_size=500))
    answers = [group.join(0, token, join_request(requires_known_member_id=True)) for token in range(250)]
    assert all(isinstance(outcome.replies[0].answer, MemberIdRequired) for outcome in answers)
    for token in range(250, 500):
        group.join(0, token, join_request())
    for token in range(500, 10_000):
        with refused(Code.GROUP_FULL):
            group.join(0, token, join_request(requires_known_member_id=token % 2 == 0))
    assert len(group.describe().members) == 250


def test_a_member_cannot_say_more_than_its_limit() -> None:
    group = make_group(GroupLimits(max_member_bytes=1000))
    with refused(Code.LIMIT_EXCEEDED):
        group.join(0, 1, join_request(protocols=(("range", b"x" * 1000),)))
    with refused(Code.LIMIT_EXCEEDED):
        group.join(0, 1, join_request(protocols=tuple((str(n), b"") for n in range(10))))


def test_members_together_cannot_say_more_than_the_groups_limit() -> None:
    group = make_group(GroupLimits(max_group_bytes=2000))
    protocols = (("range", b"x" * 700),)
    for token in range(2):
        group.join(0, token, join_request(protocols=protocols))
    with refused(Code.GROUP_FULL):
        group.join(0, 2, join_request(protocols=protocols))
    group.leave(0, (LeavingMember("a-1", None),))
    group.join(0, 3, join_request(protocols=protocols))
    group.join(0, 4, join_request(member_id="a-2", protocols=protocols))


def test_a_leader_cannot_assign_more_than_the_groups_limit() -> None:
    group = make_group(GroupLimits(max_group_bytes=2000))
    group.join(0, 1, join_request())
    group.tick(300)
    request = SyncRequest(GROUP, 1, "a-1", None, None, None, (("a-1", b"x" * 2001),))
    with refused(Code.LIMIT_EXCEEDED):
        group.sync(300, 2, request)
    group.sync(300, 3, request._replace(assignments=(("a-1", b"x" * 2000), ("nobody", b""))))
    assert [member.member_id for member in group.describe().members] == ["a-1"]


@pytest.mark.parametrize(
    "change",
    [
        {"group_instance_id": "i" * 250},
        {"protocol_type": "t" * 250},
        {"protocols": (("p" * 250, b""),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_names_that_would_not_fit_a_record_are_refused(change: dict[str, Any]) -> None:
    with refused(Code.INVALID_REQUEST):
        make_group().join(0, 1, join_request(**change))


def test_a_long_client_name_does_not_make_a_long_member_id() -> None:
    group = make_group()
    group.join(0, 1, join_request("x" * 30_000))
    assert len(group.describe().members[0].member_id) < 250


# --- edges


def test_a_negative_rebalance_timeout_is_the_sessions() -> None:
    group = make_group(GroupLimits(initial_rebalance_delay_ms=0))
    group.join(0, 1, join_request(rebalance_timeout_ms=-1))
    group.tick(0)
    group.sync(0, 2, SyncRequest(GROUP, 1, "a-1", None, None, None, ()))
    entry = group.dump()
    assert entry is not None
    assert entry.value.members[0].rebalance_timeout == SESSION_MS


def test_without_a_rebalance_timeout_there_is_still_time_to_sync() -> None:
    group = make_group()
    group.join(0, 1, join_request(rebalance_timeout_ms=0))
    group.tick(300)
    group.tick(300)
    group.sync(301, 2, SyncRequest(GROUP, 1, "a-1", None, None, None, ()))
    assert group.state == "Stable"


def test_a_group_of_its_own_kind_has_no_known_topics() -> None:
    group = make_group()
    assert group.subscribed_topics() is None
    group.join(0, 1, join_request(protocol_type="connect", protocols=(("default", subscription("t")),)))
    assert group.subscribed_topics() is None


def test_topics_of_consumers_are_those_of_the_chosen_protocol() -> None:
    group = make_group()
    group.join(0, 1, join_request(protocols=(("range", subscription("t1", "t2")), ("sticky", subscription("t9")))))
    group.join(0, 2, join_request(protocols=(("sticky", subscription("t8")), ("range", subscription("t2", "t3")))))
    group.tick(300)
    group.tick(600)
    assert group.subscribed_topics() == {"t1", "t2", "t3"}
    group.leave(600, (LeavingMember("a-1", None), LeavingMember("a-2", None)))
    assert group.subscribed_topics() == frozenset()


def test_topics_are_unknown_when_one_consumer_speaks_in_its_own_way() -> None:
    group = make_group()
    group.join(0, 1, join_request(protocols=(("range", subscription("t1")),)))
    group.join(0, 2, join_request(protocols=(("range", b"?"),)))
    assert group.subscribed_topics() is None


@given(st.binary(max_size=40))
def test_any_metadata_is_topics_or_none(metadata: bytes) -> None:
    found = decode_topics(metadata)
    assert found is None or all(topic.encode() in metadata[: found[1]] for topic in found[0])


@pytest.mark.parametrize("cut", range(len(subscription("t1", "t2")) - len(b"user data")))
def test_half_a_subscription_has_no_topics(cut: int) -> None:
    assert decode_topics(subscription("t1", "t2")[:cut]) is None


def test_more_topics_than_a_broker_holds_are_not_looked_at() -> None:
    assert decode_topics(subscription(*map(str, range(MOST_TOPICS)))) is not None
    assert decode_topics(subscription(*map(str, range(MOST_TOPICS + 1)))) is None


def test_members_that_read_the_same_are_looked_at_once() -> None:
    """A hundred thousand names are looked at for one group and no more, however many members say them."""
    same = [subscription(*map(str, range(5_000))) + bytes([number]) for number in range(100)]
    assert decode_all(same) == set(map(str, range(5_000)))
    different = [subscription(*(f"{number}-{at}" for at in range(5_000))) for number in range(21)]
    assert len(decode_all(different[:20]) or ()) == 100_000
    assert decode_all(different) is None
    assert decode_all([b"never", subscription("t")]) is None


@pytest.mark.parametrize(("topics", "state"), [(("t1",), "Stable"), (("t1", "t2"), "PreparingRebalance")])
def test_a_static_member_back_with_other_topics_gets_a_rebalance(topics: tuple[str, ...], state: str) -> None:
    group = make_group()
    before = join_request(group_instance_id="i", protocols=(("range", subscription("t1")),))
    group.join(0, 1, before)
    group.join(0, 2, join_request(group_instance_id="j", protocols=(("range", subscription("t5")),)))
    group.tick(300)
    group.tick(600)
    group.sync(600, 3, SyncRequest(GROUP, 1, "i-1", "i", None, None, ()))
    group.sync(600, 4, SyncRequest(GROUP, 1, "j-2", "j", None, None, ()))
    group.join(600, 5, before._replace(protocols=(("range", subscription(*topics) + b"owned before"),)))
    assert group.state == state


def test_refusals_name_group_and_member() -> None:
    with pytest.raises(PenstockError, match=r"'g'.*'nobody-1'"):
        make_group().heartbeat(0, HeartbeatRequest(GROUP, 1, "nobody-1", None))


def test_a_tombstone_takes_the_group_back() -> None:
    group = make_group()
    group.join(0, 1, join_request())
    group.tick(300)
    group.leave(300, (LeavingMember("a-1", None),))
    assert group.dump() is not None
    group.replay(None, 300)
    assert group.dump() is None
    assert group.describe() == make_group().describe()
