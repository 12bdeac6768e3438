"""Brokers that know each other by certificates: together with the secret or alone, and until one is revoked."""

import json
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from tests.peers.broker import wait_until
from tests.unit.net.certificates import BROKER, Authority
from tests.unit.net.test_certificates import revoke

from .cluster_process import Node
from .conftest import PEER
from .penstock_cluster import PenstockCluster

pytestmark = pytest.mark.skipif(PEER != "penstock", reason="Penstock's own certificates")


def _reasons(node: Node) -> str:
    with urllib.request.urlopen(f"http://{node.command[node.command.index('--http') + 1]}/health") as answer:
        return str(json.load(answer)["reasons"])


def _tells_of(node: Node, words: str) -> bool:
    return words in _reasons(node)


@pytest.mark.parametrize("secret", [True, False])
def test_brokers_go_by_certificates_until_one_is_revoked(tmp_path: Path, secret: bool) -> None:
    authority = Authority.make(tmp_path / "ours")
    revoked = revoke(authority, tmp_path / "crl.pem")
    files = {number: authority.sign(f"broker-{number}", BROKER) for number in (1, 2, 3)}
    given = {"tls_ca": authority.certificate, "tls_crl": revoked}
    cluster = PenstockCluster(tmp_path / "cluster", members=1, settings={"cluster": given})
    for number, node in cluster.nodes.items():
        shown = {"cluster.tls_cert": files[number].certificate, "cluster.tls_key": files[number].key}
        words = [word for key, value in shown.items() for word in ("--set", f"{key}={value}")]
        node.command = [*node.command, *words]
        if not secret:
            node.environment = {}
    try:
        cluster.start()
        cluster.create_topic("followed", 6)  # so that each leads some, and follows the others
        cluster.wait_whole("followed")
        assert all(set(each.isr) == {1, 2, 3} for each in cluster.agreed("followed").values())
        one, two = cluster.nodes[1], cluster.nodes[2]
        assert _reasons(one) == "[]"
        revoke(authority, tmp_path / "crl.pem", files[2])
        wait_until(partial(_tells_of, one, "is revoked"), one.process, "the revoked broker is told of", one.log)
        wait_until(partial(_tells_of, two, "do not work together"), two.process, "it knows that it is refused", two.log)
        assert b"is revoked" in one.log.read_bytes()
    finally:
        cluster.close()
