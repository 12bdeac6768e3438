"""Connections never take the descriptors that logs need."""

import pytest

from penstock.server.descriptors import share_out


@pytest.mark.parametrize("allowed", [64, 256, 1024, 4096, 20_000, 1 << 20])
def test_all_connections_together_leave_some(allowed: int) -> None:
    shares = share_out(allowed, 10_000)
    twice = 2 * (shares.connections + shares.broker_connections)
    assert twice + shares.http_connections + shares.segment_files <= allowed * 7 // 8
    assert min(shares.connections, shares.http_connections, shares.segment_files) >= 1


def test_the_setting_holds_where_there_are_enough() -> None:
    assert share_out(1 << 20, 10_000).connections == 10_000
    assert share_out(1 << 20, 7).connections == 7
    assert share_out(1024, 10_000).connections == 256
