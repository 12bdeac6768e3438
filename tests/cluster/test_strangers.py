"""Who does not have the cluster's secret is given nothing, and told why."""

import asyncio
import json
import subprocess
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from penstock.cluster import keys
from penstock.cluster.image import BrokerRecord
from penstock.cluster.metadata.etcd import EtcdStore
from tests.peers.broker import wait_until
from tests.peers.penstock import command

from .conftest import PEER
from .penstock_cluster import PenstockCluster

pytestmark = pytest.mark.skipif(PEER != "penstock", reason="Penstock's own secret")


def _is_said(log: Path, size: int, words: bytes) -> bool:
    """Behind what the log had then."""
    return words in Path(log).read_bytes()[size:]


def test_a_broker_with_another_secret_does_not_start(cluster: PenstockCluster) -> None:
    stranger = cluster.stranger(4)
    stranger.launch()
    try:
        code = stranger.wait_end()
    finally:
        stranger.kill()
    told = Path(stranger.log).read_text()
    assert code == 2, told
    assert "have another cluster secret than this one" in told
    assert not (cluster.data_directory(4) / "cluster").exists()
    assert all(node.brokers() == {1, 2, 3} for node in cluster.live)


@pytest.mark.parametrize("proof", ["", "1:" + "0" * 64])
def test_a_forged_record_is_given_nothing(cluster: PenstockCluster, proof: str) -> None:
    """As a broker of an earlier release with another secret would write it, or one that guesses."""
    topic = f"forged-{len(proof)}"
    record = BrokerRecord(4, "127.0.0.1", 9, "127.0.0.1", 9, None, 1, clean=True, level=1, proof=proof)
    logs = [(node, node.log.stat().st_size) for node in cluster.live]

    async def forge() -> None:
        store = await EtcdStore.open(cluster.etcd.url)
        lease = await store.grant(60)
        try:
            put = {keys.member_key(4): b'{"incarnation":1}'}
            await store.transact(put=put, put_leased={keys.broker_key(4): record.encode()}, lease=lease)
            await asyncio.to_thread(_use, topic)
            assert await store.get(keys.admitted_key(4)) is None
        finally:
            await store.revoke(lease)
            await store.transact(delete=[keys.member_key(4)])
            await store.close()

    def _use(topic: str) -> None:
        for node, size in logs:
            wait_until(
                partial(_is_said, node.log, size, b"a registered broker is given nothing"),
                node.process,
                "the stranger is seen",
                node.log,
            )
        for node in cluster.live:
            with urllib.request.urlopen(f"http://{node.command[node.command.index('--http') + 1]}/health") as answer:
                told = json.load(answer)
            assert told["status"] == "degraded"
            assert any(reason.startswith("broker 4 is registered and given nothing") for reason in told["reasons"])
        status = [*command(), "cluster", "check", "--server", cluster.bootstrap]
        checked = subprocess.run(status, capture_output=True, text=True, check=False)
        assert checked.returncode == 1
        assert "broker 4 is registered and given nothing" in checked.stdout + checked.stderr
        cluster.create_topic(topic, 6)
        assert all(set(each.replicas) == {1, 2, 3} for each in cluster.agreed(topic).values())
        assert all(node.brokers() == {1, 2, 3} for node in cluster.live)

    asyncio.run(forge())
