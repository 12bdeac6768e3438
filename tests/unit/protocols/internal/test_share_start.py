"""Where a share group begins, asked of the broker that coordinates it."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.protocols.internal.two_brokers import TwoBrokers, with_two_brokers

from penstock.engine.groups.share_requests import ShareHeartbeat, ShareStart
from penstock.errors import Code, PenstockError
from penstock.net.connection import PeerError
from penstock.protocols.internal import share_start
from penstock.protocols.internal.share_start import AskedStarts, Wanted

_STARTS = st.none() | st.builds(ShareStart, st.integers(0, 1 << 30), st.none() | st.integers(0, 1 << 60))


@given(st.text(max_size=300), st.uuids(), st.integers(0, 10_000))
def test_a_question_comes_as_it_was_asked(group: str, topic_id: UUID, partition: int) -> None:
    wanted = Wanted(group, topic_id, partition)
    assert share_start.decode(memoryview(share_start.encode(wanted))) == wanted


@given(_STARTS)
def test_an_answer_comes_as_it_was_given(start: ShareStart | None) -> None:
    assert share_start.decode_answer(memoryview(share_start.encode_answer(start))) == start


@given(st.binary(max_size=60))
def test_anything_else_is_refused(body: bytes) -> None:
    for decode in (share_start.decode, share_start.decode_answer):
        try:
            decode(memoryview(body))
        except PeerError:
            continue


def test_the_coordinator_tells_and_refuses() -> None:
    async def body(it: TwoBrokers) -> None:
        engine, topic = it.door.engine, it.led
        await engine.groups.share_heartbeat(ShareHeartbeat("g", "m", 0, None, ("t",)))
        asked = AskedStarts(lambda broker_id: it.peer)
        told = await asked.share_start(1, "g", topic.topic_id, 0)
        assert told == await engine.groups.share_start("g", topic.topic_id, 0)
        assert told is not None and told.offset is None
        assert await asked.share_start(1, "g", topic.topic_id, 7) is None
        coordinator = (await engine.groups.shards.of("g")).partition
        coordinator.follow(replace(coordinator.state, leader=3))
        with pytest.raises(PenstockError) as refused:
            await asked.share_start(1, "g", topic.topic_id, 0)
        assert refused.value.code is Code.NOT_COORDINATOR

    with_two_brokers(body)
