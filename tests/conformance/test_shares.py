"""Share groups (KIP-932) with every client that knows them: what is given to whom, how often, what becomes of it."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.peers.broker import Broker

from .clients import Admin, JavaClient
from .clients.admin import GROUP, SET, Change
from .clients.client import DEADLINE_S
from .clients.confluent_shares import ConfluentShareMember, DoomedShareMember
from .clients.groups import wait_until
from .clients.java_shares import JavaShareMember
from .clients.members_groups import _wait_for_coordinator
from .clients.producers_transactions import Producers
from .clients.shares import ACCEPT, EXPLICIT, IMPLICIT, REJECT, RELEASE, RENEW, ShareMember, Taken
from .conftest import Admins, Judges, fresh_name
from .records import CODECS, Record

NAMES = ("java", "confluent")
BOTH = pytest.mark.parametrize("name", NAMES)
BAD_STATE = 121
RESET = "share.auto.offset.reset"
_POLL_S = 0.3


class Sharers:
    """The share consumers of one case; they are closed when it ends."""

    def __init__(self, broker: Broker, judges: Judges, admin: Admin) -> None:
        self._bootstrap = broker.bootstrap
        self._judges = judges
        self._admin = admin
        self._joined: list[ShareMember] = []
        self._machines: list[JavaClient] = []

    def group(self, stem: str, **settings: str) -> str:
        """A group that begins at the first record of each topic; `settings` with _ in place of dots."""
        group = fresh_name(stem)
        named = {name.replace("_", "."): value for name, value in settings.items()}
        given = {RESET: "earliest", **named}
        self._admin.alter(group, *(Change(SET, name, value) for name, value in given.items()), kind=GROUP)
        return group

    def join(self, name: str, group: str, topic: str, mode: str = EXPLICIT, **options: Any) -> ShareMember:
        made: ShareMember
        if name == "java":
            client = self._judges["java"]
            assert isinstance(client, JavaClient)
            made = JavaShareMember(client, group, topic, mode, **options)
        else:
            made = ConfluentShareMember(self._bootstrap, group, topic, mode, **options)
        self._joined.append(made)
        return made

    def join_doomed(self, name: str, group: str, topic: str) -> ShareMember:
        """One that can crash."""
        if name != "java":
            made: ShareMember = DoomedShareMember(self._bootstrap, group, topic, EXPLICIT)
        else:
            client = JavaClient(self._bootstrap)
            self._machines.append(client)
            made = JavaShareMember(client, group, topic, EXPLICIT)
        return made

    def leave(self, member: ShareMember) -> None:
        self._joined.remove(member)
        member.leave()

    def close(self) -> None:
        for member in self._joined:
            with contextlib.suppress(Exception):  # one that failed has told so
                member.leave()
        for machine in self._machines:
            machine.kill()


@pytest.fixture
def sharers(broker: Broker, judges: Judges, admins: Admins) -> Iterator[Sharers]:
    _wait_for_coordinator(broker.bootstrap)
    made = Sharers(broker, judges, admins.java)
    yield made
    made.close()


@pytest.fixture
def filled(judges: Judges, new_topic: Callable[..., str]) -> Callable[..., str]:
    """A topic with so many records in each partition: values are numbers."""

    def make(count: int, *, partitions: int = 1, codec: str = "none") -> str:
        topic = new_topic("shared", partitions=partitions)
        for partition in range(partitions):
            judges["confluent"].produce(topic, partition, [Record(b"%d" % each) for each in range(count)], codec=codec)
        return topic

    return make


def take(member: ShareMember, count: int, kind: int | None = ACCEPT) -> list[Taken]:
    """Poll until there are so many records, acknowledging each as it comes; None: by the next poll."""
    found: list[Taken] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        polled = member.poll(_POLL_S)
        found += polled
        if kind is not None:
            for each in polled:
                member.acknowledge(each, kind)
    return found


def hold(member: ShareMember, count: int) -> list[Taken]:
    """So many records, which come at once; nothing is said of them yet."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := member.poll(_POLL_S)):
        assert time.monotonic() < deadline, "no record came"
    assert len(found) == count
    return found


def nothing(member: ShareMember, polls: int = 3) -> None:
    for _ in range(polls):
        assert member.poll(_POLL_S) == []


def places(taken: list[Taken]) -> list[tuple[int, int]]:
    return sorted((each.partition, each.offset) for each in taken)


@BOTH
def test_what_is_polled_again_accepts_what_was_polled_before(
    sharers: Sharers, filled: Callable[..., str], name: str
) -> None:
    topic, group = filled(50, partitions=3), sharers.group("implicit")
    member = sharers.join(name, group, topic, IMPLICIT)
    found = take(member, 150, None)
    assert places(found) == [(partition, offset) for partition in range(3) for offset in range(50)]
    assert all(each.value == b"%d" % each.offset and each.deliveries == 1 for each in found)
    nothing(member, 1)
    sharers.leave(member)
    nothing(sharers.join(name, group, topic, IMPLICIT))
    assert len(take(sharers.join(name, sharers.group("another"), topic, IMPLICIT), 150, None)) == 150


@BOTH
def test_each_record_has_a_fate_of_its_own(sharers: Sharers, filled: Callable[..., str], name: str) -> None:
    topic, group = filled(30), sharers.group("explicit")
    member = sharers.join(name, group, topic)
    kinds = (ACCEPT, RELEASE, REJECT)
    for each in hold(member, 30):
        member.acknowledge(each, kinds[each.offset % 3])
    assert member.commit() == {0: 0}
    again = take(member, 10)
    assert [(each.offset % 3, each.deliveries) for each in again] == [(1, 2)] * 10
    assert member.commit() == {0: 0}
    nothing(member)


@BOTH
def test_the_delivery_count_ends(sharers: Sharers, filled: Callable[..., str], name: str) -> None:
    topic, group = filled(3), sharers.group("counted")
    member = sharers.join(name, group, topic)
    found = take(member, 15, RELEASE)
    for offset in range(3):
        assert [each.deliveries for each in found if each.offset == offset] == [1, 2, 3, 4, 5]
    member.commit()
    nothing(member)


@BOTH
def test_who_leaves_gives_back_what_it_had(sharers: Sharers, filled: Callable[..., str], name: str) -> None:
    topic, group = filled(20), sharers.group("leaving")
    member, other = sharers.join(name, group, topic), sharers.join(name, group, topic)
    found = hold(member, 20)
    for each in found[:5]:
        member.acknowledge(each, ACCEPT)
    nothing(other, 1)
    sharers.leave(member)
    again = take(other, 15)
    assert places(again) == [(0, offset) for offset in range(5, 20)]
    assert {each.deliveries for each in again} == {2}


@BOTH
def test_who_crashes_gives_back_what_it_had(sharers: Sharers, filled: Callable[..., str], name: str) -> None:
    topic, group = filled(20), sharers.group("crashing")
    doomed = sharers.join_doomed(name, group, topic)
    hold(doomed, 20)
    member = sharers.join(name, group, topic)
    nothing(member, 1)
    begun = time.monotonic()
    doomed.crash()
    again = take(member, 20)
    assert places(again) == [(0, offset) for offset in range(20)]
    assert {each.deliveries for each in again} == {2}
    assert time.monotonic() - begun < 15, "long before its locks ended"


def test_two_share_one_partition(sharers: Sharers, judges: Judges, new_topic: Callable[..., str]) -> None:
    topic, group = new_topic("shared"), sharers.group("two")
    members = [sharers.join(name, group, topic, most=100) for name in NAMES]
    sent = 0
    for _ in range(10):
        judges["confluent"].produce(topic, 0, [Record(b"%d" % each) for each in range(sent, sent + 200)])
        sent += 200
    found: list[list[Taken]] = [[], []]

    def is_all() -> bool:
        for member, taken in zip(members, found, strict=True):
            polled = member.poll(_POLL_S)
            taken += polled
            for each in polled:
                member.acknowledge(each, ACCEPT)
        return sum(map(len, found)) >= sent

    wait_until(is_all, lambda: f"{[len(each) for each in found]} of {sent}")
    assert places(found[0] + found[1]) == [(0, offset) for offset in range(sent)], "each went to one of them"
    assert min(map(len, found)) >= 100
    assert {each.deliveries for each in found[0] + found[1]} == {1}
    assert [member.commit() for member in members] and all(each.value == b"%d" % each.offset for each in found[0])


def test_not_one_record_too_many(sharers: Sharers, filled: Callable[..., str]) -> None:
    topic, group = filled(100), sharers.group("limited")
    member = sharers.join("java", group, topic, most=7, limit=True)
    other = sharers.join("java", group, topic, most=1000)
    first = take(member, 1)
    assert len(first) == 7
    rest = take(other, 93)
    assert places(first + rest) == [(0, offset) for offset in range(100)]


@BOTH
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(sharers: Sharers, filled: Callable[..., str], name: str, codec: str) -> None:
    topic, group = filled(300, codec=codec), sharers.group(codec)
    found = take(sharers.join(name, group, topic, most=50), 300)
    assert places(found) == [(0, offset) for offset in range(300)]
    assert all(each.value == b"%d" % each.offset for each in found)


@BOTH
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_what_was_aborted(
    sharers: Sharers, broker: Broker, judges: Judges, new_topic: Callable[..., str], name: str, level: str
) -> None:
    topic, group = new_topic("transactions"), sharers.group(level, share_isolation_level=level)
    with Producers("confluent", broker.bootstrap, judges) as producers:
        producer = producers.open(fresh_name("tx"))
        for value, committed in ((b"a", True), (b"b", False), (b"c", True)):
            producer.begin()
            producer.send(topic, 0, value, value)
            if committed:
                producer.commit()
            else:
                producer.abort()
    judges["confluent"].produce(topic, 0, [Record(b"d")])
    wanted = [b"a", b"a", b"c", b"c", b"d"] if level == "read_committed" else [b"a", b"a", b"b", b"b", b"c", b"c", b"d"]
    member = sharers.join(name, group, topic)
    assert [each.value for each in sorted(take(member, len(wanted)), key=lambda each: each.offset)] == wanted
    assert member.commit() == {0: 0}
    nothing(member)


@BOTH
def test_holes_that_compaction_has_left(
    sharers: Sharers, judges: Judges, new_topic: Callable[..., str], name: str
) -> None:
    topic = new_topic(
        "compacted",
        **{
            "cleanup.policy": "compact",
            "segment.bytes": "1048576",
            "segment.ms": "500",
            "min.cleanable.dirty.ratio": "0.001",
            "max.compaction.lag.ms": "500",
        },
    )
    judges["confluent"].produce(topic, 0, [Record(b"%d" % each, b"%d" % (each % 7)) for each in range(400)])
    time.sleep(0.6)
    judges["confluent"].produce(topic, 0, [Record(b"end", b"end")])
    wait_until(
        lambda: judges["java"].read(topic, 0, 0, 1, reset="earliest")[0].offset > 300, lambda: "nothing is compacted"
    )
    member = sharers.join(name, sharers.group("compacted"), topic)
    found = take(member, 8)
    assert places(found) == [(0, offset) for offset in range(393, 401)]
    assert member.commit() == {0: 0}
    judges["confluent"].produce(topic, 0, [Record(b"more", b"more")])
    assert places(take(member, 1)) == [(0, 401)]


@pytest.mark.slow
def test_locks_end_and_are_kept(sharers: Sharers, filled: Callable[..., str]) -> None:
    """Java's is the only client that keeps records for longer; it gives them out once more then, by itself."""
    topic, group = filled(4), sharers.group("locked", share_record_lock_duration_ms="15000")
    keeping, losing = (sharers.join("java", group, topic, most=2, limit=True) for _ in range(2))
    kept, kept_since = hold(keeping, 2), time.monotonic()
    lost, lost_since = hold(losing, 2), time.monotonic()
    other = sharers.join("confluent", group, topic)
    while time.monotonic() - kept_since < 10:
        nothing(other, 1)
    for each in kept:
        keeping.acknowledge(each, RENEW)
    assert keeping.commit() == {0: 0}
    assert places(hold(keeping, 2)) == places(kept)
    again = take(other, 2)
    assert 14 < time.monotonic() - lost_since < 20
    assert places(again) == places(lost) and {each.deliveries for each in again} == {2}
    for each in kept:
        keeping.acknowledge(each, ACCEPT)
    assert keeping.commit() == {0: 0}
    for each in lost:
        losing.acknowledge(each, ACCEPT)
    assert losing.commit() == {0: BAD_STATE}
