"""The wheel, installed as the image installs it, serves with the environment of image, compose file and chart."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, Producer

from tests.cluster.cluster_process import free_port
from tests.etcd import Etcd
from tests.peers.broker import tail, wait_until

from . import chart
from .image import Instructions, broker_of, confine, environment_of, install, read_dockerfile
from .programs import DEPLOY

_WITHIN_S = 30.0
_KAFKA, _INTERNAL, _HTTP = "9092", "9094", "8080"


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-image-") as directory:
        yield install(Path(directory))


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with tempfile.TemporaryDirectory() as directory, Etcd(Path(directory)) as started:
        yield started


@pytest.fixture
def volume() -> Iterator[Path]:
    """What is mounted into the container; not below pytest's own directory, which is nobody else's."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-volume-"))
    (directory / "settings.yaml").write_text("{}\n")
    (directory / "secret").write_text("0123456789abcdef0123456789abcdef\n")
    yield directory
    shutil.rmtree(directory)


def _image_environment() -> dict[str, str]:
    """What docs/deploy.md adds to the image's own for one broker."""
    return {"PENSTOCK_INSECURE": "true", "PENSTOCK_LISTENERS__ADVERTISED_KAFKA": "localhost:9092"}


def _compose_environment() -> dict[str, str]:
    service = yaml.safe_load((DEPLOY / "compose" / "compose.yml").read_text())["services"]["broker-1"]
    told = {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for name, value in service["environment"].items()}
    published = next(port for port in service["ports"] if port.endswith(f":{_KAFKA}"))
    outer = published.split(":")[1]
    assert told["PENSTOCK_LISTENERS__ADVERTISED_KAFKA"] == f"localhost:{outer}"
    return {**told, "PENSTOCK_LISTENERS__ADVERTISED_KAFKA": f"localhost:{_KAFKA}"}


def _chart_environment() -> dict[str, str]:
    manifests = chart.render("--set", "rack.podLabel=topology.kubernetes.io/zone")
    pod = manifests["StatefulSet", "penstock"]["spec"]["template"]["spec"]
    return chart.environment(pod["containers"][0], chart.pod_fields("penstock", 2))


def _at_home(told: Mapping[str, str], volume: Path, etcd: Etcd) -> tuple[dict[str, str], dict[str, int]]:
    """The same settings with this machine's addresses, free ports and directories for the container's."""
    ports = {port: free_port() for port in (_KAFKA, _INTERNAL, _HTTP)}
    values = {
        "PENSTOCK_CLUSTER__STORE": lambda _: f"{etcd.url}/{volume.name}",
        "PENSTOCK_CLUSTER__SECRET_FILE": lambda _: str(volume / "secret"),
        "PENSTOCK_CONFIG": lambda _: str(volume / "settings.yaml"),
        "PENSTOCK_DATA_DIR": lambda path: str(volume) + path,
    }

    def address(value: str) -> str:
        return f"127.0.0.1:{ports[value.rpartition(':')[2]]}"

    listeners: dict[str, Callable[[str], str]] = {
        name: address for name in told if name.startswith("PENSTOCK_LISTENERS__")
    }
    changes = {**values, **listeners}
    return {name: changes[name](value) if name in changes else value for name, value in told.items()}, ports


@pytest.mark.parametrize("told", [_image_environment, _compose_environment, _chart_environment])
def test_serves_and_stops_as_process_one_without_rights(
    told: Callable[[], dict[str, str]], programs: Path, volume: Path, etcd: Etcd
) -> None:
    image = read_dockerfile()
    environment, ports = _at_home({**environment_of(image, programs), **told()}, volume, etcd)
    Path(environment["PENSTOCK_DATA_DIR"]).parent.mkdir(parents=True)
    assert not _is_healthy(image, environment)
    log = volume / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            confine([*image.entry_point, *image.command], volume),
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: "ready kafka=" in log.read_text(), process, "the container", log)
        assert _is_healthy(image, environment)
        assert "is no setting" not in log.read_text()
        _write_and_read(f"127.0.0.1:{ports[_KAFKA]}")
        os.kill(broker_of(process), signal.SIGTERM)
        assert process.wait(_WITHIN_S) == 0, tail(log)
        assert " stopped" in tail(log)
    finally:
        process.kill()
        process.wait()


def test_wrong_settings_end_it_with_their_name(programs: Path, volume: Path) -> None:
    image = read_dockerfile()
    environment = environment_of(image, programs) | {"PENSTOCK_DATA_DIR": str(volume / "data")}
    done = subprocess.run(
        confine([*image.entry_point, *image.command], volume),
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=_WITHIN_S,
        check=False,
    )
    assert done.returncode == 2
    assert "PENSTOCK_INSECURE=true" in done.stderr


def _is_healthy(image: Instructions, environment: Mapping[str, str]) -> bool:
    """By the image's own check."""
    return subprocess.run(image.health_check, env=environment, capture_output=True, check=False).returncode == 0


def _write_and_read(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": _WITHIN_S * 1000})
    failed: list[object] = []
    producer.produce("orders", b"pump", on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(_WITHIN_S) == 0 and not failed
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "shop", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["orders"])
        deadline = time.monotonic() + _WITHIN_S
        while (message := consumer.poll(1.0)) is None or message.error() is not None:
            assert time.monotonic() < deadline, "nothing was read"
        assert message.value() == b"pump"
    finally:
        consumer.close()
