"""The chart: linted, rendered and judged by Kubernetes' own schemas; what it tells brokers is what they take."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock import __version__
from penstock.cli.connection import find_server
from penstock.cli.serve import STOP_DEADLINE_S
from penstock.protocols.internal.broker_certificate import BROKER_URI
from penstock.server import broker, config_loading, http

from . import chart
from .image import USER, read_dockerfile
from .programs import DEPLOY, find, helm, run

_RULES = f"prometheusRule.rules={DEPLOY / 'prometheus' / 'penstock.rules.yml'}"
_FULL = (
    *("--set", "external.enabled=true,external.type=NodePort,advertised=$(NODE_IP):3009$(POD_INDEX)"),
    *("--set", "firstId=1,rack.podLabel=topology.kubernetes.io/zone,antiAffinity=required"),
    *("--set", "etcd.endpoints={e1:2379,e2:2379},etcd.prefix=/a,etcd.tlsSecret=t,etcd.user=u,etcd.passwordSecret=w"),
    *(
        "--set",
        "serviceMonitor.enabled=true,serviceMonitor.secret=m,prometheusRule.enabled=true,clusterSecret.existing=s",
    ),
    *("--set", "image.pullSecrets[0].name=p,priorityClassName=high,nodeSelector.disk=ssd,podLabels.team=logs"),
    *("--set", "tolerations[0].key=logs,extraEnv[0].name=TZ,extraEnv[0].value=UTC,persistence.storageClass=fast"),
    *("--set", "networkPolicy.monitoring[0].namespaceSelector.matchLabels.a=b"),
    *("--set-file", _RULES),
)
_BY_CERT_MANAGER = ("--set", "tls.certManager.enabled=true,tls.secret=,tls.brokersSecret=,etcd.tlsSecret=")


@pytest.fixture(scope="module")
def plain() -> dict[tuple[str, str], chart.Manifest]:
    return chart.render()


@pytest.fixture(scope="module")
def full() -> dict[tuple[str, str], chart.Manifest]:
    return chart.render(*_FULL)


def _pod(manifests: dict[tuple[str, str], chart.Manifest], name: str = "penstock") -> dict[str, Any]:
    return dict(manifests["StatefulSet", name]["spec"]["template"]["spec"])


def _config(manifests: dict[tuple[str, str], chart.Manifest], index: int) -> Any:
    told = chart.environment(_pod(manifests)["containers"][0], chart.pod_fields("penstock", index))
    told = {**read_dockerfile().environment, **told}
    del told["PENSTOCK_CONFIG"]
    return config_loading.load(env=told)


def test_lint() -> None:
    done = run(helm(), "lint", "--strict", chart.CHART, *chart.GIVEN)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kubernetes", [chart.OLDEST, chart.NEWEST])
def test_kubernetes_takes_it(kubernetes: str, tmp_path: Path) -> None:
    files = []
    for number, arguments in enumerate([(), _FULL, _BY_CERT_MANAGER]):
        documents = re.split(r"^---$", chart.render_text(*arguments, kubernetes=kubernetes), flags=re.MULTILINE)
        files.append(tmp_path / f"{number}.yaml")
        # There is no schema here for what the Prometheus operator and cert-manager bring.
        files[-1].write_text(
            "---".join(
                each for each in documents if not re.search("^apiVersion: (monitoring|cert-manager)", each, re.M)
            )
        )
    validate = find("kubernetes-validate", comes_with="kubernetes-validate")
    done = run(validate, "--strict", "--kubernetes-version", kubernetes.rpartition(".")[0], *files)
    assert done.returncode == 0, done.stdout
    assert "WARN" not in done.stdout, done.stdout
    for file in files:
        assert f"{file} passed for resource statefulset/penstock" in done.stdout


def test_an_id_stays_with_its_ordinal_and_its_name(plain: dict[tuple[str, str], chart.Manifest]) -> None:
    for index in range(3):
        config = _config(plain, index)
        host = f"penstock-{index}.penstock-brokers.logs.svc.cluster.local"
        assert config.node.id == index
        assert config.listeners.advertised_kafka == (host, 9092)
        assert config.listeners.advertised_internal == (host, 9094)
        assert config.ignored_env == ()
    assert plain["StatefulSet", "penstock"]["spec"]["serviceName"] == "penstock-brokers"
    assert plain["Service", "penstock-brokers"]["spec"]["publishNotReadyAddresses"] is True


def test_everything_given_is_told(full: dict[tuple[str, str], chart.Manifest]) -> None:
    config = _config(full, 2)
    assert config.listeners.advertised_kafka == ("192.0.2.7", 30092)
    assert full["Service", "penstock-2"]["spec"]["ports"][0]["nodePort"] == 30092
    assert full["StatefulSet", "penstock"]["spec"]["ordinals"] == {"start": 1}
    assert [name for kind, name in full if kind == "Service" and name[-1].isdigit()] == [
        f"penstock-{index}" for index in (1, 2, 3)
    ]
    assert config.node.rack == "zone-a"
    assert config.cluster.store == "etcds://e1:2379,e2:2379/a"
    assert config.cluster.etcd_user == "u"
    assert ("StatefulSet", "penstock-etcd") not in full
    assert ("Secret", "penstock-cluster") not in full


def test_files_a_broker_is_told_of_are_mounted(full: dict[tuple[str, str], chart.Manifest]) -> None:
    pod = _pod(full)
    mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    told = chart.environment(pod["containers"][0], chart.pod_fields("penstock", 1))
    paths = [value for name, value in told.items() if name.startswith("PENSTOCK_") and value.startswith("/")]
    listeners = json.loads(told["PENSTOCK_LISTENERS"])
    paths += {path for each in listeners for path in each.get("tls", {}).values()}
    context = yaml.safe_load(full["ConfigMap", "penstock"]["data"]["client.yaml"])["contexts"]["admin"]["properties"]
    paths += [value for value in context.values() if value.startswith("/")]
    assert len(paths) == 15
    for path in paths:
        assert str(Path(path).parent) in mounts, f"{path} is on no volume"
    claims = [each["metadata"]["name"] for each in full["StatefulSet", "penstock"]["spec"]["volumeClaimTemplates"]]
    assert set(mounts.values()) == {volume["name"] for volume in pod["volumes"]} | set(claims)


def test_etcd_beside_the_brokers_is_the_one_they_use(plain: dict[tuple[str, str], chart.Manifest]) -> None:
    told = [
        chart.environment(_pod(plain, "penstock-etcd")["containers"][0], chart.pod_fields("penstock-etcd", index))
        for index in range(3)
    ]
    clients = [each["ETCD_ADVERTISE_CLIENT_URLS"].removeprefix("https://") for each in told]
    assert _config(plain, 0).cluster.store == "etcds://" + ",".join(clients)
    peers = [f"{each['ETCD_NAME']}={each['ETCD_INITIAL_ADVERTISE_PEER_URLS']}" for each in told]
    assert {each["ETCD_INITIAL_CLUSTER"] for each in told} == {",".join(peers)}


def test_brokers_are_left_time_and_probes_that_exist(plain: dict[tuple[str, str], chart.Manifest]) -> None:
    pod = _pod(plain)
    assert pod["terminationGracePeriodSeconds"] > STOP_DEADLINE_S + broker._LEAVE_S + 50
    container = pod["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in http._KINDS
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
        assert container[probe]["httpGet"]["path"] in ("/health/live", "/health/ready"), "the others need a login"
        assert ports[container[probe]["httpGet"]["port"]] == _config(plain, 0).listeners.http.port
    assert "lifecycle" not in container


def test_one_broker_at_a_time_and_apart(plain: dict[tuple[str, str], chart.Manifest]) -> None:
    labels = plain["StatefulSet", "penstock"]["spec"]["template"]["metadata"]["labels"]
    budget = plain["PodDisruptionBudget", "penstock"]["spec"]
    assert budget["maxUnavailable"] == 1
    pod = _pod(plain)
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (spread,) = pod["topologySpreadConstraints"]
    for selector in (budget["selector"], apart["labelSelector"], spread["labelSelector"]):
        assert selector["matchLabels"].items() <= labels.items()
    etcd = plain["StatefulSet", "penstock-etcd"]["spec"]["template"]["metadata"]["labels"]
    assert not budget["selector"]["matchLabels"].items() <= etcd.items(), "etcd would count as a broker"
    pod = _pod(plain, "penstock-etcd")
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (spread,) = pod["topologySpreadConstraints"]
    for selector in (apart["labelSelector"], spread["labelSelector"]):
        assert selector["matchLabels"].items() <= etcd.items()


@pytest.mark.parametrize("name", ["penstock", "penstock-etcd"])
def test_one_node_is_enough_if_that_is_said(name: str) -> None:
    preferred = _pod(chart.render("--set", "antiAffinity=preferred"), name)["affinity"]["podAntiAffinity"]
    assert list(preferred) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert "affinity" not in _pod(chart.render("--set", "antiAffinity=none"), name)


_ONLY_SHOPS = 'networkPolicy.clients=[{"podSelector":{"matchLabels":{"app":"shop"}}}]'


@pytest.mark.parametrize(("clients", "others"), [(_ONLY_SHOPS, 1), ("networkPolicy.clients=[]", 0)])
def test_brokers_may_ask_each_other_whoever_else_may(clients: str, others: int) -> None:
    """`kubectl exec penstock-0 -- penstock cluster status` asks every broker as a client."""
    found = chart.render("--set-json", clients)
    labels = found["StatefulSet", "penstock"]["spec"]["template"]["metadata"]["labels"]
    (rule,) = [
        each for each in found["NetworkPolicy", "penstock"]["spec"]["ingress"] if each["ports"] == [{"port": "kafka"}]
    ]
    allowed = [peer["podSelector"]["matchLabels"] for peer in rule["from"]]
    assert len(allowed) == 1 + others
    assert allowed[0].items() <= labels.items()


@pytest.mark.parametrize(("fails_at", "deleted"), [(0, 3), (1, 0), (2, 1), (4, 2)])
def test_the_loop_of_the_readme_waits_before_and_after_each_pod(fails_at: int, deleted: int, tmp_path: Path) -> None:
    """With a kubectl that only takes notes, and whose check fails the given time."""
    (loop,) = re.findall(r"```sh\n(.*?)```", (chart.CHART / "README.md").read_text(), re.DOTALL)
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f'#!/bin/sh\ncd {tmp_path}\necho "$*" >> said\ncase "$*" in\n'
        f'*check*) echo >> checks; test "$(wc -l < checks)" -ne {fails_at};;\nesac\n'
    )
    kubectl.chmod(0o755)
    run("env", f"PATH={tmp_path}:/usr/bin:/bin", "sh", "-c", loop)
    said = (tmp_path / "said").read_text().splitlines()
    gone = [number for number, line in enumerate(said) if line.startswith("delete pod ")]
    assert [said[number] for number in gone] == [f"delete pod penstock-{index}" for index in range(deleted)]
    for number in gone:
        asked = f"exec penstock-{(int(said[number][-1]) + 1) % 3} -- penstock cluster check --wait 600"
        assert said[number - 1] == said[number + 1] == asked, "of a broker that stays"


@pytest.mark.parametrize("arguments", [(), _FULL, _BY_CERT_MANAGER])
def test_nothing_is_said_in_plain_and_nobody_is_let_in_unasked(arguments: tuple[str, ...]) -> None:
    """As the broker itself judges it; of its own accord it would refuse to start."""
    found = chart.render(*arguments)
    config = _config(found, 1)
    assert not config.insecure and config.security_mode == "closed"
    kafka, http, *metrics, internal = config.listeners.listed(in_cluster=True)
    assert kafka.tls is not None and kafka.auth == ("scram",)
    assert http.tls == kafka.tls and http.auth == ("basic", "key")
    assert all(each.tls == kafka.tls and each.auth == http.auth for each in metrics)
    assert internal.name == "internal" and config.cluster.tls_cert is not None
    assert config.cluster.store.startswith("etcds://") and config.cluster.etcd_cert is not None
    assert str(config.security.admin_password_file) == "/etc/penstock-admin/password"
    told = yaml.safe_dump_all(each for (kind, _), each in found.items() if kind != "PrometheusRule")
    assert "insecure" not in told.lower()
    assert not re.search(r"http://|\bPLAINTEXT\b", told)


def test_etcd_lets_in_who_shows_a_certificate(plain: dict[tuple[str, str], chart.Manifest]) -> None:
    pod = _pod(plain, "penstock-etcd")
    container = pod["containers"][0]
    told = chart.environment(container, chart.pod_fields("penstock-etcd", 0))
    assert all(told[name].startswith("https://") for name in told if re.match("ETCD_.*_URLS", name))
    assert told["ETCD_CLIENT_CERT_AUTH"] == told["ETCD_PEER_CLIENT_CERT_AUTH"] == "true"
    files = {value for value in told.values() if value.startswith("/etc/")}
    assert files == {f"/etc/etcd-tls/{name}" for name in ("ca.crt", "tls.crt", "tls.key")}
    assert {"name": "tls", "mountPath": "/etc/etcd-tls", "readOnly": True} in container["volumeMounts"]
    assert pod["volumes"][0]["secret"]["secretName"] == "store"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["exec"]["command"][0] == "etcdctl", "the kubelet has no certificate to show"
    assert told["ETCDCTL_ENDPOINTS"] == told["ETCD_ADVERTISE_CLIENT_URLS"]


def test_cert_manager_makes_what_is_mounted_for_the_names_that_are_used() -> None:
    given = "tls.certManager.names={broker-0.example.com},tls.certManager.issuer.name=ours"
    found = chart.render(*_BY_CERT_MANAGER, "--set", given)
    made = {each["spec"]["secretName"]: each["spec"] for (kind, _), each in found.items() if kind == "Certificate"}
    mounted = {
        volume["secret"]["secretName"]
        for name in ("penstock", "penstock-etcd")
        for volume in _pod(found, name)["volumes"]
        if "tls" in volume["name"]
    }
    assert mounted == {name for name in made if name.endswith("-tls")} and len(mounted) == 3
    config = _config(found, 1)
    own = str(config.listeners.advertised_kafka.host).replace("penstock-1.", "*.")
    assert {own, "penstock", "broker-0.example.com"} <= set(made["penstock-clients-tls"]["dnsNames"])
    assert made["penstock-brokers-tls"]["dnsNames"] == [own]
    assert made["penstock-brokers-tls"]["uris"] == [BROKER_URI]
    members = [word.rpartition(":")[0] for word in config.cluster.store.removeprefix("etcds://").split(",")]
    assert made["penstock-etcd-tls"]["dnsNames"] == members
    issuers = {name: spec["issuerRef"]["name"] for name, spec in made.items() if name.endswith("-tls")}
    assert issuers["penstock-clients-tls"] == "ours"
    assert len(set(issuers.values())) == 3, "a certificate for one thing would be good for another"
    for name in set(issuers.values()) - {"ours"}:
        assert found["Issuer", name]["spec"]["ca"]["secretName"] in made


def test_the_names_by_hand_are_those_by_cert_manager() -> None:
    page = (chart.CHART / "README.md").read_text()
    found = chart.render(*_BY_CERT_MANAGER)
    for kind in ("clients", "brokers"):
        (line,) = re.findall(rf"^penstock tls issue {kind} (.*)$", page, re.MULTILINE)
        names = found["Certificate", f"penstock-{kind}-tls"]["spec"]["dnsNames"]
        said = re.findall(r"--host '?([^\s']+)", line)
        assert said and set(said) <= set(names)
        assert ("--broker" in line) == (kind == "brokers")


def test_penstock_in_a_pod_is_the_admin(full: dict[tuple[str, str], chart.Manifest], tmp_path: Path) -> None:
    pod = _pod(full)
    told = chart.environment(pod["containers"][0], chart.pod_fields("penstock", 1))
    settings = next(volume["configMap"] for volume in pod["volumes"] if volume["name"] == "settings")
    mount = next(each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "settings")
    for item in settings["items"]:
        file = tmp_path / item["path"]
        file.parent.mkdir(exist_ok=True)
        file.write_text(full["ConfigMap", settings["name"]]["data"][item["key"]])
    assert told["HOME"] == mount["mountPath"]
    server = find_server(env={"HOME": str(tmp_path)})
    assert server.address == ",".join(
        f"penstock-{index}.penstock-brokers.logs.svc.cluster.local:9092" for index in (1, 2, 3)
    )
    assert server.properties["security.protocol"] == "SASL_SSL"
    assert server.properties["sasl.password.file"] == told["PENSTOCK_SECURITY__ADMIN_PASSWORD_FILE"]


def test_a_pod_has_no_rights(plain: dict[tuple[str, str], chart.Manifest]) -> None:
    for name in ("penstock", "penstock-etcd"):
        pod = _pod(plain, name)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == USER
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_prometheus_finds_the_brokers_under_a_job_the_rules_know() -> None:
    found = chart.render(*_FULL, release="east")
    monitor = found["ServiceMonitor", "east-penstock"]["spec"]
    service = found["Service", "east-penstock-brokers"]
    labels = service["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    others = [each for (kind, name), each in found.items() if kind == "Service" and each is not service]
    assert not any(monitor["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items() for each in others)
    (endpoint,) = monitor["endpoints"]
    (port,) = [port for port in service["spec"]["ports"] if port["name"] == endpoint["port"]]
    container = _pod(found, "east-penstock")["containers"][0]
    (inner,) = [each["containerPort"] for each in container["ports"] if each["name"] == port["targetPort"]]
    (door,) = [
        each
        for each in json.loads(chart.environment(container, chart.pod_fields("p", 1))["PENSTOCK_LISTENERS"])
        if each["protocol"] == "metrics"
    ]
    assert door["address"] == f"0.0.0.0:{inner}"
    allowed = [
        each["port"] for rule in found["NetworkPolicy", "east-penstock"]["spec"]["ingress"] for each in rule["ports"]
    ]
    assert endpoint["port"] in allowed
    assert endpoint["scheme"] == "https" and endpoint["basicAuth"]["password"] == {"name": "m", "key": "password"}
    assert endpoint["tlsConfig"]["ca"]["secret"]["name"] == "seen"
    assert labels[monitor["jobLabel"]] == "penstock-logs-east"
    rules = yaml.safe_load((DEPLOY / "prometheus" / "penstock.rules.yml").read_text())
    assert found["PrometheusRule", "east-penstock"]["spec"] == rules


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("replica=3", "replica"),
        ("etcd.bundled.replicas=2", "/etcd/bundled/replicas"),
        ("etcd.endpoints={http://e:2379}", "/etcd/endpoints/0"),
        ("terminationGracePeriodSeconds=5", "/terminationGracePeriodSeconds"),
        ("external.enabled=true", "external.enabled needs advertised"),
        ("etcd.user=u,etcd.endpoints={e:2379}", "etcd.user needs etcd.passwordSecret"),
        ("etcd.user=u,etcd.passwordSecret=w", "name it in etcd.endpoints"),
        ("etcd.plain=true,etcd.tlsSecret=,etcd.endpoints={e:2379}", "plain"),
        ("etcd.tlsSecret=,etcd.endpoints={e:2379}", "reach etcd over TLS alone"),
        ("etcd.tlsSecret=", "etcd.tlsSecret is not set"),
        ("tls.secret=", "tls.secret is not set"),
        ("tls.brokersSecret=", "tls.brokersSecret is not set"),
        ("admin.secret=", "admin.secret is not set"),
        ("insecure=true", "insecure"),
        ("settings.listeners.kafka=0.0.0.0:9092", "settings.listeners"),
        ("rack.name=a,rack.podLabel=b", "choose one of them"),
        ("prometheusRule.enabled=true", "needs the rules"),
        ("serviceMonitor.enabled=true", "needs serviceMonitor.secret"),
    ],
)
def test_wrong_values_are_refused_by_name(wrong: str, reason: str) -> None:
    with pytest.raises(chart.ChartError, match=re.escape(reason)):
        chart.render("--set", wrong)


def test_an_older_kubernetes_is_refused() -> None:
    with pytest.raises(chart.ChartError, match="kubeVersion"):
        chart.render_text(kubernetes="1.27.0")


def test_the_notes_warn_of_what_is_missing(tmp_path: Path) -> None:
    """helm shows them only after an installation, so they are made a manifest's."""
    copy = shutil.copytree(chart.CHART, tmp_path / "penstock")
    notes = copy / "templates" / "NOTES.txt"
    manifest = '{{ define "notes" }}%s{{ end }}\nkind: Notes\nmetadata: {}\ntext: {{ include "notes" . | quote }}\n'
    notes.with_name("notes.yaml").write_text(manifest % notes.read_text())
    few = (
        "--set",
        "replicas=2,networkPolicy.enabled=false,antiAffinity=preferred",
        "--show-only",
        "templates/notes.yaml",
    )
    done = run(helm(), "template", "penstock", copy, "--namespace", "logs", *chart.GIVEN, *few)
    assert done.returncode == 0, done.stdout
    text = yaml.safe_load(done.stdout)["text"]
    assert "bootstrap from penstock.logs.svc.cluster.local:9092, with\n  security.protocol=SASL_SSL" in text
    for warning in ("three are the least", "without backups", "networkPolicy is off", "may be on one node"):
        assert warning in text


def test_settings_reach_the_brokers_file() -> None:
    found = chart.render("--set", "settings.defaults.topic.partitions=12")
    file = found["ConfigMap", "penstock"]["data"]["penstock.yaml"]
    assert yaml.safe_load(file) == {"defaults": {"topic": {"partitions": 12}}}
    sums = {
        each["StatefulSet", "penstock"]["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
        for each in (found, chart.render())
    }
    assert len(sums) == 2, "brokers would not be restarted for new settings"


def test_every_value_has_a_schema_and_the_versions_are_ours() -> None:
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    _same_keys(values, schema, "")
    about = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert about["appVersion"] == __version__


def _same_keys(values: dict[str, Any], schema: dict[str, Any], path: str) -> None:
    if schema.get("additionalProperties") is not False:
        return
    assert set(schema["properties"]) - {"global"} == set(values), path
    for name, value in values.items():
        if isinstance(value, dict):
            _same_keys(value, schema["properties"][name], f"{path}.{name}")
