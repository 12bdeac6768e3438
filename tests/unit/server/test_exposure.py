"""What a real broker says that others can reach without TLS and logins; and its listener for metrics alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from penstock.server import broker as room
from penstock.server.broker import Broker
from penstock.server.config import Address, Cluster, Config, Listener, Listeners, Security

FREE = Address("127.0.0.1", 0)
BEYOND = Address("0.0.0.0", 0)
ADVERTISED = Address("broker.example", 9092)
DEADLINE_S = 30


@asynccontextmanager
async def running(config: Config, log: Any = None) -> AsyncIterator[Broker]:
    broker = Broker(config, log=log)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


async def get(broker: Broker, path: str, listener: str = "http") -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=DEADLINE_S) as client:
        return await client.get(f"http://{broker.ready_words[listener]}{path}")


@pytest.mark.parametrize("is_exposed", [True, False])
async def test_health_and_metrics_say_whether_others_can_reach_it_unasked(tmp_path: Path, is_exposed: bool) -> None:
    listeners = Listeners(kafka=BEYOND if is_exposed else FREE, http=FREE, advertised_kafka=ADVERTISED)
    async with running(Config(data_dir=tmp_path, listeners=listeners, insecure=True)) as broker:
        health = (await get(broker, "/health")).json()
        assert health["insecure"] is is_exposed and health["status"] == "healthy"
        assert f"\npenstock_insecure {float(is_exposed)}\n" in (await get(broker, "/metrics")).text


@pytest.mark.parametrize(("mode", "is_insecure"), [("closed", True), ("open", False)])
async def test_a_metadata_store_in_plain_counts_where_secrets_are_kept_in_it(
    tmp_path: Path, mode: str, is_insecure: bool
) -> None:
    log = Mock()
    cluster = Cluster(store="etcd://127.0.0.1:2379,10.0.0.2:2379/prefix")
    broker = Broker(Config(data_dir=tmp_path, insecure=True, cluster=cluster, security=Security(mode=mode)), log=log)
    broker._warn_if_insecure()
    said = [call for call in log.warning.mock_calls if call.args[0].startswith("INSECURE")]
    assert [call.kwargs["host"] for call in said] == ["10.0.0.2"] * is_insecure
    assert broker.gauges()["insecure"] == is_insecure and broker._summary()["insecure"] is is_insecure


class Warned:
    """A broker's log that counts what it is about.

    Attributes:
        thrice: set when it was said so often.
    """

    def __init__(self) -> None:
        self.count = 0
        self.thrice = asyncio.Event()

    def info(self, event: str, **words: object) -> None:
        return None

    def warning(self, event: str, **words: object) -> None:
        if event.startswith("INSECURE"):
            assert words["listeners"] == "kafka=kafka://0.0.0.0:0 (advertised broker.example:9092)"
            self.count += 1
            if self.count == 3:
                self.thrice.set()


async def test_the_log_says_so_at_the_start_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_INSECURE_WARNING_S", 0.01)
    listeners = Listeners(kafka=BEYOND, http=FREE, advertised_kafka=ADVERTISED)
    exposed, alone = Warned(), Warned()
    async with running(Config(data_dir=tmp_path / "a", listeners=listeners, insecure=True), exposed):
        assert exposed.count
        async with asyncio.timeout(DEADLINE_S):
            await exposed.thrice.wait()
    listeners = Listeners(kafka=FREE, http=FREE)
    async with running(Config(data_dir=tmp_path / "b", listeners=listeners, insecure=True), alone):
        assert alone.count == 0


async def test_a_metrics_listener_serves_health_and_metrics_to_whoever_connects_and_nothing_else(
    tmp_path: Path,
) -> None:
    listeners = Listeners(kafka=FREE, http=FREE, more=(Listener("metrics", "metrics", FREE),), is_named=True)
    config = Config(data_dir=tmp_path, listeners=listeners, security=Security(mode="closed"))
    async with running(config) as broker:
        for path in ("/health", "/metrics"):
            assert (await get(broker, path)).status_code == 403
            assert (await get(broker, path, "metrics")).status_code == 200
        assert (await get(broker, "/health/ready", "metrics")).json() == {"status": "ready", "reasons": []}
        assert (await get(broker, "/health/live", "metrics")).status_code == 200
        assert (await get(broker, "/", "metrics")).status_code == 404


async def test_a_metrics_listener_with_auth_asks_for_a_login(tmp_path: Path) -> None:
    asking = Listener("metrics", "metrics", FREE, auth=("basic",))
    listeners = Listeners(kafka=FREE, http=FREE, more=(asking,), is_named=True)
    config = Config(data_dir=tmp_path, listeners=listeners, security=Security(mode="open"))
    async with running(config) as broker:
        assert (await get(broker, "/metrics", "metrics")).status_code == 401
        assert (await get(broker, "/metrics")).status_code == 200
