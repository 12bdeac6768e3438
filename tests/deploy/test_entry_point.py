"""The wheel, installed as the image installs it, serves with the environment of image, compose file and chart."""

import os
import re
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, Producer

from tests.etcd import Certificates, Etcd
from tests.peers.broker import tail, wait_until
from tests.peers.ports import free_port

from . import chart
from .image import SETTINGS, Instructions, broker_of, confine, environment_of, install, read_dockerfile
from .prepared import prepare
from .programs import DEPLOY

_WITHIN_S = 30.0
_KAFKA, _INTERNAL, _HTTP, _METRICS = "9092", "9094", "8080", "9090"


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-image-") as directory:
        yield install(Path(directory))


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """Certificates and passwords, as the compose file's first service makes them."""
    with tempfile.TemporaryDirectory(prefix="penstock-made-") as directory:
        yield prepare(Path(directory))


@pytest.fixture(scope="module")
def etcd(made: Path) -> Iterator[Etcd]:
    own = made / "etcd"
    tls = Certificates(own / "ca.pem", own / "member.pem", own / "member.key")
    with tempfile.TemporaryDirectory() as directory, Etcd(Path(directory), tls=tls) as started:
        yield started


@pytest.fixture
def volume() -> Iterator[Path]:
    """What is mounted into the container; not below pytest's own directory, which is nobody else's."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-volume-"))
    (directory / "settings.yaml").write_text("{}\n")
    yield directory
    shutil.rmtree(directory)


def _image_environment() -> dict[str, str]:
    """What docs/deploy.md adds to the image's own for one broker."""
    return {"PENSTOCK_SECURITY__ADMIN_PASSWORD_FILE": "/etc/penstock/tls/admin.password"}


def _compose_environment() -> dict[str, str]:
    service = yaml.safe_load((DEPLOY / "compose" / "compose.yml").read_text())["services"]["broker-1"]
    told = {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for name, value in service["environment"].items()}
    published = next(port for port in service["ports"] if port.endswith(f":{_KAFKA}"))
    outer = published.split(":")[1]
    assert told["ADVERTISED_KAFKA"] == f"localhost:{outer}"
    mount = next(volume for volume in service["volumes"] if volume.endswith(":/etc/penstock/penstock.yaml:ro"))
    settings = DEPLOY / "compose" / mount.split(":")[0]
    return {**told, "ADVERTISED_KAFKA": f"localhost:{_KAFKA}", "PENSTOCK_CONFIG": str(settings)}


def _chart_environment() -> dict[str, str]:
    manifests = chart.render("--set", "rack.podLabel=topology.kubernetes.io/zone")
    pod = manifests["StatefulSet", "penstock"]["spec"]["template"]["spec"]
    return chart.environment(pod["containers"][0], chart.pod_fields("penstock", 2))


# Where a container has what `made` has: the image's and the compose file's directory, and the chart's.
_PLACES = {
    "/etc/penstock-tls/clients/tls.": "broker.",
    "/etc/penstock-tls/brokers/tls.": "cluster.",
    "/etc/penstock-tls/brokers/ca.crt": "cluster-ca.pem",
    "/etc/penstock-etcd/tls/tls.": "etcd.",
    "/etc/penstock-etcd/tls/ca.crt": "etcd-ca.pem",
    "/etc/penstock-admin/password": "admin.password",
    "/etc/penstock-secret/secret": "cluster.secret",
    "/etc/penstock/tls/": "",
}


def _at_home(told: Mapping[str, str], volume: Path, made: Path, etcd: Etcd) -> tuple[dict[str, str], dict[str, int]]:
    """The same settings with this machine's addresses, free ports and directories for the container's."""
    ports = {port: free_port() for port in (_KAFKA, _INTERNAL, _HTTP, _METRICS)}

    def here(text: str) -> str:
        for place, name in _PLACES.items():
            text = text.replace(place, f"{made}/brokers/{name}")
        text = text.replace("broker.crt", "broker.pem").replace("cluster.crt", "cluster.pem")
        text = text.replace("etcd.crt", "etcd.pem")
        return re.sub(r"(?:[\w.-]+):(9092|9094|8080|9090)\b", lambda found: f"127.0.0.1:{ports[found[1]]}", text)

    values = {
        "PENSTOCK_CLUSTER__STORE": f"{etcd.url}/{volume.name}",
        "PENSTOCK_CONFIG": str(volume / "settings.yaml"),
        "PENSTOCK_DATA_DIR": str(volume) + told["PENSTOCK_DATA_DIR"],
        "PATH": told["PATH"],
    }
    if "PENSTOCK_LISTENERS" not in told:  # the chart says there what the others say in a file
        given = Path(told["PENSTOCK_CONFIG"])
        (volume / "settings.yaml").write_text(here((given if given.exists() else SETTINGS).read_text()))
    return {name: here(value) for name, value in told.items()} | {
        name: value for name, value in values.items() if name in told
    }, ports


@pytest.mark.parametrize("told", [_image_environment, _compose_environment, _chart_environment])
def test_serves_and_stops_as_process_one_without_rights(
    told: Callable[[], dict[str, str]], programs: Path, volume: Path, made: Path, etcd: Etcd
) -> None:
    image = read_dockerfile()
    environment, ports = _at_home({**environment_of(image, programs), **told()}, volume, made, etcd)
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
        _write_and_read(f"127.0.0.1:{ports[_KAFKA]}", made / "brokers")
        if told is _compose_environment:
            _let_prometheus_in(programs, made, volume, ports)
        os.kill(broker_of(process), signal.SIGTERM)
        assert process.wait(_WITHIN_S) == 0, tail(log)
        assert " stopped" in tail(log)
    finally:
        process.kill()
        process.wait()


def _let_prometheus_in(programs: Path, made: Path, home: Path, ports: Mapping[str, int]) -> None:
    """By the service `rules`, which is run at every start."""
    rules = yaml.safe_load((DEPLOY / "compose" / "compose.yml").read_text())["services"]["rules"]["command"]
    context = (made / "brokers/.penstock/config.yaml").read_text().replace("/etc/penstock/tls", str(made / "brokers"))
    for port in ("19092", "19093"):
        context = context.replace(f",localhost:{port}", "")
    (home / ".penstock").mkdir()
    (home / ".penstock" / "config.yaml").write_text(context.replace("19091", str(ports[_KAFKA])))
    tls = ssl.create_default_context(cafile=str(made / "prometheus" / "ca.pem"))
    tls.load_cert_chain(made / "prometheus" / "prometheus.pem", made / "prometheus" / "prometheus.key")

    def scrape() -> int:
        try:
            with urllib.request.urlopen(f"https://127.0.0.1:{ports[_METRICS]}/metrics", context=tls) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert scrape() == 403
    for _ in range(2):
        done = subprocess.run(
            [programs / "penstock", *rules],
            env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + _WITHIN_S
    while scrape() != 200:
        assert time.monotonic() < deadline


def test_wrong_settings_end_it_with_their_name(programs: Path, volume: Path) -> None:
    image = read_dockerfile()
    (volume / "settings.yaml").write_text(SETTINGS.read_text())
    environment = environment_of(image, programs) | {
        "PENSTOCK_DATA_DIR": str(volume / "data"),
        "PENSTOCK_CONFIG": str(volume / "settings.yaml"),
    }
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
    assert "/etc/penstock/tls/broker.pem" in done.stderr


def _is_healthy(image: Instructions, environment: Mapping[str, str]) -> bool:
    """By the image's own check."""
    return subprocess.run(image.health_check, env=environment, capture_output=True, check=False).returncode == 0


def _write_and_read(bootstrap: str, secrets: Path) -> None:
    client: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "admin",
        "sasl.password": (secrets / "admin.password").read_text().strip(),
        "ssl.ca.location": str(secrets / "ca.pem"),
    }
    producer = Producer({**client, "acks": "all", "message.timeout.ms": _WITHIN_S * 1000})
    failed: list[object] = []
    producer.produce("orders", b"pump", on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(_WITHIN_S) == 0 and not failed
    consumer = Consumer({**client, "group.id": "shop", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["orders"])
        deadline = time.monotonic() + _WITHIN_S
        while (message := consumer.poll(1.0)) is None or message.error() is not None:
            assert time.monotonic() < deadline, "nothing was read"
        assert message.value() == b"pump"
    finally:
        consumer.close()
