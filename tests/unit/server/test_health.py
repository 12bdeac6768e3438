"""What a broker says is wrong with it, by a real engine."""

import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.simulated_broker import Broker, running, virtual

from penstock.cluster import keys
from penstock.cluster.image import BrokerRecord, Image
from penstock.engine.coordination.internal_topics import OFFSETS_TOPIC
from penstock.engine.partition_state import NOBODY
from penstock.errors import Code, PenstockError
from penstock.ports.metadata import Change
from penstock.server.health import (
    CERTIFICATE_LEFT_MS,
    NAMED,
    Health,
    certificate_troubles,
    cluster_troubles,
    coordinator_troubles,
    loneliness,
    partition_troubles,
    revocation_troubles,
)
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock


def _broker() -> Broker:
    return Broker(FaultyDisk(), MemoryStore(), VirtualClock())


def test_it_is_as_bad_as_the_worst_reason() -> None:
    closed: list[str] = []
    troubles: list[str] = []
    health = Health([lambda: closed], [lambda: troubles, lambda: ["always"] if troubles else []])
    assert health.verdict() == ("healthy", [])
    troubles.append("t-0 is offline")
    assert health.verdict() == ("degraded", ["t-0 is offline", "always"])
    assert health.not_ready() == []
    closed.append("recovering")
    assert health.verdict() == ("unhealthy", ["recovering", "t-0 is offline", "always"])


def test_certificates_are_named_a_day_before_they_end_and_after_they_have() -> None:
    now_ms = 1_800_000_000_000  # 2027-01-15 08:00 UTC
    ends_ms = {"d": now_ms + CERTIFICATE_LEFT_MS + 1, "c": now_ms + CERTIFICATE_LEFT_MS, "b": now_ms, "a": now_ms + 1}
    assert list(certificate_troubles(ends_ms, now_ms)) == [
        "certificate a ends at 2027-01-15 08:00 UTC: renew it",
        "certificate b has ended at 2027-01-15 08:00 UTC: renew it",
        "certificate c ends at 2027-01-16 08:00 UTC: renew it",
    ]


def test_lists_of_revoked_certificates_are_named_when_they_were_to_be_replaced() -> None:
    now_ms = 1_800_000_000_000  # 2027-01-15 08:00 UTC
    assert list(revocation_troubles({"b": now_ms, "c": now_ms + 1, "a": now_ms - 1}, now_ms)) == [
        "list of revoked certificates a was to be replaced at 2027-01-15 07:59 UTC: fetch a new one",
        "list of revoked certificates b was to be replaced at 2027-01-15 08:00 UTC: fetch a new one",
    ]


@virtual
async def test_partitions_that_are_offline_or_unled_are_named_with_the_reason() -> None:
    async with running(_broker()) as broker:
        topic = await broker.engine.create_topic("t", NAMED + 3)
        assert list(partition_troubles(broker.engine)) == []
        topic.partitions[1].offline = PenstockError(Code.CORRUPT_LOG, "it ends below its kept end")
        topic.partitions[2].state = topic.partitions[2].state.led_by(NOBODY)
        assert list(partition_troubles(broker.engine)) == [
            "t-1 is offline: it ends below its kept end",
            "t-2 has no leader",
        ]
        for partition in topic.partitions:
            partition.offline = PenstockError(Code.CORRUPT_LOG, "why")
        reasons = list(partition_troubles(broker.engine))
        assert len(reasons) == NAMED + 1
        assert reasons[-1] == "3 more like the last one"


@virtual
async def test_upkeep_that_found_no_room_is_told_until_it_did() -> None:
    async with running(_broker()) as broker:
        await broker.engine.create_topic("t", 1)
        log, upkeep = broker.partition("t", 0).opened(), broker.engine._upkeep
        whole: Callable[..., Awaitable[None]] = upkeep._seal

        async def no_room(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "no space left")

        upkeep._seal = no_room  # type: ignore[assignment]
        await upkeep.tend(log, 0, 0)
        (reason,) = partition_troubles(broker.engine)
        assert reason.startswith("upkeep of t-0 failed") and "no space left" in reason
        upkeep._seal = whole  # type: ignore[assignment]
        await upkeep.tend(log, 0, 0)
        assert list(partition_troubles(broker.engine)) == []


@virtual
async def test_an_internal_topic_that_cannot_be_made_is_told_until_it_is() -> None:
    async with running(_broker()) as broker:
        engine = broker.engine
        made = engine.catalogue.internal_topic

        async def refused(_: str) -> Any:
            raise PenstockError(Code.LIMIT_EXCEEDED, "too many partitions")

        engine.catalogue.internal_topic = refused  # type: ignore[assignment]
        with pytest.raises(PenstockError):
            await engine.groups.shards.ready()
        assert list(coordinator_troubles(engine)) == [f"{OFFSETS_TOPIC} cannot be made: too many partitions"]
        engine.catalogue.internal_topic = made  # type: ignore[assignment]
        await engine.groups.shards.ready()
        assert list(coordinator_troubles(engine)) == []


@virtual
async def test_a_broker_that_nobody_works_with_is_not_ready_unless_it_can_acknowledge_what_it_leads() -> None:
    async with running(_broker()) as broker:

        def lonely(words: dict[int, str | None], *, is_admitted: bool = True) -> list[str]:
            return list(loneliness(words, broker.engine, is_admitted=is_admitted))

        alone = [
            "no other broker works with this one; broker 2: never",
            "no other broker works with this one; broker 3: no",
        ]
        assert lonely({}) == []
        assert lonely({2: None, 3: "no"}) == []
        assert lonely({3: "no", 2: "never"}) == alone, "it leads nothing"
        topic = await broker.engine.create_topic("t", 2)
        assert lonely({3: "no", 2: "never"}) == []
        assert lonely({3: "no", 2: "never"}, is_admitted=False) == alone
        topic.partitions[0].is_cut_off = True
        assert lonely({3: "no", 2: "never"}) == []
        leadership = topic.partitions[1]._leadership
        assert leadership is not None
        leadership.enough = False
        assert lonely({3: "no", 2: "never"}) == alone
        leadership.enough = True
        topic.partitions[1].led = None
        assert lonely({3: "no", 2: "never"}) == alone, "another broker leads"


def test_who_is_refused_is_named_by_both_sides() -> None:
    image = Image()
    image.trust(lambda _: False)
    record = BrokerRecord(4, "h", 1, "h", 2, None, 1, clean=True, level=1, proof="1:0")
    image.apply([Change(keys.broker_key(4), record.encode(), 1)])
    assert list(cluster_troubles(1, image, {2: None, 3: "authentication failed"}, [5])) == [
        "broker 4 is registered and given nothing: its record was not written by a broker with the cluster's secret",
        "broker 1 and broker 3 do not work together: authentication failed",
        "broker 1 refuses broker 5, or somebody in its name: it does not prove to have the secret",
    ]
