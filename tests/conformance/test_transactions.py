"""Transactions with every client's producers: what readers see, what fences, what times out."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.peers.broker import Broker

from .clients import ClientError
from .clients.client import DEADLINE_S
from .clients.confluent_groups import ConfluentGroupAdmin
from .clients.groups import READ_COMMITTED, READ_UNCOMMITTED, Committed, GroupAdmin, Place, wait_until
from .clients.java_transactions import JavaProducer, JavaTransactions
from .clients.members_groups import COOPERATIVE, PLAIN, Members, places_of, settle
from .clients.producers_transactions import TRANSACTIONS, Producers
from .clients.transactions import Aborted, Fenced, TransactionalProducer
from .conftest import PEER, Judges, fresh_name
from .records import Record
from .wire import Wire, entity_of, make

END = b"the end"


@pytest.fixture(params=TRANSACTIONS)
def producers(broker: Broker, judges: Judges, request: pytest.FixtureRequest) -> Iterator[Producers]:
    with Producers(request.param, broker.bootstrap, judges) as made:
        yield made


@pytest.fixture
def java_producers(broker: Broker, judges: Judges) -> Iterator[Producers]:
    with Producers("java", broker.bootstrap, judges) as made:
        yield made


Read = Callable[..., list[bytes]]


@pytest.fixture
def read(members: Members, judges: Judges) -> Read:
    """All that a reader of the isolation gets of a partition that no transaction holds open."""

    def run(flavour: str, topic: str, partition: int, isolation: str) -> list[bytes]:
        # A record outside any transaction marks the end for every isolation.
        judges["confluent"].produce(topic, partition, [Record(END)])
        reader = members.join(flavour, fresh_name("reader"), places=((topic, partition),), isolation=isolation)
        wait_until(lambda: END in reader.values(), lambda: f"only {reader.values()}")
        members.leave(reader)
        return reader.values()[:-1]

    return run


def offset_is(admin: GroupAdmin, group: str, place: Place, wanted: int) -> None:
    """Wait until the group's offset is as wanted; none reads as 0."""

    def found() -> int:
        return admin.offsets(group, place).get(place, Committed(0)).offset

    wait_until(lambda: found() == wanted, lambda: f"{found()} is not {wanted}")


def send_and_commit(producer: TransactionalProducer, topic: str, value: bytes) -> None:
    producer.send(topic, 0, value)
    producer.commit()


@pytest.mark.parametrize("first", ["commit", "abort"])
def test_committed_is_read_and_aborted_is_not(
    producers: Producers, read: Read, new_topic: Callable[..., str], first: str
) -> None:
    topic = new_topic("outcome", partitions=3)
    producer = producers.open(fresh_name("outcome"))
    second = "abort" if first == "commit" else "commit"
    sent: dict[str, list[list[bytes]]] = {"commit": [[], [], []], "abort": [[], [], []]}
    for number, outcome in enumerate([first, second, first, first, second, second]):
        producer.begin()
        for partition in (0, 1, 2)[: 2 + number % 2]:
            values = [b"%s %d %d" % (outcome.encode(), number, each) for each in range(3)]
            producer.send(topic, partition, *values)
            sent[outcome][partition] += values
        getattr(producer, outcome)()
    reader = producers.client.reader
    for partition in (0, 1, 2):
        committed, aborted = sent["commit"][partition], sent["abort"][partition]
        assert read(reader, topic, partition, READ_COMMITTED) == committed
        everything = [each for each in read(reader, topic, partition, READ_UNCOMMITTED) if each != END]
        assert sorted(everything) == sorted(committed + aborted)
        assert [each for each in everything if each in committed] == committed


@pytest.mark.parametrize("reader", PLAIN)
def test_every_reader_of_transactions_among_plain_records(
    java_producers: Producers, judges: Judges, read: Read, new_topic: Callable[..., str], reader: str
) -> None:
    topic = new_topic("mingled")
    one, two = (java_producers.open(fresh_name("mingled")) for _ in range(2))
    one.begin()
    two.begin()
    one.send(topic, 0, b"one commits")
    judges["confluent"].produce(topic, 0, [Record(b"plain")])
    two.send(topic, 0, b"two aborts")
    one.send(topic, 0, b"one commits later")
    one.commit()
    two.send(topic, 0, b"two aborts, too")
    two.abort()
    two.begin()
    two.send(topic, 0, b"two commits")
    two.commit()
    kept = [b"one commits", b"plain", b"one commits later", b"two commits"]
    assert read(reader, topic, 0, READ_COMMITTED) == kept


def test_an_open_transaction_holds_readers_back(
    producers: Producers, members: Members, judges: Judges, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("held")
    client = producers.client
    judges["confluent"].produce(topic, 0, [Record(b"before")])
    producer = producers.open(fresh_name("held"))
    producer.begin()
    producer.send(topic, 0, b"open", b"open, too")
    judges["confluent"].produce(topic, 0, [Record(b"behind")])
    assert client.end(topic, 0, READ_UNCOMMITTED) == 4
    assert client.end(topic, 0, READ_COMMITTED) == 1, "the last stable offset"
    places = ((topic, 0),)
    waiting = members.join(client.reader, fresh_name("waiting"), places=places, isolation=READ_COMMITTED)
    hasty = members.join(client.reader, fresh_name("hasty"), places=places)
    wait_until(lambda: len(hasty.received) == 4, lambda: f"only {hasty.values()}")
    wait_until(lambda: len(waiting.received) == 1, lambda: f"only {waiting.values()}")
    assert waiting.values() == [b"before"]
    producer.commit()
    wait_until(lambda: len(waiting.received) == 4, lambda: f"only {waiting.values()}")
    assert waiting.values() == hasty.values() == [b"before", b"open", b"open, too", b"behind"]
    assert client.end(topic, 0, READ_COMMITTED) == client.end(topic, 0, READ_UNCOMMITTED) == 5, "with the marker"


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_the_end_of_a_transaction_wakes_a_waiting_fetch(
    java_producers: Producers, wire: Wire, new_topic: Callable[..., str], outcome: str
) -> None:
    topic = new_topic("woken")
    producer = java_producers.open(fresh_name("woken"))
    producer.begin()
    producer.send(topic, 0, b"open")
    place = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    request = make(
        "fetch",
        12,
        max_wait=10 * int(DEADLINE_S * 1000),  # far beyond this connection's patience
        min_bytes=1,
        isolation_level=1,
        topics=[{"topic": topic, "partitions": [place]}],
        forgotten_topics_data=[],
        rack_id="",
    )
    sent = wire.send(request)
    getattr(producer, outcome)()
    answered, answer = wire.receive(entity_of("fetch", 12, "response"))
    assert answered == sent
    found = answer.responses[0].partitions[0]
    assert (found.last_stable_offset, found.high_watermark) == (2, 2)
    aborted = [each.first_offset for each in found.aborted_transactions or ()]
    assert aborted == ([] if outcome == "commit" else [0])


def test_several_topics_at_once(producers: Producers, read: Read, new_topic: Callable[..., str]) -> None:
    topics = [new_topic(f"many-{letter}", partitions=2) for letter in "abc"]
    producer = producers.open(fresh_name("many"))
    for outcome in ("commit", "abort", "commit"):
        producer.begin()
        for topic in topics:
            for partition in (0, 1):
                producer.send(topic, partition, outcome.encode())
        getattr(producer, outcome)()
    for topic in topics:
        assert read(producers.client.reader, topic, 1, READ_COMMITTED) == [b"commit"] * 2


def test_empty_transactions(producers: Producers, read: Read, new_topic: Callable[..., str]) -> None:
    topic = new_topic("empty")
    producer = producers.open(fresh_name("empty"))
    for outcome in ("commit", "abort", "commit"):
        producer.begin()
        getattr(producer, outcome)()
    producer.begin()
    producer.send(topic, 0, b"at last")
    producer.commit()
    assert read(producers.client.reader, topic, 0, READ_COMMITTED) == [b"at last"]


def test_two_hundred_in_a_row(producers: Producers, read: Read, new_topic: Callable[..., str]) -> None:
    """An older client that begins before the one before is all done is told to try again, and must get through."""
    topic = new_topic("quick", partitions=2)
    producer = producers.open(fresh_name("quick"))
    values = [b"%d" % number for number in range(200)]
    for number, value in enumerate(values):
        producer.begin()
        producer.send(topic, number % 2, value)
        producer.commit()
    for partition in (0, 1):
        assert read(producers.client.reader, topic, partition, READ_COMMITTED) == values[partition::2]


def test_a_second_producer_fences_the_first(producers: Producers, read: Read, new_topic: Callable[..., str]) -> None:
    topic, name = new_topic("fenced"), fresh_name("fenced")
    first = producers.open(name)
    first.begin()
    first.send(topic, 0, b"of the first")
    first.commit()
    first.begin()
    second = producers.open(name)
    second.begin()
    second.send(topic, 0, b"of the second")
    with pytest.raises(Fenced):
        send_and_commit(first, topic, b"of a zombie")
    second.commit()
    assert read(producers.client.reader, topic, 0, READ_COMMITTED) == [b"of the first", b"of the second"]


def test_a_new_producer_aborts_what_was_left_open(
    producers: Producers, read: Read, new_topic: Callable[..., str]
) -> None:
    topic, name = new_topic("left"), fresh_name("left")
    first = producers.open(name)
    first.begin()
    first.send(topic, 0, b"left open")
    second = producers.open(name)
    assert producers.client.end(topic, 0, READ_COMMITTED) == 2, "the abort's marker is there before the new id"
    second.begin()
    second.send(topic, 0, b"done")
    second.commit()
    with pytest.raises(Fenced):
        first.commit()
    assert read(producers.client.reader, topic, 0, READ_COMMITTED) == [b"done"]
    assert read(producers.client.reader, topic, 0, READ_UNCOMMITTED)[:2] == [b"left open", b"done"]


def test_an_overdue_transaction_is_aborted(producers: Producers, read: Read, new_topic: Callable[..., str]) -> None:
    topic, name = new_topic("overdue"), fresh_name("overdue")
    client = producers.client
    late = producers.open(name, timeout_ms=1000)
    late.begin()
    late.send(topic, 0, b"too late")
    wait_until(lambda: client.end(topic, 0, READ_COMMITTED) == 2, lambda: "no marker after the time-out")
    # What it says differs: fenced, or that this transaction has to be aborted.
    with pytest.raises(ClientError):
        send_and_commit(late, topic, b"later still")
    again = producers.open(name)
    again.begin()
    again.send(topic, 0, b"in time")
    again.commit()
    assert read(client.reader, topic, 0, READ_COMMITTED) == [b"in time"]


def test_a_producer_goes_on_after_the_broker_aborted(
    java_producers: Producers, read: Read, new_topic: Callable[..., str]
) -> None:
    """KIP-588: of the clients here the Java one aborts, gets a new epoch and begins again."""
    topic = new_topic("recovers")
    producer = java_producers.open(fresh_name("recovers"), timeout_ms=1000)
    producer.begin()
    producer.send(topic, 0, b"too late")
    wait_until(lambda: java_producers.client.end(topic, 0, READ_COMMITTED) == 2, lambda: "no marker")
    with pytest.raises(ClientError):
        send_and_commit(producer, topic, b"later still")
    producer.abort()
    producer.begin()
    send_and_commit(producer, topic, b"in time")
    assert read("java-range", topic, 0, READ_COMMITTED) == [b"in time"]


def test_read_process_write(
    producers: Producers, members: Members, judges: Judges, read: Read, new_topic: Callable[..., str]
) -> None:
    """Each input is processed once, although every second attempt is aborted and begun again from the offsets."""
    source, target, group = new_topic("source", partitions=2), new_topic("target"), fresh_name("processor")
    flavour = producers.client.reader
    for partition in (0, 1):
        judges["confluent"].produce(source, partition, [Record(b"%d:%d" % (partition, n)) for n in range(10)])
    producer = producers.open(fresh_name("processor"))
    consumer = members.join(flavour, group, source, isolation=READ_COMMITTED)
    settle([consumer], places_of(source, 2))
    wait_until(lambda: len(consumer.received) == 20, lambda: f"only {consumer.values()}")
    admin = members.admin(ConfluentGroupAdmin)
    work = {place: [each for each in consumer.received if each.place == place] for place in places_of(source, 2)}
    for place, inputs in work.items():
        for start in range(0, 10, 5):
            for outcome in ("abort", "commit"):
                producer.begin()
                producer.send(target, 0, *(b"done " + each.value for each in inputs[start : start + 5]))
                producer.send_offsets({place: start + 5}, consumer)
                getattr(producer, outcome)()
                reached = start + 5 if outcome == "commit" else start
                # An admin does not wait for the marker, which may follow the answer.
                offset_is(admin, group, place, reached)
    done = read(flavour, target, 0, READ_COMMITTED)
    assert sorted(done) == sorted(b"done " + each.value for inputs in work.values() for each in inputs)
    members.leave(consumer)
    # Whoever comes next starts behind what was done.
    judges["confluent"].produce(source, 0, [Record(b"new")])
    successor = members.join(flavour, group, source)
    wait_until(lambda: successor.values() != [], lambda: "nothing new came")
    assert successor.values() == [b"new"]


# aiokafka's OffsetFetch is older than the question.
@pytest.mark.parametrize("flavour", [each for each in PLAIN if not each.startswith("aiokafka")])
def test_offsets_of_an_open_transaction_are_waited_for(
    java_producers: Producers, members: Members, new_topic: Callable[..., str], flavour: str
) -> None:
    topic, group = new_topic("unstable", partitions=2), fresh_name("unstable")
    place, other = places_of(topic, 2)
    helper = members.join("java-range", group, places=(place, other))
    helper.commit({place: Committed(1), other: Committed(1)})
    members.leave(helper)
    producer = java_producers.open(fresh_name("unstable"))
    assert isinstance(producer, JavaProducer)
    producer.begin()
    producer.send_offsets_as({place: 5}, group, -1, "")
    reader = members.join(flavour, group, places=(other,), isolation=READ_COMMITTED)
    hasty = members.admin(ConfluentGroupAdmin)  # an admin takes what is there
    assert hasty.offsets(group, place)[place].offset == 1
    assert reader.committed(other)[other].offset == 1, "only what the transaction touches is unstable"
    waiting = reader.start_committed([place])
    assert hasty.offsets(group, place)[place].offset == 1
    assert not waiting.done()
    producer.commit()
    assert waiting.result()[place].offset == 5
    assert hasty.offsets(group, place)[place].offset == 5


# With Kafka, librdkafka 2.16 does read from the start: it takes the -1 beside the error for "no offset".
@pytest.mark.parametrize("flavour", [each for each in COOPERATIVE if PEER == "penstock" or "confluent" not in each])
def test_a_member_given_more_still_waits_for_offsets_of_an_open_transaction(
    java_producers: Producers, members: Members, judges: Judges, new_topic: Callable[..., str], flavour: str
) -> None:
    """More partitions come while the first one's offset is asked for again and again: it is not read from the start."""
    topic, group = new_topic("more"), fresh_name("more")
    judges["confluent"].produce(topic, 0, [Record(b"%d" % number) for number in range(10)])
    producer = java_producers.open(fresh_name("more"))
    assert isinstance(producer, JavaProducer)
    producer.begin()
    producer.send_offsets_as({(topic, 0): 5}, group, -1, "")
    reader = members.join(flavour, group, topic, isolation=READ_COMMITTED)
    settle([reader], places_of(topic, 1))
    judges["java"].ask("createPartitions", topic=topic, total=2, validateOnly=False)  # type: ignore[attr-defined]
    settle([reader], places_of(topic, 2))
    # Until its next question, for which clients wait a second at most.
    asked_again = time.monotonic() + 1.5
    wait_until(lambda: bool(reader.received) or time.monotonic() > asked_again, lambda: "no time passes")
    producer.commit()
    wait_until(lambda: len(reader.received) >= 5, lambda: f"only {reader.values()}")
    assert reader.values() == [b"5", b"6", b"7", b"8", b"9"]


def test_offsets_of_an_aborted_transaction_never_were(
    java_producers: Producers, members: Members, new_topic: Callable[..., str]
) -> None:
    topic, group = new_topic("never"), fresh_name("never")
    producer = java_producers.open(fresh_name("never"))
    assert isinstance(producer, JavaProducer)
    producer.begin()
    producer.send_offsets_as({(topic, 0): 5}, group, -1, "")
    producer.abort()
    reader = members.join("java-consumer", group, places=((topic, 0),), isolation=READ_COMMITTED)
    assert reader.committed((topic, 0)) == {}


def test_offsets_from_a_stranger_are_refused(
    java_producers: Producers, members: Members, new_topic: Callable[..., str]
) -> None:
    """KIP-447: a member that its group no longer knows cannot commit through a transaction either."""
    topic, group = new_topic("stranger"), fresh_name("stranger")
    member = members.join("java-range", group, topic)
    settle([member], places_of(topic, 1))
    producer = java_producers.open(fresh_name("stranger"))
    assert isinstance(producer, JavaProducer)
    for generation, member_id in ((99, "nobody"), (1, "nobody")):
        producer.begin()
        with pytest.raises(Aborted, match="CommitFailed"):
            producer.send_offsets_as({(topic, 0): 5}, group, generation, member_id)
        producer.abort()
    producer.begin()
    producer.send_offsets({(topic, 0): 5}, member)
    producer.commit()
    assert member.committed((topic, 0))[topic, 0].offset == 5


def test_transactions_described(java_producers: Producers, new_topic: Callable[..., str]) -> None:
    topic, name = new_topic("described", partitions=2), fresh_name("described")
    client = java_producers.client
    assert isinstance(client, JavaTransactions)
    producer = java_producers.open(name, timeout_ms=7654)
    empty = client.ask("describeTransaction", id=name)
    assert (empty["state"], empty["timeout"], empty["started"], empty["places"]) == ("Empty", 7654, -1, [])
    producer.begin()
    producer.send(topic, 0, b"v")
    producer.send(topic, 1, b"v")
    ongoing = client.ask("describeTransaction", id=name)
    assert (ongoing["state"], sorted(ongoing["places"])) == ("Ongoing", [[topic, 0], [topic, 1]])
    assert ongoing["started"] > 0
    assert client.ask("listTransactions")["transactions"][name] == [ongoing["producer"], "Ongoing"]
    held = client.ask("describeProducers", topic=topic, partition=0)["producers"]
    assert [(each["id"], each["transaction"]) for each in held] == [(ongoing["producer"], 0)]
    producer.commit()
    wait_until(
        lambda: client.ask("describeTransaction", id=name)["state"] == "CompleteCommit",
        lambda: client.ask("describeTransaction", id=name),
    )
    held = client.ask("describeProducers", topic=topic, partition=0)["producers"]
    assert [each["transaction"] for each in held] == [-1]
    with pytest.raises(ClientError) as failure:
        client.ask("describeTransaction", id=fresh_name("unknown"))
    assert failure.value.code == 105, "TRANSACTIONAL_ID_NOT_FOUND"


def test_an_admin_fences_a_producer(java_producers: Producers, read: Read, new_topic: Callable[..., str]) -> None:
    topic, name = new_topic("by-admin"), fresh_name("by-admin")
    client = java_producers.client
    assert isinstance(client, JavaTransactions)
    producer = java_producers.open(name)
    producer.begin()
    producer.send(topic, 0, b"fenced")
    client.ask("fenceProducer", id=name)
    with pytest.raises(Fenced):
        producer.commit()
    assert read("java-range", topic, 0, READ_COMMITTED) == []


def test_the_newest_protocol_raises_the_epoch_with_every_transaction(
    java_producers: Producers, new_topic: Callable[..., str]
) -> None:
    """KIP-890: what a transaction before this one sent late cannot end up in this one."""
    topic, name = new_topic("epochs"), fresh_name("epochs")
    client = java_producers.client
    assert isinstance(client, JavaTransactions)
    producer = java_producers.open(name)
    epochs = []
    for outcome in ("commit", "abort", "commit"):
        producer.begin()
        producer.send(topic, 0, b"v")
        getattr(producer, outcome)()
        epochs.append(client.ask("describeTransaction", id=name)["epoch"])
    assert epochs == [epochs[0], epochs[0] + 1, epochs[0] + 2]
