"""The compose file is one by its schema, and its parts fit each other and the files they are given."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock import __version__
from penstock.cli.serve import STOP_DEADLINE_S
from penstock.server import broker, config_loading

from .image import read_dockerfile
from .programs import DEPLOY, find, run

FILE = DEPLOY / "compose" / "compose.yml"
BROKERS = ("broker-1", "broker-2", "broker-3")
MEMBERS = ("etcd-1", "etcd-2", "etcd-3")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file with its `${NAME:-default}` replaced by the defaults."""
    return dict(yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", FILE.read_text())))


def test_schema(tmp_path: Path) -> None:
    check = find("check-jsonschema", comes_with="check-jsonschema")
    done = run(check, "--builtin-schema", "vendor.compose-spec", FILE)
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "compose.yml"
    wrong.write_text(FILE.read_text().replace("stop_grace_period:", "stop_grace:"))
    assert run(check, "--builtin-schema", "vendor.compose-spec", wrong).returncode != 0


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_takes_its_settings(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    config = config_loading.load(env={**read_dockerfile().environment, **service["environment"]})
    assert config.ignored_env == ()
    assert f"broker-{config.node.id}" == name
    assert config.cluster.store == "etcd://" + ",".join(f"{member}:2379" for member in MEMBERS)
    assert config.listeners.advertised_internal == (name, config.listeners.internal.port)
    assert config.listeners.advertised_kafka is not None
    assert f"127.0.0.1:{config.listeners.advertised_kafka.port}:{config.listeners.kafka.port}" in service["ports"]
    assert service["volumes"] == [f"{name}:{config.data_dir}"]
    assert str(config.cluster.secret_file) == f"/run/secrets/{service['secrets'][0]}"
    assert set(service["depends_on"]) == set(MEMBERS)
    assert int(service["stop_grace_period"].removesuffix("s")) > STOP_DEADLINE_S + broker._LEAVE_S
    assert service["image"] == f"penstock:{__version__}"


def test_brokers_share_no_rack_volume_or_port(compose: dict[str, Any]) -> None:
    services = [compose["services"][name] for name in BROKERS]
    racks = [service["environment"]["PENSTOCK_NODE__RACK"] for service in services]
    volumes = [volume for service in services for volume in service["volumes"]]
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    for each in (racks, volumes, [port.rpartition(":")[0] for port in ports]):
        assert len(each) == len(set(each))
    assert all(port.startswith("127.0.0.1:") for port in ports), "nobody is authenticated: this machine only"


def test_logs_do_not_fill_the_disk(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["logging"] == {"driver": "local"}, f"{name}: the default, json-file, has no bound"


@pytest.mark.parametrize("name", MEMBERS)
def test_etcd_members_know_each_other(compose: dict[str, Any], name: str) -> None:
    told = compose["services"][name]["environment"]
    assert told["ETCD_NAME"] == name
    assert told["ETCD_INITIAL_CLUSTER"] == ",".join(f"{member}=http://{member}:2380" for member in MEMBERS)
    assert told["ETCD_INITIAL_ADVERTISE_PEER_URLS"] == f"http://{name}:2380"
    assert compose["services"][name]["volumes"] == [f"{name}:{told['ETCD_DATA_DIR']}"]


def test_who_is_waited_for_says_when_it_is_healthy(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for other, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            # Brokers have the image's own check.
            assert "healthcheck" in compose["services"][other] or other in BROKERS, f"{name} waits for {other}"


def test_prometheus_scrapes_every_broker(compose: dict[str, Any]) -> None:
    mounts = compose["services"]["prometheus"]["volumes"]
    source = next(mount.split(":")[0] for mount in mounts if mount.split(":")[1] == "/etc/prometheus")
    told = yaml.safe_load((FILE.parent / source / "prometheus.yml").read_text())
    (job,) = [each for each in told["scrape_configs"] if each["job_name"] == "penstock"]
    assert set(job["static_configs"][0]["targets"]) == {f"{name}:8080" for name in BROKERS}
    for rules in told["rule_files"]:
        assert (FILE.parent / source / rules).exists()


def test_grafana_finds_prometheus_and_the_dashboards(compose: dict[str, Any]) -> None:
    mounts = [mount.split(":") for mount in compose["services"]["grafana"]["volumes"]]
    places = {inside: (FILE.parent / outside).resolve() for outside, inside, *_ in mounts if outside.startswith(".")}
    provisioning = places["/etc/grafana/provisioning"]
    (source,) = [
        each
        for file in provisioning.glob("datasources/*.y*ml")
        for each in yaml.safe_load(file.read_text())["datasources"]
    ]
    assert source["url"] == "http://prometheus:9090"
    providers = [
        each
        for file in provisioning.glob("dashboards/*.y*ml")
        for each in yaml.safe_load(file.read_text())["providers"]
    ]
    assert providers
    for provider in providers:
        assert list(places[provider["options"]["path"]].glob("*.json")), "no dashboard where Grafana looks for them"


def test_secrets_are_files_that_nobody_commits(compose: dict[str, Any]) -> None:
    for secret in compose["secrets"].values():
        assert Path(secret["file"]).parts[0] == "secrets"
        assert f"secrets/{Path(secret['file']).name}" in (FILE.parent / "README.md").read_text()
    assert "/secrets/" in (FILE.parent / ".gitignore").read_text().splitlines()
