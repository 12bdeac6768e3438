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
from .prepared import prepare
from .programs import DEPLOY, find, run

FILE = DEPLOY / "compose" / "compose.yml"
SETTINGS = FILE.parent / "penstock.yaml"
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
    told = {**read_dockerfile().environment, **service["environment"], "PENSTOCK_CONFIG": str(SETTINGS)}
    config = config_loading.load(env=told)
    assert config.ignored_env == ()
    assert f"broker-{config.node.id}" == name
    assert config.cluster.store == "etcds://" + ",".join(f"{member}:2379" for member in MEMBERS)
    assert config.listeners.advertised_internal == (name, config.listeners.internal.port)
    assert config.listeners.advertised_kafka is not None
    assert f"127.0.0.1:{config.listeners.advertised_kafka.port}:{config.listeners.kafka.port}" in service["ports"]
    assert service["volumes"] == [
        f"{name}:{config.data_dir}",
        "broker-secrets:/etc/penstock/tls:ro",
        f"./{SETTINGS.name}:{read_dockerfile().environment['PENSTOCK_CONFIG']}:ro",
    ]
    assert set(service["depends_on"]) == {"prepare", *MEMBERS}
    assert int(service["stop_grace_period"].removesuffix("s")) > STOP_DEADLINE_S + broker._LEAVE_S
    assert service["image"] == f"penstock:{__version__}"


def test_brokers_share_no_rack_volume_or_port(compose: dict[str, Any]) -> None:
    services = [compose["services"][name] for name in BROKERS]
    racks = [service["environment"]["PENSTOCK_NODE__RACK"] for service in services]
    volumes = [volume for service in services for volume in service["volumes"] if not volume.endswith(":ro")]
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    for each in (racks, volumes, [port.rpartition(":")[0] for port in ports]):
        assert len(each) == len(set(each))
    assert all(port.startswith("127.0.0.1:") for port in ports), "for trying things: this machine only"


def test_logs_do_not_fill_the_disk(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["logging"] == {"driver": "local"}, f"{name}: the default, json-file, has no bound"


@pytest.mark.parametrize("name", MEMBERS)
def test_etcd_members_know_each_other(compose: dict[str, Any], name: str) -> None:
    told = compose["services"][name]["environment"]
    assert told["ETCD_NAME"] == name
    assert told["ETCD_INITIAL_CLUSTER"] == ",".join(f"{member}=https://{member}:2380" for member in MEMBERS)
    assert told["ETCD_INITIAL_ADVERTISE_PEER_URLS"] == f"https://{name}:2380"
    assert told["ETCD_CLIENT_CERT_AUTH"] == told["ETCD_PEER_CLIENT_CERT_AUTH"] == "true"
    assert compose["services"][name]["volumes"] == [f"{name}:{told['ETCD_DATA_DIR']}", "etcd-tls:/etc/etcd-tls:ro"]


def test_who_is_waited_for_says_when_it_is_healthy(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for other, how in service.get("depends_on", {}).items():
            if other in ("prepare", "rules"):
                assert how == {"condition": "service_completed_successfully"}
                assert "restart" not in compose["services"][other], "it would never be done"
                continue
            assert how == {"condition": "service_healthy"}
            # Brokers have the image's own check.
            assert "healthcheck" in compose["services"][other] or other in BROKERS, f"{name} waits for {other}"


def test_prometheus_scrapes_every_broker(compose: dict[str, Any]) -> None:
    mounts = [mount.split(":") for mount in compose["services"]["prometheus"]["volumes"]]
    places = {inside: FILE.parent / outside for outside, inside, *_ in mounts if outside.startswith(".")}
    told = yaml.safe_load(places["/etc/prometheus/prometheus.yml"].read_text())
    (job,) = [each for each in told["scrape_configs"] if each["job_name"] == "penstock"]
    environment = {"ADVERTISED_KAFKA": "h:1", "ADVERTISED_INTERNAL": "h:2"}
    (door,) = [
        each
        for each in config_loading.load(file=SETTINGS, env=environment).listeners.listed(in_cluster=True)
        if each.protocol == "metrics"
    ]
    assert job["scheme"] == "https" and door.tls is not None
    assert set(job["static_configs"][0]["targets"]) == {f"{name}:{door.address.port}" for name in BROKERS}
    for rules in told["rule_files"]:
        assert places[f"/etc/prometheus/{rules}"].exists()


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


def test_nothing_is_said_in_plain_and_nobody_is_let_in_unasked(compose: dict[str, Any]) -> None:
    """As the broker itself judges it, of its settings in the image and here; of its own accord it would not start."""
    for name in BROKERS:
        told = {**read_dockerfile().environment, **compose["services"][name]["environment"]}
        config = config_loading.load(env={**told, "PENSTOCK_CONFIG": str(SETTINGS)})
        assert not config.insecure and config.security_mode == "closed"
        for listener in config.listeners.listed(in_cluster=True):
            assert listener.name == "internal" or (listener.tls is not None and listener.auth), listener
        assert config.cluster.tls_cert is not None and config.cluster.etcd_cert is not None
    for text in (FILE.read_text(), SETTINGS.read_text()):
        assert "insecure" not in text.lower()
        plain = re.findall(r"http://\S*", text)
        assert all(each.startswith("http://127.0.0.1") for each in plain), plain


def test_each_service_finds_what_was_prepared_for_it(compose: dict[str, Any], tmp_path: Path) -> None:
    made = prepare(tmp_path, "broker.example.com")
    mounts = dict(volume.split(":")[:2] for volume in compose["services"]["prepare"]["volumes"])
    read = set()
    for name, service in compose["services"].items():
        for volume in service.get("volumes", ()) if name != "prepare" else ():
            source, inside, *mode = volume.split(":")
            if source not in mounts:
                continue
            assert mode == ["ro"]
            text = str(service) + (SETTINGS.read_text() if name in BROKERS else "")
            if name == "prometheus":
                text += (FILE.parent / "prometheus.yml").read_text()
            if name in ("cli", "rules"):
                text += (made / "brokers/.penstock/config.yaml").read_text()
            for path in set(re.findall(rf"{inside}/([\w./-]+)", text)):
                file = made / Path(mounts[source]).relative_to("/made") / path
                assert file.is_file(), f"{name} reads {path}"
                assert file.stat().st_mode & 0o777 == 0o400
                read.add(file)
    assert {path for path in made.rglob("*") if path.is_file() and "authorities" not in path.parts} - read == {
        made / "brokers" / ".penstock" / "config.yaml"
    }
    assert "authorities:" not in str([each for name, each in compose["services"].items() if name != "prepare"])


def test_what_was_prepared_before_stays_but_for_certificates(tmp_path: Path) -> None:
    made = prepare(tmp_path)
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    prepare(tmp_path, "other.example.com")
    changed = {path.relative_to(made).as_posix() for path, body in before.items() if path.read_bytes() != body}
    leaves = {"clients/broker", "clients/prometheus", "brokers/broker", "etcd/broker", "etcd/member"}
    leaves = {f"authorities/{leaf}" for leaf in leaves}
    leaves |= {"brokers/broker", "brokers/cluster", "brokers/etcd", "etcd/member", "prometheus/prometheus"}
    config = {"authorities/config.yaml", "brokers/.penstock/config.yaml"}
    assert changed == config | {f"{leaf}.{end}" for leaf in leaves for end in ("pem", "key")}
