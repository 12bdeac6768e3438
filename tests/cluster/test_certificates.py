"""Brokers that know each other by certificates: all are renewed under load, and strangers are let in nowhere."""

import signal
import ssl
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.unit.net.certificates import BROKER, Authority

from .conftest import PEER
from .secured_cluster import SecuredCluster, SecureWire
from .steady_load import SteadyLoad
from .test_security import wait_for

pytestmark = pytest.mark.skipif(PEER != "penstock", reason="its certificates are ours")
PARTITIONS = 3
SHOWN_WITHIN_S = 30.0
"""Files are looked at every few seconds."""
DOORS = ("secret", "mutual", "web", "internal")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with SecuredCluster(tmp_path_factory.mktemp("certified"), is_certified=True) as made:
        made.start()
        made.begin()
        made.create_topic("t", PARTITIONS)
        yield made


def test_certificates_of_all_brokers_are_renewed_one_by_one_and_nobody_notices(cluster: SecuredCluster) -> None:
    settings = cluster.by_password()
    with SteadyLoad(settings, "t", PARTITIONS, name="steady") as steady:
        steady.wait_for_acks(100)
        for number, node in cluster.nodes.items():
            before = {door: cluster.serial(number, door) for door in DOORS}
            cluster.renew(number)
            if number == 1:  # the others see it by themselves
                node.process.send_signal(signal.SIGHUP)
            for door in DOORS:
                wait_for(
                    f"another certificate at {door}",
                    partial(_is_another, cluster, number, door, before[door]),
                    SHOWN_WITHIN_S,
                )
            with SteadyLoad(cluster.by_password(broker=number), "t", PARTITIONS, name=f"new-{number}") as new:
                new.wait_for_acks(50)  # by connections that were shown the new one
                assert new.finish() >= 50
            steady.wait_for_acks(100)
        assert steady.finish() > 500
    assert all(node.starts == 1 for node in cluster.nodes.values())
    for node in cluster.nodes.values():  # brokers connect to each other by what they have now
        node.stop()
        node.start()
        cluster.wait_whole("t")


def _is_another(cluster: SecuredCluster, number: int, door: str, before: int) -> bool:
    return cluster.serial(number, door) != before


def test_strangers_with_any_certificate_are_let_in_nowhere(cluster: SecuredCluster, tmp_path: Path) -> None:
    assert cluster.brokers is not None
    strange = Authority.make(tmp_path / "strange")
    cluster.clients.sign("mallory")
    shown = {
        "nothing": None,
        "a client's": (cluster.clients.directory, "mallory"),
        "what brokers show clients": (cluster.clients.directory, "broker-1"),
        "a broker's of another authority": (strange.directory, "broker-9"),
        "no broker's of the right authority": (cluster.brokers.directory, "clerk"),
    }
    strange.sign("broker-9", BROKER)
    cluster.brokers.sign("clerk")
    for broker, addresses in cluster.addresses.items():
        for what, files in shown.items():
            context = ssl.create_default_context(cafile=cluster.brokers.certificate)
            if files is not None:
                directory, name = files
                context.load_cert_chain(directory / f"{name}.pem", directory / f"{name}.key")
            assert not _opens(addresses["internal"], context), f"{what} opens broker {broker}"
    context = ssl.create_default_context(cafile=cluster.brokers.certificate)
    context.load_cert_chain(cluster.file(1, "broker.pem"), cluster.file(1, "broker.key"))
    assert _opens(cluster.addresses[2]["internal"], context)


def _opens(address: str, context: ssl.SSLContext) -> bool:
    try:
        with SecureWire(address, context) as wire:
            wire.describe("t")
    except OSError:
        return False
    return True
