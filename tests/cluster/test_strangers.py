"""Who does not have the cluster's secret is given nothing, and told why."""

from pathlib import Path

import pytest

from .conftest import PEER
from .penstock_cluster import PenstockCluster

pytestmark = pytest.mark.skipif(PEER != "penstock", reason="Penstock's own secret")


def test_a_broker_with_another_secret_does_not_start(cluster: PenstockCluster) -> None:
    stranger = cluster.stranger(4)
    stranger.launch()
    try:
        code = stranger.wait_end()
    finally:
        stranger.kill()
    told = Path(stranger.log).read_text()
    assert code == 2, told
    assert "penstock: this broker's cluster secret is not that of the cluster" in told
    assert not any("4" in name for name in map(str, cluster.data_directory(4).glob("cluster")))
    assert all(node.brokers() == {1, 2, 3} for node in cluster.live)
