"""Members share a topic, come, go and crash, with every client's consumers; no record is lost or read twice."""

import functools
import itertools
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.peers.broker import Broker

from .clients.client import DEADLINE_S
from .clients.groups import SESSION_MS, Committed, Member, Place, wait_until
from .clients.members_groups import COOPERATIVE, FLAVOURS, PLAIN, Members, places_of, settle
from .conftest import PEER, Judges, fresh_name
from .records import Record

PARTITIONS = 6


class Feed:
    """Writes numbered records to every partition of a topic and knows who has to get them."""

    def __init__(self, judges: Judges, topic: str) -> None:
        self.topic = topic
        self._judges = judges
        self._numbers = itertools.count()
        self.sent: dict[Place, list[bytes]] = {place: [] for place in places_of(topic, PARTITIONS)}

    def write(self, each: int = 5) -> None:
        for (topic, partition), sent in self.sent.items():
            values = [b"%d:%d" % (partition, next(self._numbers)) for _ in range(each)]
            self._judges["confluent"].produce(topic, partition, [Record(value) for value in values])
            sent.extend(values)

    def total(self) -> int:
        return sum(map(len, self.sent.values()))


def got_everything(feed: Feed, *members: Member) -> None:
    """Wait for all that was sent so far, and see that each record came once."""

    def counted() -> Counter[bytes]:
        return Counter(value for member in members for value in member.values())

    wanted = Counter(value for sent in feed.sent.values() for value in sent)
    wait_until(lambda: counted().total() >= wanted.total(), lambda: f"missing {sorted(wanted - counted())}")
    assert counted() == wanted, "each record once"


def stable_phase(feed: Feed, working: Sequence[Member], gone: Sequence[Member] = ()) -> None:
    """While nobody comes or goes, each record reaches the owner of its partition; then all commit."""
    settle(working, feed.sent)
    owned = [each.assigned for each in working]
    before = [len(each.received) for each in working]
    feed.write()
    got_everything(feed, *working, *gone)
    for member, places, count in zip(working, owned, before, strict=True):
        assert {each.place for each in member.received[count:]} == places
        member.commit()


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_members_come_and_go(members: Members, judges: Judges, new_topic: Callable[..., str], flavour: str) -> None:
    topic, group = new_topic("shared", partitions=PARTITIONS), fresh_name("come-and-go")
    feed = Feed(judges, topic)
    first = members.join(flavour, group, topic)
    second = members.join(flavour, group, topic)
    stable_phase(feed, [first, second])
    third = members.join(flavour, group, topic)
    stable_phase(feed, [first, second, third])
    members.leave(first)
    stable_phase(feed, [second, third], gone=[first])
    members.leave(third)
    stable_phase(feed, [second], gone=[first, third])


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_five_join_at_once(members: Members, new_topic: Callable[..., str], flavour: str) -> None:
    topic, group = new_topic("crowd", partitions=PARTITIONS), fresh_name("crowd")
    crowd = [members.join(flavour, group, topic) for _ in range(5)]
    settle(crowd, places_of(topic, PARTITIONS))


def _values_of(member: Member, place: Place) -> list[bytes]:
    return [each.value for each in member.received if each.place == place]


@pytest.mark.parametrize("flavour", COOPERATIVE)
def test_only_what_moves_is_revoked(
    members: Members, judges: Judges, new_topic: Callable[..., str], flavour: str
) -> None:
    topic, group = new_topic("cooperative", partitions=PARTITIONS), fresh_name("cooperative")
    feed = Feed(judges, topic)
    first = members.join(flavour, group, topic)
    settle([first], feed.sent)
    feed.write()
    got_everything(feed, first)
    first.commit()
    second = members.join(flavour, group, topic)
    # What the first keeps goes on flowing to it meanwhile; what moves may come twice.

    def moved_under_load() -> bool:
        feed.write(1)
        return bool(second.assigned)

    wait_until(moved_under_load, lambda: "the second member got nothing")
    settle([first, second], feed.sent)
    kept = first.assigned
    for place in kept:
        got = functools.partial(_values_of, first, place)
        wait_until(lambda got=got, place=place: got() == feed.sent[place], lambda got=got: f"only {got()}")  # type: ignore[misc]
    revoked = [each.places for each in first.changes if each.kind == "revoked"]
    assert frozenset().union(*revoked) == second.assigned, "only what moved"
    assert [each for each in first.changes if each.kind == "lost"] == []


@pytest.mark.parametrize("flavour", PLAIN)
def test_a_static_member_comes_back_unnoticed(
    members: Members, judges: Judges, new_topic: Callable[..., str], flavour: str
) -> None:
    topic, group = new_topic("static", partitions=PARTITIONS), fresh_name("static")
    feed = Feed(judges, topic)
    steady = members.join(flavour, group, topic, instance="steady")
    restarted = members.join(flavour, group, topic, instance="restarted")
    settle([steady, restarted], feed.sent)
    owned, told = restarted.assigned, steady.changes
    feed.write()
    got_everything(feed, steady, restarted)
    restarted.commit()
    members.leave(restarted)
    again = members.join(flavour, group, topic, instance="restarted")
    wait_until(lambda: again.assigned == owned, lambda: f"{again.assigned} instead of {owned}")
    feed.write()
    got_everything(feed, steady, restarted, again)
    assert steady.changes == told, "the other member was not bothered"


@pytest.mark.parametrize("flavour", ["confluent-range", "aiokafka-roundrobin", "kafka-python-range", "java-range"])
@pytest.mark.parametrize("later", ["pattern", "topic"])
def test_a_group_follows_the_topics_it_reads(
    members: Members, judges: Judges, new_topic: Callable[..., str], flavour: str, later: str
) -> None:
    """A topic that begins to match, or one that grows, is noticed by the members and read after a rebalance."""
    stem = fresh_name("follow").replace("-", "_")
    topic = new_topic(stem, partitions=2)
    if later == "pattern":
        member = members.join(flavour, fresh_name("pattern"), pattern=f"^{stem}.*")
        settle([member], places_of(topic, 2))
        places = [*places_of(topic, 2), *places_of(new_topic(stem), 1)]
    else:
        member = members.join(flavour, fresh_name("grown"), topic)
        settle([member], places_of(topic, 2))
        judges["java"].ask("createPartitions", topic=topic, total=4, validateOnly=False)  # type: ignore[attr-defined]
        places = places_of(topic, 4)
    settle([member], places)


def test_a_pattern_the_broker_resolves(members: Members, new_topic: Callable[..., str]) -> None:
    """With the newer protocol the broker finds the topics; its regular expressions are RE2's."""
    stem = fresh_name("resolved").replace("-", "_")
    matching = [new_topic(f"{stem}_{letter}", partitions=2) for letter in "ab"]
    new_topic(f"{stem}_c", partitions=2)
    pattern = f"{stem}_[ab]-.*"
    first = members.join("java-consumer", "group-of-" + stem, pattern=pattern)
    second = members.join("java-consumer", "group-of-" + stem, pattern=pattern)
    settle([first, second], [place for topic in matching for place in places_of(topic, 2)])


def test_members_of_all_clients_form_one_group(members: Members, judges: Judges, new_topic: Callable[..., str]) -> None:
    topic, group = new_topic("mixed", partitions=PARTITIONS), fresh_name("mixed")
    feed = Feed(judges, topic)
    flavours = ("confluent-range", "aiokafka-range", "kafka-python-range", "java-range")
    mixed = [members.join(each, group, topic) for each in flavours]
    stable_phase(feed, mixed)
    members.leave(mixed[0])
    stable_phase(feed, mixed[1:], gone=mixed[:1])


@pytest.mark.skipif(PEER == "penstock", reason="Penstock does not move a group with members to the other protocol")
def test_both_protocols_in_one_group(members: Members, judges: Judges, new_topic: Callable[..., str]) -> None:
    """A classic group is taken over, member by member, by the newer protocol, and handed back."""
    topic, group = new_topic("upgraded", partitions=PARTITIONS), fresh_name("upgraded")
    feed = Feed(judges, topic)
    old = members.join("java-cooperative-sticky", group, topic)
    stable_phase(feed, [old])
    new = members.join("java-consumer", group, topic)
    stable_phase(feed, [old, new])
    members.leave(old)
    stable_phase(feed, [new], gone=[old])
    other = members.join("confluent-cooperative-sticky", group, topic)
    stable_phase(feed, [new, other], gone=[old])
    members.leave(new)
    stable_phase(feed, [other], gone=[old, new])


@pytest.mark.skipif(PEER != "penstock", reason="Kafka takes members of both protocols")
@pytest.mark.parametrize(
    ("first", "second", "refusal"),
    [
        ("java-cooperative-sticky", "java-consumer", "stop its members first, or set group.protocol=classic"),
        ("confluent-range", "confluent-consumer", "The group id does not exist"),
        ("java-consumer", "java-range", "InconsistentGroupProtocol"),
        ("confluent-consumer", "confluent-range", "Inconsistent group protocol"),
    ],
)
def test_a_group_with_members_keeps_its_protocol(
    members: Members, judges: Judges, new_topic: Callable[..., str], first: str, second: str, refusal: str
) -> None:
    topic, group = new_topic("kept", partitions=PARTITIONS), fresh_name("kept")
    feed = Feed(judges, topic)
    member = members.join(first, group, topic)
    stable_phase(feed, [member])
    stranger = members.join(second, group, topic)

    def told() -> str:
        try:
            return f"nothing; it has {stranger.assigned}"
        except AssertionError as failure:
            return str(failure)

    wait_until(lambda: refusal in told(), told)
    members.forget(stranger)
    stable_phase(feed, [member])
    members.leave(member)
    successor = members.join(second, group, topic)
    stable_phase(feed, [successor], gone=[member])


def test_kcat_reads_as_a_group(broker: Broker, judges: Judges, new_topic: Callable[..., str]) -> None:
    """An older librdkafka, and older versions of the requests."""
    topic, group = new_topic("kcat", partitions=PARTITIONS), fresh_name("kcat")
    feed = Feed(judges, topic)

    def read() -> list[bytes]:
        command = ["kcat", "-b", broker.bootstrap, "-q", "-e", "-X", "auto.offset.reset=earliest", "-G", group, topic]
        return subprocess.run(command, capture_output=True, timeout=2 * DEADLINE_S, check=True).stdout.split()

    for _ in range(2):
        before = {place: len(sent) for place, sent in feed.sent.items()}
        feed.write()
        assert sorted(read()) == sorted(value for place, sent in feed.sent.items() for value in sent[before[place] :])


@pytest.fixture(scope="module")
def crashes(broker: Broker, judges: Judges, new_topic: Callable[..., str]) -> Iterator[dict[str, "Future[None]"]]:
    """One crash with each flavour, all at the same time: most of each is the wait for the session's end."""

    topics = {flavour: new_topic("crash", partitions=PARTITIONS) for flavour in PLAIN}

    def crash(flavour: str) -> None:
        topic, group = topics[flavour], fresh_name("crash")
        with Members(broker.bootstrap, judges) as members:
            feed = Feed(judges, topic)
            doomed = members.join_doomed(flavour, group, topic)
            survivor = members.join(flavour, group, topic)
            settle([doomed, survivor], feed.sent)
            survivor.commit({place: Committed(0) for place in survivor.assigned})
            doomed.crash()
            settle([survivor], feed.sent, seconds=3 * SESSION_MS / 1000)
            feed.write()
            got_everything(feed, survivor)

    with ThreadPoolExecutor(len(PLAIN)) as pool:
        yield {flavour: pool.submit(crash, flavour) for flavour in PLAIN}


@pytest.mark.parametrize("flavour", PLAIN)
def test_partitions_of_a_crashed_member_move_on(crashes: dict[str, "Future[None]"], flavour: str) -> None:
    crashes[flavour].result()
