"""A door written from docs/doors.md, in a real broker: what it publishes and pushes, and what bad peers cost."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.doors.toy import LONGEST_LINE, WORDS, make_entrance
from tests.rules import Nothing, Only
from tests.simulated_broker import read_all

from penstock.engine.access import Operation, Subject
from penstock.engine.engine import Engine
from penstock.errors import Code
from penstock.net.limits import Limits
from penstock.server.broker import Broker
from penstock.server.config import Address, Config, Listener, Listeners, Topics
from penstock.server.doors.door import Entrance, House
from penstock.server.doors.table import KINDS, Kind, Stage

FREE = Address("127.0.0.1", 0)
DEADLINE_S = 30
MIB = 1 << 20


class Peer:
    """One client of the toy protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def name(self) -> str:
        """By which the broker knows where it comes from."""
        return "{}:{}".format(*self._writer.get_extra_info("sockname"))

    def say(self, data: bytes) -> None:
        self._writer.write(data)

    def pub(self, topic: str, value: bytes, key: str = "-") -> None:
        self.say(f"PUB {topic} {key} {len(value)}\n".encode() + value + b"\n")

    async def line(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return (await self._reader.readuntil())[:-1]

    async def ask(self, line: bytes) -> bytes:
        self.say(line + b"\n")
        return await self.line()

    async def message(self) -> tuple[int, int, bytes]:
        verb, partition, offset, size = (await self.line()).split()
        assert verb == b"MSG"
        async with asyncio.timeout(DEADLINE_S):
            value = await self._reader.readexactly(int(size) + 1)
        assert value[-1:] == b"\n"
        return int(partition), int(offset), value[:-1]

    async def rest(self) -> bytes:
        """What comes until the broker closes the connection."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self._reader.read()
            except ConnectionResetError:
                return b""

    def close(self) -> None:
        self._writer.close()


@dataclass
class Toy:
    broker: Broker
    house: House
    peers: list[Peer]

    @property
    def engine(self) -> Engine:
        assert self.house.engine is not None
        return self.house.engine

    async def peer(self, receive_bytes: int = 0) -> Peer:
        host, _, port = self.broker.ready_words["toy"].rpartition(":")
        sock = socket.socket(proto=socket.IPPROTO_TCP)  # as asyncio makes them: nothing waits for more to be sent
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        self.peers.append(Peer(*await asyncio.open_connection(sock=sock)))
        return self.peers[-1]

    def unsent(self) -> int:
        return sum(connection.unsent for connection in self.house.crowds[Stage.CLIENTS]._open)

    def tail_of(self, topic: str) -> int:
        """How many share it."""
        return len(self.engine.tails.of(self.engine.topics.partition(topic, 0)))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.005)


@asynccontextmanager
async def running(
    directory: Path, patch: pytest.MonkeyPatch, ping_s: float = 10, silence_s: float = 30
) -> AsyncIterator[Toy]:

    def make(house: House, listener: Listener) -> Entrance:
        return make_entrance(house, listener, ping_s, silence_s)

    patch.setitem(KINDS, "toy", Kind("toy", "Toy", 1, "where toys connect", "Listen for toys", make))
    listeners = Listeners(kafka=FREE, http=FREE, more=(Listener("toy", "toy", FREE),))
    broker = Broker(Config(data_dir=directory, listeners=listeners, topics=Topics(internal_partitions=1)))
    toy = Toy(broker, broker._house, [])
    try:
        await broker.start()
        yield toy
    finally:
        for peer in toy.peers:
            peer.close()
        await broker.stop()


@pytest.fixture
async def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Toy]:
    async with running(tmp_path, monkeypatch) as it:
        await it.engine.create_topic("t", 1)
        yield it


async def test_what_is_published_is_pushed_to_who_was_there_and_to_who_comes_later(toy: Toy) -> None:
    values = [b"hello", b"", b"a\nb\0", b"x" * 5000, b"y" * 300_000]
    early, peer = await toy.peer(), await toy.peer()
    assert await early.ask(b"SUB t new") == b"OK"
    for value in values:
        peer.pub("t", value, "key")
    assert [await peer.line() for _ in values] == [b"OK 0 %d" % at for at in range(5)]
    late, midway = await toy.peer(), await toy.peer()
    assert await late.ask(b"SUB t") == b"OK"
    assert await midway.ask(b"SUB t 0 3") == b"OK"
    expected = [(0, at, value) for at, value in enumerate(values)]
    assert [await early.message() for _ in range(5)] == expected
    assert [await late.message() for _ in range(5)] == expected
    assert [await midway.message() for _ in range(2)] == expected[3:]
    await toy.until(lambda: toy.tail_of("t") == 3)
    peer.pub("t", b"last")
    assert await peer.line() == b"OK 0 5"
    for each in (early, late, midway):
        assert await each.message() == (0, 5, b"last")


async def test_all_partitions_are_pushed_and_a_key_has_one(toy: Toy) -> None:
    await toy.engine.create_topic("many", 4)
    peer = await toy.peer()
    for number in range(40):
        peer.pub("many", b"%d" % number, f"key{number % 10}")
    places = [(await peer.line()).split()[1:] for _ in range(40)]
    assert len({partition for partition, _ in places}) == 4
    assert all(places[at][0] == places[at % 10][0] for at in range(40))
    assert await peer.ask(b"SUB many") == b"OK"
    got = {(partition, offset): value for partition, offset, value in [await peer.message() for _ in range(40)]}
    assert got == {(int(partition), int(offset)): b"%d" % at for at, (partition, offset) in enumerate(places)}


async def test_a_push_does_not_overtake_the_answer_to_its_subscription(toy: Toy) -> None:
    peer = await toy.peer()
    peer.pub("t", b"old")
    assert await peer.line() == b"OK 0 0"
    peer.pub("t", b"new")
    peer.say(b"SUB t\n")
    assert [await peer.line(), await peer.line()] == [b"OK 0 1", b"OK"]
    assert [await peer.message(), await peer.message()] == [(0, 0, b"old"), (0, 1, b"new")]
    assert await peer.ask(b"PING") == b"PONG", "and requests are taken again"


async def test_many_connections_in_one_turn_make_few_batches(toy: Toy) -> None:
    peers = [await toy.peer() for _ in range(50)]
    for peer in peers:
        assert await peer.ask(b"PING") == b"PONG"
    for at, peer in enumerate(peers):
        peer.pub("t", b"%d" % at)
    offsets = [(await peer.line()).split()[2] for peer in peers]
    assert sorted(map(int, offsets)) == list(range(50))
    assert len(await read_all(toy.engine.topics.partition("t", 0))) <= 3


async def test_subscribers_share_a_tail_until_they_leave(toy: Toy) -> None:
    one, two, peer = [await toy.peer() for _ in range(3)]
    assert [await each.ask(b"SUB t new") for each in (one, two)] == [b"OK", b"OK"]
    assert toy.tail_of("t") == 2
    peer.pub("t", b"a")
    assert await one.message() == await two.message() == (0, 0, b"a")
    assert (await one.ask(b"SUB t new")).startswith(b"ERR invalid-request")
    assert await one.ask(b"UNSUB t") == b"OK"
    assert toy.tail_of("t") == 1
    peer.pub("t", b"b")
    assert await two.message() == (0, 1, b"b")
    assert await one.ask(b"PING") == b"PONG", "and no message"
    two.close()
    await toy.until(lambda: toy.tail_of("t") == 0)


async def test_who_does_not_read_costs_little_and_goes_on_where_it_was(toy: Toy) -> None:
    slow, fast, peer = await toy.peer(receive_bytes=4096), await toy.peer(), await toy.peer()
    for each in (slow, fast):
        assert await each.ask(b"SUB t new") == b"OK"
    most_unsent = 0
    for number in range(110):
        peer.pub("t", b"%03d" % number * 30_000)
        assert await peer.line() == b"OK 0 %d" % number
        most_unsent = max(most_unsent, toy.unsent())
        assert await fast.message() == (0, number, b"%03d" % number * 30_000)
    assert toy.tail_of("t") == 1, "the slow one has left"
    assert MIB < most_unsent <= Limits().pushed_bytes + 100_000
    for number in range(110):
        assert await slow.message() == (0, number, b"%03d" % number * 30_000)
    await toy.until(lambda: toy.tail_of("t") == 2)
    peer.pub("t", b"now")
    assert await slow.message() == await fast.message() == (0, 110, b"now")


@pytest.mark.parametrize(
    "data",
    [
        b"HELLO\n",
        b"\n",
        b"PUB t\n",
        b"PUB t - -1\n",
        b"PUB t - 1_0\n",
        b"PUB t - " + b"9" * 500 + b"\n",
        b"PUB t - %d\n" % (100 * MIB),
        b"SUB t 0 x\n",
        b"\xff\n",
        b"x" * (LONGEST_LINE + 1),
        b"PUB t - 3\nlong\n",
    ],
)
async def test_who_breaks_the_protocol_is_closed_alone(toy: Toy, data: bytes) -> None:
    bad, good = await toy.peer(), await toy.peer()
    assert await good.ask(b"SUB t") == b"OK"
    bad.say(data)
    assert await bad.rest() == b""
    good.pub("t", b"fine")
    assert {await good.line(), await good.line(), await good.line()} == {b"OK 0 0", b"MSG 0 0 4", b"fine"}
    assert toy.broker.stats.protocol_errors == 1


async def test_a_message_of_which_bytes_are_missing_is_not_published(toy: Toy) -> None:
    bad, good = await toy.peer(), await toy.peer()
    bad.say(b"PUB t - 10\nhalf")
    assert await good.ask(b"PING") == b"PONG"
    bad.close()
    good.pub("t", b"whole")
    assert await good.line() == b"OK 0 0"


async def test_what_cannot_be_done_is_answered(toy: Toy) -> None:
    await toy.engine.create_topic("small", 1, {"max.message.bytes": "1000"})
    peer = await toy.peer()
    peer.pub("nowhere", b"x")
    assert await peer.line() == b"ERR unknown-topic no topic 'nowhere' here"
    peer.pub("small", b"x" * 2000)
    assert (await peer.line()).startswith(b"ERR batch-too-large ")
    assert (await peer.ask(b"SUB nowhere")).startswith(b"ERR unknown-topic ")
    assert (await peer.ask(b"SUB t 1 0")).startswith(b"ERR unknown-topic ")
    assert await peer.ask(b"SUB t 0 7") == b"OK"
    assert (await peer.line()).startswith(b"ERR offset-out-of-range ")
    assert await peer.ask(b"SUB t 0 0") == b"OK"
    topic = toy.engine.topics.get("t")
    assert topic is not None
    await toy.until(lambda: toy.tail_of("t") == 1)
    await toy.engine.delete_topic(topic)
    assert (await peer.line()).startswith(b"ERR unknown-topic ")
    assert await peer.ask(b"PING") == b"PONG"


def test_every_error_has_a_word() -> None:
    assert set(WORDS) == set(Code)
    assert not any(" " in word for word in WORDS.values())


async def test_a_quiet_peer_is_pinged_and_a_silent_one_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch, ping_s=0.1, silence_s=0.25) as toy:
        lively, silent = await toy.peer(), await toy.peer()
        over = asyncio.create_task(silent.rest())
        pings = 0
        while not over.done():
            assert await lively.line() == b"PING"
            pings += 1
            lively.say(b"PONG\n")
            toy.broker._doors.sweep()
        assert (await over).replace(b"PING\n", b"") == b""
        assert pings >= 2
        assert await lively.ask(b"PING") in (b"PONG", b"PING")


async def test_a_broker_that_stops_says_goodbye(toy: Toy) -> None:
    subscriber, idle = await toy.peer(), await toy.peer()
    assert await subscriber.ask(b"SUB t") == b"OK"
    assert await idle.ask(b"PING") == b"PONG"
    await toy.broker.stop()
    assert await subscriber.rest() == await idle.rest() == b"BYE\n"


async def test_kafka_clients_read_what_toys_publish_and_toys_what_they_produce(toy: Toy) -> None:
    await toy.engine.create_topic("both", 3)
    peer, kafka = await toy.peer(), {"bootstrap.servers": toy.broker.ready_words["kafka"], "log_level": 2}
    peer.pub("both", b"from a toy", "k")
    partition = int((await peer.line()).split()[1])

    def consume() -> tuple[bytes | None, bytes | None]:
        consumer = Consumer({**kafka, "group.id": "g", "enable.auto.commit": False, "fetch.wait.max.ms": 10})
        consumer.assign([TopicPartition("both", partition, 0)])
        message = consumer.poll(DEADLINE_S)
        consumer.close()
        assert message is not None and message.error() is None
        return message.key(), message.value()

    def produce() -> None:
        producer = Producer({**kafka, "partitioner": "murmur2_random", "linger.ms": 0, "compression.type": "gzip"})
        for number in range(3):
            producer.produce("both", b"from Kafka %d" % number, b"k")
        assert producer.flush(DEADLINE_S) == 0

    assert await asyncio.to_thread(consume) == (b"k", b"from a toy")
    assert await peer.ask(b"SUB both new") == b"OK"
    await asyncio.to_thread(produce)
    got = [await peer.message() for _ in range(3)]
    assert got == [(partition, 1 + at, b"from Kafka %d" % at) for at in range(3)]


async def test_rules_that_allow_nothing_refuse_every_verb_and_change_nothing(toy: Toy) -> None:
    peer = await toy.peer()
    before = toy.engine.topics.partition("t", 0).high_watermark
    toy.engine.access.policy = Nothing()
    peer.pub("t", b"x")
    peer.pub("unknown", b"x")
    told = [await peer.line() for _ in range(2)]
    told += [await peer.ask(line) for line in (b"SUB t", b"SUB t new", b"SUB t 0 0", b"SUB unknown")]
    assert [line.split()[:2] for line in told] == [[b"ERR", b"not-authorised"]] * 6
    assert toy.engine.topics.partition("t", 0).high_watermark == before


async def test_who_may_read_no_more_gets_nothing_more(toy: Toy) -> None:
    reader, writer = await toy.peer(), await toy.peer()
    assert await reader.ask(b"SUB t new") == b"OK"
    writer.pub("t", b"open")
    assert await writer.line() == b"OK 0 0"
    assert await reader.line() == b"MSG 0 0 4"
    assert await reader.line() == b"open"
    toy.engine.access.policy = Only(Subject(host=writer.name, door="toy"), Operation.WRITE)
    writer.pub("t", b"secret")
    assert await writer.line() == b"OK 0 1"
    assert (await reader.line()).startswith(b"ERR not-authorised")
