"""Produce: what is appended, what is refused with which code, and when the answer comes."""

import asyncio
import errno
from random import Random
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c
from tests.doors.kafka import Client, Door, base_offsets, batch_of, make, produce_values, with_door, with_header

from penstock.engine import opener, publishing
from penstock.protocols.kafka.handlers import produce
from penstock.records.build import build_batch
from penstock.records.compression import Codec

GOOD = batch_of(b"one", b"two")
INVALID_RECORD = 87
UNKNOWN_TOPIC, CORRUPT, TOO_LARGE, BAD_ACKS, BAD_TIME, UNSUPPORTED = 3, 2, 10, 21, 32, 35
OUT_OF_ORDER, FENCED, STORAGE, BAD_CODEC, INVALID, UNKNOWN_ID = 45, 47, 56, 76, 87, 100


async def started(door: Door, **settings: Any) -> Client:
    await door.topic(**settings)
    return await door.client()


@pytest.mark.parametrize("version", range(produce.API.oldest, produce.API.newest + 1))
@pytest.mark.parametrize("acks", [-1, 1])
def test_every_version_appends(version: int, acks: int) -> None:
    async def body(door: Door) -> None:
        topic = await door.topic()
        client = await door.client()
        name = topic.topic_id if version >= 13 else "t"
        for base in (0, 2, 4):
            row = await client.produce(GOOD, topic=name, version=version, acks=acks)
            assert (row["error_code"], row["base_offset"], row["index"]) == (0, base, 0)
            assert row.get("log_start_offset", 0) == 0
        assert topic.partitions[0].opened().end_offset == 6
        assert (door.stats.appended_batches, door.stats.appended_records) == (3, 6)

    with_door(body)


def test_offset_and_epoch_are_patched_and_the_rest_is_kept() -> None:
    async def body(door: Door) -> None:
        client = await started(door)
        await client.produce(GOOD)
        await client.produce(with_header(GOOD, base_offset=77, leader_epoch=9))
        records = (await client.fetch())["responses"][0]["partitions"][0]["records"]
        assert base_offsets(records) == [0, 2]
        second = records[len(GOOD) :]
        assert second[16:] == GOOD[16:]
        assert second[12:16] == bytes(4)

    with_door(body)


def test_many_topics_and_partitions_in_one_request() -> None:
    async def body(door: Door) -> None:
        await door.topic("a", 3)
        await door.topic("b", 1)
        client = await door.client()
        topics = [
            {"name": "a", "partition_data": [{"index": index, "records": GOOD} for index in (2, 0, 7)]},
            {"name": "nobody", "partition_data": [{"index": 0, "records": GOOD}]},
            {"name": "b", "partition_data": [{"index": 0, "records": GOOD}]},
        ]
        answer = await client.ask("produce", 9, acks=-1, timeout=1000, topic_data=topics)
        found = [
            (each["name"], row["index"], row["error_code"], row["base_offset"])
            for each in answer["responses"]
            for row in each["partition_responses"]
        ]
        assert found == [
            ("a", 2, 0, 0),
            ("a", 0, 0, 0),
            ("a", 7, UNKNOWN_TOPIC, -1),
            ("nobody", 0, UNKNOWN_TOPIC, -1),
            ("b", 0, 0, 0),
        ]

    with_door(body)


NO_CHECKSUM = with_header(GOOD, crc=crc32c(GOOD[21:]) ^ 1)
BAD_BATCHES = {
    "null": (None, CORRUPT),
    "empty": (b"", CORRUPT),
    "shorter than a header": (GOOD[:60], CORRUPT),
    "cut": (GOOD[:-1], CORRUPT),
    "longer than it says, by less than a batch": (GOOD + b"x", INVALID),
    "two batches": (GOOD + GOOD, INVALID),
    "wrong checksum": (NO_CHECKSUM, CORRUPT),
    "flipped bit": (GOOD[:-3] + bytes([GOOD[-3] ^ 4]) + GOOD[-2:], CORRUPT),
    "magic 0": (with_header(GOOD, magic=0), INVALID),
    "magic 1": (with_header(GOOD, magic=1), INVALID),
    "magic 3": (with_header(GOOD, magic=3), INVALID),
    "negative length": (with_header(GOOD, batch_length=-1), CORRUPT),
    "huge length": (with_header(GOOD, batch_length=(1 << 31) - 1), CORRUPT),
    "control": (with_header(GOOD, attributes=0x20), INVALID),
    "control and transactional": (with_header(GOOD, attributes=0x30, producer_id=1), INVALID),
    "transactional without producer": (with_header(GOOD, attributes=0x10), INVALID),
    "codec 5": (with_header(GOOD, attributes=5), BAD_CODEC),
    "codec 7": (with_header(GOOD, attributes=7), BAD_CODEC),
    "unknown attribute": (with_header(GOOD, attributes=0x40), INVALID),
    "negative attributes": (with_header(GOOD, attributes=-32768), INVALID),
    "log-append time": (with_header(GOOD, attributes=0x08), BAD_TIME),
    "no records": (with_header(GOOD, record_count=0, last_offset_delta=-1), INVALID),
    "negative count": (with_header(GOOD, record_count=-5, last_offset_delta=-6), INVALID),
    "delta too small": (with_header(GOOD, last_offset_delta=0), INVALID),
    "delta too large": (with_header(GOOD, last_offset_delta=2), INVALID),
    "delta huge": (with_header(GOOD, last_offset_delta=(1 << 31) - 1), INVALID),
    "producer without epoch": (with_header(GOOD, producer_id=5), INVALID),
    "producer without sequence": (with_header(GOOD, producer_id=5, producer_epoch=0), INVALID),
    "from the future": (batch_of(b"x", timestamp_ms=1_900_000_000_000), BAD_TIME),
    "larger than the topic takes": (batch_of(bytes(5000)), TOO_LARGE),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_bad_batches_are_refused_with_their_code(name: str) -> None:
    batch, code = BAD_BATCHES[name]

    async def body(door: Door) -> None:
        client = await started(door, max_message_bytes="2000")
        for acks in (-1, 1):
            row = await client.produce(batch, acks=acks)
            assert (row["error_code"], row["base_offset"]) == (code, -1)
            assert row["error_message"]
        assert (await client.produce(GOOD))["base_offset"] == 0, "the log is untouched and goes on"

    with_door(body)


@pytest.mark.parametrize("version", [3, 6, 7, 12])
def test_zstd_needs_version_7(version: int) -> None:
    async def body(door: Door) -> None:
        client = await started(door)
        row = await client.produce(batch_of(b"x" * 100, codec=Codec.ZSTD), version=version)
        assert row["error_code"] == (0 if version >= 7 else BAD_CODEC)

    with_door(body)


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_comes_back_as_it_was_sent(codec: Codec) -> None:
    batch = batch_of(b"x" * 500, b"y" * 500, codec=codec)

    async def body(door: Door) -> None:
        client = await started(door)
        assert (await client.produce(batch))["error_code"] == 0
        records = (await client.fetch())["responses"][0]["partitions"][0]["records"]
        assert records[16:] == batch[16:]

    with_door(body)


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_acks_must_be_known(acks: int) -> None:
    async def body(door: Door) -> None:
        client = await started(door)
        assert (await client.produce(GOOD, acks=acks))["error_code"] == BAD_ACKS

    with_door(body)


def test_acks_0_is_not_answered() -> None:
    async def body(door: Door) -> None:
        client = await started(door)
        for _ in range(3):
            client.send(make("produce", 9, produce_values(GOOD, acks=0)))
        answer = await client.ask("list_offsets", 7, topics=[{"name": "t", "partitions": [{"timestamp": -1}]}])
        assert answer["topics"][0]["partitions"][0]["error_code"] == 0, "the next answer is the next question's"
        await asyncio.sleep(1)  # of virtual time
        assert door.engine.topics.partition("t", 0).high_watermark == 6

    with_door(body)


def test_a_failed_acks_0_closes_the_connection() -> None:
    async def body(door: Door) -> None:
        client = await started(door)
        client.send(make("produce", 9, produce_values(NO_CHECKSUM, acks=0)))
        await client.stream.closed()

    with_door(body)


def test_acks_all_waits_for_the_sync_and_acks_1_does_not() -> None:
    async def body(door: Door) -> None:
        client = await started(door)
        partition = door.engine.topics.partition("t", 0)
        assert (await client.produce(GOOD, acks=-1))["error_code"] == 0
        assert partition.high_watermark == 2
        door.disk.max_delay_s = 5
        begun = door.clock.monotonic()
        assert (await client.produce(GOOD, acks=1))["base_offset"] == 2
        assert door.clock.monotonic() - begun < 0.1
        assert partition.high_watermark == 2
        assert (await client.produce(GOOD, acks=-1))["base_offset"] == 4
        assert partition.high_watermark == 6
        assert door.disk.counts["sync_files"] >= 2

    with_door(body)


def test_duplicates_sequences_and_epochs() -> None:
    async def body(door: Door) -> None:
        client = await started(door)

        async def send(sequence: int, epoch: int = 0, producer: int = 7) -> tuple[int, int]:
            batch = batch_of(b"a", b"b", producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
            row = await client.produce(batch)
            return row["error_code"], row["base_offset"]

        assert [await send(sequence) for sequence in (0, 2, 4)] == [(0, 0), (0, 2), (0, 4)]
        assert await send(2) == (0, 2), "a duplicate gets its old offset"
        assert (await send(8))[0] == OUT_OF_ORDER
        assert await send(6) == (0, 6)
        assert (await send(4, epoch=1))[0] == OUT_OF_ORDER, "a new epoch begins at 0"
        assert await send(0, epoch=1) == (0, 8)
        assert (await send(8, epoch=0))[0] == FENCED
        assert await send(40, producer=9) == (0, 10), "an unknown producer may begin anywhere"

    with_door(body)


def test_topic_ids() -> None:
    async def body(door: Door) -> None:
        await door.topic()
        client = await door.client()
        for unknown in (UUID(int=5), UUID(int=0)):
            assert (await client.produce(GOOD, topic=unknown, version=13))["error_code"] == UNKNOWN_ID
        known = door.engine.topics.get("t")
        assert (await client.produce(GOOD, topic=known.topic_id, partition=3, version=13))[
            "error_code"
        ] == UNKNOWN_TOPIC

    with_door(body)


@pytest.mark.parametrize("name", ["", "nobody", "x" * 32_000, "ä", "../t"])
def test_unknown_names(name: str) -> None:
    async def body(door: Door) -> None:
        client = await started(door)
        for version in (8, 9):
            row = await client.produce(GOOD, topic=name, version=version)
            assert row["error_code"] == UNKNOWN_TOPIC
            assert len(row["error_message"]) <= 500

    with_door(body)


def test_append_time_is_stamped_and_told() -> None:
    async def body(door: Door) -> None:
        client = await started(door, message_timestamp_type="LogAppendTime")
        row = await client.produce(GOOD)
        assert row["log_append_time"] == pytest.approx(door.clock.now_ms(), abs=1000)
        records = (await client.fetch())["responses"][0]["partitions"][0]["records"]
        assert crc32c(records[21:]) == int.from_bytes(records[17:21], "big")
        assert int.from_bytes(records[35:43], "big") == row["log_append_time"]

    with_door(body)


def test_a_full_disk_is_told_and_the_log_goes_on() -> None:
    async def body(door: Door) -> None:
        client = await started(door)
        await client.produce(GOOD)
        door.disk.fail("write_at", errno.ENOSPC)
        assert (await client.produce(GOOD))["error_code"] == STORAGE
        assert (await client.produce(GOOD))["base_offset"] == 2

    with_door(body)


def test_a_deleted_topic_lets_waiting_producers_go() -> None:
    async def body(door: Door) -> None:
        client = await started(door)
        other = await door.client()
        door.disk.max_delay_s = 1
        client.send(make("produce", 9, produce_values(GOOD)))
        await asyncio.sleep(0.01)
        await other.ask("delete_topics", 5, topic_names=["t"], timeout=1000)
        await client.receive("produce", 9)
        assert (await client.produce(GOOD))["error_code"] == UNKNOWN_TOPIC

    with_door(body)


def test_an_empty_request() -> None:
    async def body(door: Door) -> None:
        client = await started(door)
        for version in (3, 9, 13):
            answer = await client.ask("produce", version, acks=-1, timeout=1, topic_data=[])
            assert answer["responses"] == ()

    with_door(body)


def test_a_batch_that_claims_two_thousand_million_records_moves_no_offset() -> None:
    most = (1 << 31) - 1
    batch = with_header(batch_of(bytes(5000)), record_count=most, last_offset_delta=most - 1)

    async def body(door: Door) -> None:
        client = await started(door)
        assert (await client.produce(batch))["error_code"] == INVALID_RECORD
        assert (await client.produce(GOOD))["base_offset"] == 0

    with_door(body)


def test_who_sends_faster_than_batches_are_opened_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker stops reading, and nothing is refused."""
    monkeypatch.setattr(opener, "CROWDED_BYTES", 100_000)
    monkeypatch.setattr(publishing, "MOST_BYTES_AT_ONCE", 10_000)
    batch = batch_of(*(Random(at).randbytes(1000) for at in range(40)), codec=Codec.ZSTD)

    async def body(door: Door) -> None:
        await door.topic()
        client = await door.client()
        request = make("produce", 9, produce_values(batch))
        most = 0
        for _ in range(20):
            client.send(request)
        for at in range(20):
            _, answer = await client.receive("produce", 9)
            row = answer["responses"][0]["partition_responses"][0]
            assert (row["error_code"], row["base_offset"]) == (0, at * 40)
            most = max(most, door.engine.opener.waiting_bytes)
        assert 100_000 - len(batch) < most < 100_000 + 2 * len(batch)
        assert door.engine.opener.waiting_bytes == 0

    with_door(body)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("size", [10, 200_000])
def test_a_body_that_is_not_what_the_header_says_is_refused(codec: Codec, size: int) -> None:
    """On the loop, and in the opener's thread where it is large."""
    coin = Random(7)
    three = build_batch([(None, coin.randbytes(size), (), 1_700_000_000_000)] * 3, codec=codec)
    one = with_header(three, record_count=1, last_offset_delta=0)
    garbage = bytearray(three)
    garbage[61:] = coin.randbytes(len(three) - 61)

    async def body(door: Door) -> None:
        client = await started(door)
        partition = door.engine.topics.partition("t", 0)
        for bad in (one, with_header(bytes(garbage))):
            row = await client.produce(bad)
            assert row["error_code"] in (CORRUPT, TOO_LARGE) and row["error_message"]  # garbage may claim any size
            assert partition.opened().end_offset == 0
        assert (await client.produce(three))["base_offset"] == 0
        await door.topic("trusting", records_check="none")
        assert (await client.produce(one, topic="trusting"))["error_code"] == 0

    with_door(body)


def test_a_batch_that_opens_to_too_much_is_too_large() -> None:
    bomb = build_batch([(None, bytes(17 << 20), (), 1_700_000_000_000)], codec=Codec.ZSTD)
    assert len(bomb) < 16 * 1024

    async def body(door: Door) -> None:
        client = await started(door)
        assert (await client.produce(bomb))["error_code"] == TOO_LARGE

    with_door(body)


def test_many_batches_of_one_request_are_not_all_opened_on_the_loop() -> None:
    batch = batch_of(*(Random(at).randbytes(1000) for at in range(100)), codec=Codec.LZ4)

    async def body(door: Door) -> None:
        await door.topic(partitions=10)
        client = await door.client()
        rows = [{"index": index, "records": batch} for index in range(10)]
        client.send(make("produce", 9, {"acks": -1, "topic_data": [{"name": "t", "partition_data": rows}]}))
        waiting = 0
        while not waiting:
            await asyncio.sleep(0.0001)
            waiting = door.engine.opener.waiting_bytes
        assert waiting == 8 * len(batch), "256 KiB are two of them and a half"
        _, answer = await client.receive("produce", 9)
        assert [row["error_code"] for row in answer["responses"][0]["partition_responses"]] == [0] * 10

    with_door(body)


def test_an_answer_that_cannot_be_made_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise ValueError("a bug")

    async def body(door: Door) -> None:
        await door.topic()
        client, other = await door.client(), await door.client()
        with monkeypatch.context() as patch:
            patch.setattr(produce, "encode", fail)
            client.send(make("produce", 9, produce_values(batch_of(b"x"))))
            await client.stream.closed()
        assert (await other.produce(batch_of(b"y")))["base_offset"] == 1

    with_door(body)
