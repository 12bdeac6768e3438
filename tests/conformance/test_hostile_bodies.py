"""Batches with damaged bodies and right checksums, sent by hand: none is taken, no reader notices that they came."""

import functools
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from penstock.records.batch import HEADER_BYTES, PREFIX_BYTES, TRANSACTIONAL
from penstock.records.build import build_batch
from penstock.records.compression import Codec, compress
from tests.doors.kafka import produce_values, with_header
from tests.peers import penstock
from tests.peers.broker import Broker

from .clients import CLIENTS
from .clients.client import DEADLINE_S
from .conftest import PEER, Judges, eventually, fresh_name, segment_files
from .damaged_frames import BOMBS, DAMAGED, ODD_FRAMES, ODD_RECORDS
from .damaged_records import GOOD, SHAPES, Section
from .records import Record
from .wire import Wire, batch_headers

KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    # Keys repeat here, and all are counted.
    "compacted": {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"},
    "recompressed": {"compression.type": "zstd"},
    "append time": {"message.timestamp.type": "LogAppendTime"},
    "idempotent": {},
    "transactional": {},
}
LARGEST_OPENED_BYTES, LEAST_RECORD_BYTES = 16 << 20, 7
OURS_ONLY = pytest.mark.skipif(PEER != "penstock", reason="a setting of ours")


class Outcome(NamedTuple):
    kind: str
    codec: Codec
    error: ErrorCode
    wanted: ErrorCode
    appended_bytes: int


@dataclass(slots=True)
class Target:
    """A topic of one partition, what was sent to it, and what its readers have to find."""

    broker: Broker
    wire: Wire
    kind: str
    topic: str
    now_ms: int
    transactional_id: str | None = None
    producer: tuple[int, int] = (-1, -1)
    sequence: int = 0
    good: list[tuple[int, bytes | None, bytes | None]] = field(default_factory=list)
    """Offset, key and value."""
    moves: list[tuple[int, int]] = field(default_factory=list)
    """The partition's end before and after the attacks in each codec."""

    def batch(self, codec: Codec, body: bytes, section: Section) -> bytes:
        """A batch with a right header, as far as the section allows one, and a right checksum."""
        start = build_batch([(b"k", b"v", (), self.now_ms)])[:HEADER_BYTES]
        last = section.count - 1 if section.last_offset_delta is None else section.last_offset_delta
        return with_header(
            start + body,
            batch_length=HEADER_BYTES - PREFIX_BYTES + len(body),
            attributes=codec | (TRANSACTIONAL if self.transactional_id else 0),
            record_count=section.count,
            last_offset_delta=last,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            base_sequence=self.sequence if self.producer[0] >= 0 else -1,
        )

    def send(self, batch: bytes) -> tuple[ErrorCode, int]:
        values = produce_values(batch, self.topic)
        answer = self.wire.call("produce", 9, transactional_id=self.transactional_id, **values)
        row = answer.responses[0].partition_responses[0]
        return row.error_code, row.base_offset

    def end(self) -> int:
        return int(self.wire.fetch(self.topic, 0, 0, max_bytes=1).high_watermark)

    def suffer(self, codec: Codec) -> Iterator[tuple["Attack", Outcome]]:
        """Send every attack; what came of each."""
        start, size = self.end(), self._stored_bytes()
        for attack in attacks(codec):
            error, _ = self.send(self.batch(codec, attack.body, attack.section))
            before, size = size, self._stored_bytes()
            if error is ErrorCode.none:  # to go on to the next one, and name all that are taken
                self.sequence += attack.section.count
            yield attack, Outcome(self.kind, codec, error, attack.wanted, size - before)
        self.moves.append((start, self.end()))

    def _stored_bytes(self) -> int:
        return sum(each.stat().st_size for each in segment_files(self.broker, self.topic, 0))

    def send_good(self, codec: Codec, body: bytes, section: Section) -> None:
        error, offset = self.send(self.batch(codec, body, section))
        assert error is ErrorCode.none, f"{self.kind}, {codec!r}: a good batch is refused"
        self.good += [(offset + n, b"k", b"v") for n in range(section.count)]
        self.sequence += section.count


@dataclass(slots=True)
class Field:
    """After the attack."""

    targets: list[Target]
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)


def claims_the_impossible(codec: Codec, body: bytes, section: Section) -> bool:
    """Whether the header alone shows that the batch is wrong."""
    room = LARGEST_OPENED_BYTES if codec and body else len(body)
    misfit = section.last_offset_delta not in (None, section.count - 1)
    return misfit or section.count <= 0 or section.count * LEAST_RECORD_BYTES > room


class Attack(NamedTuple):
    name: str
    body: bytes
    section: Section
    wanted: ErrorCode


def names(codec: Codec) -> list[str]:
    """Of all that is sent in a codec, in the order of `attacks`."""
    word = codec.name.lower()
    return [
        *(f"records: {name}" for name in SHAPES),
        *(f"{word}: {name}" for name in DAMAGED.get(codec, {})),
        *(f"{word}: a bomb, {name}" for name in BOMBS.get(codec, {})),
    ]


@functools.cache
def attacks(codec: Codec) -> list[Attack]:
    made = [(compress(codec, shape().records), shape()) for shape in SHAPES.values()]
    made += [(damage(), Section(GOOD)) for damage in DAMAGED.get(codec, {}).values()]
    errors = [
        ErrorCode.invalid_record if claims_the_impossible(codec, *each) else ErrorCode.corrupt_message for each in made
    ]
    bombs = [(bomb(), Section(GOOD, 1)) for bomb in BOMBS.get(codec, {}).values()]
    errors += [ErrorCode.message_too_large] * len(bombs)
    return [Attack(name, *each, wanted) for name, each, wanted in zip(names(codec), made + bombs, errors, strict=True)]


def begin_transaction(target: Target) -> None:
    wire, name = target.wire, fresh_name("hostile")
    eventually(  # Kafka makes the topic of its coordinators when somebody asks for one
        lambda: wire.call("find_coordinator", 4, key_type=1, coordinator_keys=[name]).coordinators[0].error_code,
        lambda error: error is ErrorCode.none,
    )
    started = eventually(
        lambda: wire.call("init_producer_id", 4, transactional_id=name, transaction_timeout=600_000),
        lambda answer: answer.error_code is ErrorCode.none,
    )
    target.transactional_id, target.producer = name, (started.producer_id, started.producer_epoch)

    def added() -> ErrorCode:
        answer = wire.call(
            *("add_partitions_to_txn", 3),
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=started.producer_id,
            v3_and_below_producer_epoch=started.producer_epoch,
            v3_and_below_topics=[{"name": target.topic, "partitions": [0]}],
        )
        return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code  # type: ignore[no-any-return]

    assert eventually(added, lambda error: error is ErrorCode.none) is ErrorCode.none


def commit(target: Target) -> None:
    identity = {"producer_id": target.producer[0], "producer_epoch": target.producer[1]}
    answer = target.wire.call("end_txn", 3, transactional_id=target.transactional_id, committed=True, **identity)
    assert answer.error_code is ErrorCode.none
    before = target.good[-1][0] + 1
    assert eventually(target.end, lambda end: end > before) == before + 1, "the marker"


@pytest.fixture(scope="module")
def attacked(broker: Broker, judges: Judges, new_topic: Callable[..., str]) -> Iterator[Field]:
    """Every shape in every codec sent to every kind of topic on one connection, good batches between them."""
    with Wire(broker.bootstrap) as wire:
        now_ms = int(time.time() * 1000)
        found = Field(
            [
                Target(broker, wire, kind, new_topic(kind.replace(" ", "-"), **settings), now_ms)
                for kind, settings in KINDS.items()
            ]
        )
        for target in found.targets:
            if target.kind == "idempotent":
                started = wire.call("init_producer_id", 4, transactional_id=None, transaction_timeout=60_000)
                target.producer = started.producer_id, started.producer_epoch
            elif target.kind == "transactional":
                begin_transaction(target)
        for codec in Codec:
            for target in found.targets:
                for attack, outcome in target.suffer(codec):
                    found.outcomes.setdefault(attack.name, []).append(outcome)
                if PEER == "penstock":
                    write_good(judges, target, codec)
        if PEER == "penstock":
            commit(found.targets[-1])
        yield found


def write_good(judges: Judges, target: Target, codec: Codec) -> None:
    """What librdkafka writes, and what is odd and right."""
    records = [Record(b"%d of %s" % (n, codec.name.encode()), b"key %d" % n) for n in range(20)]
    with_id = target.kind == "idempotent"  # half a second each
    offsets = judges["confluent"].produce(target.topic, 0, records, codec=codec.name.lower(), idempotent=with_id)
    target.good += [(offset, each.key, each.value) for offset, each in zip(offsets, records, strict=True)]
    for make in ODD_RECORDS.values():
        section = make()
        target.send_good(codec, compress(codec, section.records), section)
    for frame in ODD_FRAMES[codec].values():
        target.send_good(codec, frame(), Section(GOOD))


@pytest.mark.parametrize("name", dict.fromkeys(name for codec in Codec for name in names(codec)))
def test_it_is_refused_and_nothing_is_appended(attacked: Field, name: str) -> None:
    outcomes = attacked.outcomes[name]
    if PEER == "kafka":
        said = {
            f"{each.codec.name.lower()}: {each.error.name}{', appended' * bool(each.appended_bytes)}"
            for each in outcomes
        }
        pytest.skip(f"{name}: Kafka says {', '.join(sorted(said))}")
    assert len(outcomes) >= len(KINDS)
    assert [each for each in outcomes if each.error is not each.wanted or each.appended_bytes] == []


@pytest.mark.skipif(PEER == "kafka", reason="Kafka takes some of the shapes")
def test_no_partition_s_end_has_moved(attacked: Field) -> None:
    for target in attacked.targets:
        assert len(target.moves) == len(Codec)
        assert all(before == after for before, after in target.moves), f"{target.kind}: {target.moves}"


def test_a_compacted_topic_wants_keys(broker: Broker, wire: Wire, new_topic: Callable[..., str]) -> None:
    topic = new_topic("keyless", **KINDS["compacted"])
    for codec in Codec:
        keyless = build_batch([(b"k", b"v", (), 1), (None, b"v", (), 1)], codec=codec)
        assert wire.produce(topic, {0: keyless})[0].error_code is ErrorCode.invalid_record
    assert wire.fetch(topic, 0, 0).high_watermark == 0


@pytest.mark.skipif(PEER == "kafka", reason="Kafka takes some of the shapes, and its readers stop at them")
@pytest.mark.parametrize("reader", CLIENTS)
def test_readers_find_the_good_records_and_no_others(attacked: Field, judges: Judges, reader: str) -> None:
    client = judges[reader]
    for target in attacked.targets:
        marker = target.transactional_id is not None
        assert client.latest(target.topic, 0) == len(target.good) + marker
        received = client.read(target.topic, 0, 0, len(target.good))
        assert [(each.offset, each.key, each.value) for each in received] == target.good, target.kind


@OURS_ONLY
def test_unchecked_topics_take_it_and_say_so(broker: Broker, wire: Wire, new_topic: Callable[..., str]) -> None:
    topic = new_topic("unchecked", **{"records.check": "none"})
    target = Target(broker, wire, "unchecked", topic, int(time.time() * 1000))
    taken = 0
    for codec in Codec:
        for name, body, section, wanted in attacks(codec):
            error, offset = target.send(target.batch(codec, body, section))
            if wanted is ErrorCode.invalid_record:
                assert error is ErrorCode.invalid_record, f"{name}: the header is looked at everywhere"
                continue
            assert (error, offset) == (ErrorCode.none, taken), name
            taken += section.count
    assert target.end() == taken
    assert batch_headers(wire.fetch(topic, 0, 0).records or b"")[0].count == 2, "three records under a header of two"
    described = subprocess.run(
        [*penstock.command(), "topic", "describe", topic, "--server", broker.bootstrap],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert "records.check=none: other batches are kept as they come" in described.stdout


@OURS_ONLY
def test_one_codec_can_be_left_unchecked(broker: Broker, wire: Wire, new_topic: Callable[..., str]) -> None:
    topic = new_topic("some-checked", **{"records.check": "uncompressed,gzip"})
    target = Target(broker, wire, "some checked", topic, int(time.time() * 1000))
    section = SHAPES["offsets from one on"]()
    for codec in Codec:
        error, _ = target.send(target.batch(codec, compress(codec, section.records), section))
        checked = codec in (Codec.NONE, Codec.GZIP)
        assert error is (ErrorCode.corrupt_message if checked else ErrorCode.none), codec
