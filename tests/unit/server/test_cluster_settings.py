"""Settings with which a broker cannot be a cluster's: refused as such, so that no supervisor tries again for ever."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import WrongSettings
from penstock.server.broker import Broker
from penstock.server.config import ENV_SECRET, Address, Cluster, Config, Listeners

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
