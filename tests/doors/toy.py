"""A toy protocol of lines, written from docs/doors.md: codec, errors, session and door.

    PUB topic key size, so many bytes, LF     OK partition offset; the key - is none
    SUB topic, or SUB topic new               OK, then all records of all partitions, or from now on, each as
                                              MSG partition offset size, so many bytes, LF
    SUB topic partition offset                likewise, from there
    UNSUB topic, PING, PONG                   OK, PONG, nothing

`ERR code text` answers what cannot be done, and ends a subscription. PING and BYE come from the broker, too.
"""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from penstock.engine.access import Operation, Subject
from penstock.engine.acting.acting import Acting
from penstock.engine.feed import FIRST, NEW, Feed
from penstock.engine.gathering import Message
from penstock.engine.partition import Partition
from penstock.engine.publishing import ALL
from penstock.engine.reading import Message as Record
from penstock.errors import Code, PenstockError
from penstock.net.connection import Answer, Connection, Limits, PeerError
from penstock.net.lines import LineBuffer
from penstock.net.room import Room
from penstock.records.partitioning import new_partitioner
from penstock.server.config import Listener
from penstock.server.doors.door import Door, House, StreamEntrance

LONGEST_LINE = 600  # a topic has 249 bytes at most, and so may a key
MOST_FEEDS = 1000  # of one connection: each may have a task

# --- codec and errors


class Pub(NamedTuple):
    topic: str
    key: bytes | None
    size: int


class Sub(NamedTuple):
    topic: str
    start: int
    partition: int | None = None


def parse(line: bytes) -> Pub | Sub | tuple[bytes, str]:
    match line.split(b" "):
        case [b"PUB", topic, key, size]:
            return Pub(topic.decode("ascii", "replace"), None if key == b"-" else key, _number(size))
        case [b"SUB", topic] | [b"SUB", topic, b"new"] as words:
            return Sub(topic.decode("ascii", "replace"), FIRST if len(words) == 2 else NEW)
        case [b"SUB", topic, partition, offset]:
            return Sub(topic.decode("ascii", "replace"), _number(offset), _number(partition))
        case [b"UNSUB" as verb, topic]:
            return verb, topic.decode("ascii", "replace")
        case [b"PING" | b"PONG" as verb]:
            return verb, ""
    raise PeerError(f"no request: {line[:60]!r}")


def _number(word: bytes) -> int:
    if not word.isdigit() or len(word) > 18:
        raise PeerError(f"no number: {word[:60]!r}")
    return int(word)


WORDS = {code: code.value.replace("_", "-") for code in Code}


def tell(error: PenstockError) -> bytes:
    return f"ERR {WORDS[error.code]} {' '.join(str(error).split())}\n".encode()


# --- session


class ToySession:
    def __init__(self, connection: Connection, acting: Acting, randomness: Random, ping_s: float, silence_s: float):
        assert isinstance(connection.framing, LineBuffer)
        self.connection, self.lines, self.acting = connection, connection.framing, acting
        self.partitioner = new_partitioner("murmur2", randomness)
        self.announced: Pub | None = None
        self.owed = 0  # messages that are not safe yet
        self.waiting: tuple[bytes, Answer] | None = None
        self.feeds: dict[str, list[Feed]] = {}
        self.placing: asyncio.Task[None] | None = None
        self.unsaid: dict[str, bytes] = {}  # a line for each topic, and the goodbye
        connection.send_heartbeats(ping_s, lambda: connection.push((b"PING\n",)))
        connection.expect_within(silence_s)

    def handle(self, frame: memoryview, answer: Answer) -> None:
        try:
            self.request(bytes(frame), answer)
        except PenstockError as error:
            answer.send((tell(error),))
            answer.release()

    def request(self, frame: bytes, answer: Answer) -> None:
        if (pub := self.announced) is not None:
            self.announced = None
            return self.publish(pub, frame, answer)
        match parse(frame):
            case Pub() as pub:
                self.lines.expect(pub.size + 1)
                self.announced = pub
                answer.skip()
            case Sub() if self.owed:
                self.waiting = frame, answer  # a push would overtake OK, which has to wait for the answers before it
                answer.hold()
            case Sub() as sub:
                self.subscribe(sub, answer)
            case verb, topic:
                self.unsubscribe(topic)
                answer.send({b"UNSUB": (b"OK\n",), b"PING": (b"PONG\n",)}.get(verb, ()))

    def publish(self, pub: Pub, payload: bytes, answer: Answer) -> None:
        if payload[-1:] != b"\n":
            raise PeerError(f"no LF behind {pub.size} bytes")
        partitions = self.partitions_of(pub.topic, Operation.WRITE)
        index = self.partitioner.choose(pub.key, len(partitions))

        def told(offset: int, error: PenstockError | None) -> None:
            answer.send((b"OK %d %d\n" % (index, offset) if error is None else tell(error),))
            self.partitioner.next_batch()
            self.owed -= 1
            if self.owed == 0 and self.waiting is not None:
                (line, its_answer), self.waiting = self.waiting, None
                self.handle(memoryview(line), its_answer)

        self.owed += 1
        self.acting.put(partitions[index], Message(pub.key, payload[:-1]), ALL, told)

    def partitions_of(self, topic: str, operation: Operation) -> Sequence[Partition]:
        if (found := self.acting.topics.get(topic, operation)) is None:
            raise PenstockError(Code.UNKNOWN_TOPIC, f"no topic {topic!r} here")
        return found.partitions

    def subscribe(self, sub: Sub, answer: Answer) -> None:
        partitions = self.partitions_of(sub.topic, Operation.READ)
        if sub.partition is not None:
            partitions = [self.acting.topics.partition(sub.topic, sub.partition, Operation.READ)]
        if sub.topic in self.feeds or sub.topic in self.unsaid:
            raise PenstockError(Code.INVALID_REQUEST, f"subscribed to {sub.topic!r} already")
        if sum(map(len, self.feeds.values())) + len(partitions) > MOST_FEEDS:
            raise PenstockError(Code.LIMIT_EXCEEDED, f"more than {MOST_FEEDS} partitions on one connection")
        feeds = [self.feed(sub.topic, each, sub.start) for each in partitions]
        answer.hold()
        self.placing = asyncio.get_running_loop().create_task(self.begin(sub.topic, feeds, answer))

    def feed(self, topic: str, partition: Partition, start: int) -> Feed:
        def take(record: Record) -> None:
            value = record.value or b""
            self.connection.push((b"MSG %d %d %d\n" % (partition.index, record.offset, len(value)), value, b"\n"))

        return self.acting.feed(
            partition,
            start,
            is_writable=lambda: self.connection.is_writable,
            take=take,
            failed=lambda error: self.end(topic, error),
        )

    async def begin(self, topic: str, feeds: list[Feed], answer: Answer) -> None:
        """OK is said when all feeds have their places: what is published after it comes. No record comes before it."""
        try:
            for feed in feeds:
                await feed.place()
            answer.send((b"OK\n",))
            self.feeds[topic] = feeds
            self.writable()
        except PenstockError as error:
            answer.send((tell(error),))
        finally:
            answer.release()

    def end(self, topic: str, error: PenstockError) -> None:
        self.unsubscribe(topic)
        self.unsaid[topic] = tell(error)
        self.writable()

    def unsubscribe(self, *topics: str) -> None:
        for topic in topics:
            for feed in self.feeds.pop(topic, ()):
                feed.stop()

    def writable(self) -> None:
        while self.unsaid and self.connection.is_writable:
            self.connection.push((self.unsaid.pop(next(iter(self.unsaid))),))
        for feed in [feed for feeds in self.feeds.values() for feed in feeds]:
            feed.go_on()

    def draining(self) -> bool:
        self.unsubscribe(*self.feeds)
        self.unsaid[""] = b"BYE\n"
        self.writable()
        return False

    def disconnected(self) -> None:
        self.waiting = None
        if self.placing is not None:
            self.placing.cancel()
        self.unsubscribe(*self.feeds)


def make_entrance(house: House, listener: Listener, ping_s: float = 10, silence_s: float = 30) -> StreamEntrance:
    engine, randomness = house.engine, Random()
    assert engine is not None

    def make_session(connection: Connection) -> ToySession:
        acting = engine.acting_as(Subject(host=connection.peer, door=listener.name))
        return ToySession(connection, acting, randomness, ping_s, silence_s)

    def make_framing(limits: Limits, room: Room) -> LineBuffer:
        return LineBuffer(limits.frame_bytes, room, line_limit=LONGEST_LINE)

    limits = house.client_limits()
    door = Door(listener.name, listener.protocol, listener.address, limits, make_session, make_framing=make_framing)
    return StreamEntrance(door, house)
