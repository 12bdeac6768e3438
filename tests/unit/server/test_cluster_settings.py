"""Settings with which a broker cannot be a cluster's: refused as such, so that no supervisor tries again for ever."""

import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.unit.net.certificates import BROKER, Authority
from tests.unit.net.test_certificates import revoke

from penstock.errors import WrongSettings
from penstock.net.certificates import Certificates
from penstock.net.tcp import TcpNetwork
from penstock.server.broker import Broker
from penstock.server.cluster import ClusterMember, _tls_settings
from penstock.server.config import ENV_SECRET, Address, Cluster, Config, Listeners, ListenerTls
from penstock.server.doors.opening import Doors
from penstock.server.system_clock import SystemClock
from penstock.storage.data_directory import DataDirectory
from penstock.storage.local_disk import LocalDisk

FREE = Address("127.0.0.1", 0)


def no_secret(_: Path) -> Cluster:
    return Cluster(store="etcd://127.0.0.1:9")


def short_secret(path: Path) -> Cluster:
    (path / "secret").write_text("short\n")
    return Cluster(store="etcd://127.0.0.1:9", secret_file=path / "secret")


def missing_secret(path: Path) -> Cluster:
    return Cluster(store="etcd://127.0.0.1:9", secret_file=path / "none")


def binary_secret(path: Path) -> Cluster:
    (path / "secret").write_bytes(b"\xff" * 40)
    return Cluster(store="etcd://127.0.0.1:9", secret_file=path / "secret")


def missing_certificate(path: Path) -> Cluster:
    none = path / "none"
    return Cluster(store="etcd://127.0.0.1:9", tls_ca=none, tls_cert=none, tls_key=none, etcd_ca=none)


def by_certificates(authority: Authority, names: str) -> Cluster:
    shown = authority.sign("broker", names)
    certificate, key = Path(shown.certificate), Path(shown.key)
    return Cluster(store="etcd://127.0.0.1:9", tls_ca=Path(authority.certificate), tls_cert=certificate, tls_key=key)


async def test_brokers_certificates_are_looked_at_before_anybody_is_shown_them(tmp_path: Path) -> None:
    clients = Authority.make(tmp_path / "clients")
    server = clients.sign("server")
    trusting = ListenerTls(Path(server.certificate), Path(server.key), authority=Path(clients.certificate))
    listeners = Listeners(FREE, FREE, internal=FREE, tls={"kafka": trusting})
    for authority, names, told in (
        (clients, BROKER, r"listeners\.kafka trusts clients by .*clients/ca\.pem, and brokers trust each other by"),
        (Authority.make(tmp_path / "brokers"), "DNS:localhost", "does not name a broker"),
        (Authority.make(tmp_path / "others"), BROKER, None),
    ):
        config = Config(tmp_path / "data", listeners=listeners, cluster=by_certificates(authority, names))
        directory = cast(DataDirectory, SimpleNamespace(path=tmp_path / "data"))
        network, clock = TcpNetwork(), SystemClock()
        member = ClusterMember(
            config, network, clock, LocalDisk(), directory, lambda _: None, 0.0, cast(Doors, SimpleNamespace())
        )
        if told is None:
            assert member.load_certificates() is not None
            continue
        with pytest.raises(WrongSettings, match=told):
            member.load_certificates()


async def test_a_broker_that_is_revoked_is_refused(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "brokers")
    lost = authority.sign("lost", BROKER)
    cluster = by_certificates(authority, BROKER)
    cluster = replace(cluster, tls_crl=Path(revoke(authority, tmp_path / "crl.pem", lost)))
    settings = _tls_settings(cluster)
    assert settings is not None
    certificates = Certificates(settings, SystemClock())
    told = certificates.refuse(ssl.PEM_cert_to_DER_cert(Path(lost.certificate).read_text()))  # noqa: ASYNC240
    assert told is not None and "is revoked" in told


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (no_secret, "give all of them the same secret"),
        (short_secret, "has 5 characters; use 16 or more"),
        (missing_secret, "none: No such file or directory; choose another file"),
        (binary_secret, "it is no text; choose another file"),
        (missing_certificate, "certificates cannot be read"),
    ],
)
async def test_a_cluster_that_cannot_be_joined_with_such_settings(
    make: Callable[[Path], Cluster], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENV_SECRET, raising=False)
    config = Config(data_dir=tmp_path / "data", listeners=Listeners(FREE, FREE, internal=FREE), cluster=make(tmp_path))
    broker = Broker(config)
    try:
        with pytest.raises(WrongSettings, match=told):
            await broker.start()
    finally:
        await broker.stop()
