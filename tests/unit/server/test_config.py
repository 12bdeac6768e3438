"""Settings: which layer wins, what each may hold, and whether an error says enough to be acted on."""

import re
from pathlib import Path

import pytest

from penstock.errors import StartupError
from penstock.server import config_loading as settings
from penstock.server.config import Address, Config
from penstock.server.config_layers import ConfigError, Given, read_assignments
from penstock.server.config_listeners import parse_address
from penstock.server.config_loading import load
from penstock.server.config_table import SETTINGS


def flag(value: object, name: str = "flag --x") -> Given:
    return Given(value, name)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "penstock.yaml"
    path.write_text(text)
    return path


def error_of(**layers: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(**({"env": {}} | layers))  # type: ignore[arg-type]
    return str(caught.value)


def test_defaults() -> None:
    config = load(env={})
    assert config == Config()
    assert config.data_dir == Path("data")
    assert config.node.id == 1
    assert config.listeners.kafka == ("127.0.0.1", 9092)
    assert config.listeners.http == ("127.0.0.1", 8080)
    assert config.listeners.advertised_kafka is None
    assert config.insecure is False
    assert config.topics.auto_create is True
    assert config.defaults.partitions == 6
    assert dict(config.defaults.topic) == {}
    assert config.limits.max_connections == 10_000
    assert config.limits.max_request_bytes == 104_857_600
    assert config.limits.max_in_flight_requests == 64
    assert (config.logging.level, config.logging.format) == ("info", "text")


def test_each_layer_wins_over_the_one_before(tmp_path: Path) -> None:
    file = write(tmp_path, "node: {id: 2}\nlimits: {max_connections: 2, max_in_flight_requests: 2}\n")
    env = {"PENSTOCK_LIMITS__MAX_CONNECTIONS": "3", "PENSTOCK_LIMITS__MAX_IN_FLIGHT_REQUESTS": "3"}
    config = load(file=file, env=env, flags={"limits.max_in_flight_requests": flag("4")})
    assert config.node.id == 2
    assert config.limits.max_connections == 3
    assert config.limits.max_in_flight_requests == 4


def test_every_setting_is_reachable_from_every_layer(tmp_path: Path) -> None:
    samples = {
        "data_dir": "/somewhere",
        "insecure": "true",
        "node.id": "7",
        "listeners": "[{name: outside, protocol: kafka, address: 127.0.0.1:6}]",
        "listeners.kafka": "127.0.0.1:1",
        "listeners.http": "[::1]:2",
        "listeners.metrics": "9",
        "listeners.advertised_kafka": "broker.example:3",
        "listeners.internal": "127.0.0.1:4",
        "listeners.advertised_internal": "broker.example:5",
        "node.rack": "a",
        "cluster.store": "embedded",
        "cluster.members": "1@a:1:2,2@b:1:2,3@c:1:2",
        "cluster.secret_file": "/s",
        "cluster.etcd_program": "/opt/etcd",
        "cluster.etcd_ca": "/a",
        "cluster.etcd_cert": "/b",
        "cluster.etcd_key": "/c",
        "cluster.etcd_user": "penstock",
        "cluster.etcd_password_file": "/p",
        "cluster.tls_ca": "/d",
        "cluster.tls_cert": "/e",
        "cluster.tls_key": "/f",
        "cluster.tls_crl": "/g",
        "cluster.replication": "2",
        "cluster.lease_s": "9",
        "cluster.replica_lag_ms": "5000",
        "cluster.preferred_leader_s": "7",
        "cluster.accept_older_store": "true",
        "cluster.accept_new_secret": "true",
        "security.mode": "watch",
        "security.super_users": "User:root",
        "security.admin_password_file": "/q",
        "security.seal_key_file": "/k",
        "security.other_seal_key_files": "/l,/m",
        "topics.auto_create": "false",
        "defaults.topic.partitions": "9",
        "limits.max_connections": "10",
        "limits.max_request_bytes": "2048",
        "limits.max_in_flight_requests": "5",
        "limits.max_receive_bytes": "4096",
        "limits.max_answer_bytes": "4096",
        "storage.upkeep_ms": "100",
        "storage.compaction_bytes_per_second": "1000000",
        "storage.scrub_hours": "12",
        "storage.scrub_bytes_per_second": "1000000",
        "topics.internal_partitions": "4",
        "groups.initial_rebalance_delay_ms": "0",
        "groups.min_session_timeout_ms": "1000",
        "groups.max_session_timeout_ms": "60000",
        "groups.max_size": "10",
        "groups.consumer_heartbeat_interval_ms": "200",
        "groups.consumer_session_timeout_ms": "9000",
        "groups.offsets_retention_ms": "60000",
        "transactions.max_timeout_ms": "60000",
        "transactions.id_expiration_ms": "3600000",
        "logging.level": "debug",
        "logging.format": "json",
    }
    assert set(samples) == {setting.key for setting in SETTINGS}
    by_flags = load(env={}, flags={key: flag(value) for key, value in samples.items()})
    by_env = load(env={"PENSTOCK_" + key.upper().replace(".", "__"): value for key, value in samples.items()})
    by_file = load(file=write(tmp_path, "".join(f"{k}: '{v}'\n" for k, v in samples.items())), env={})
    assert by_flags == by_env == by_file
    for key in samples:
        assert settings._value_of(by_flags, key) != settings._value_of(Config(), key), f"{key} is dropped"
    assert by_flags.defaults.partitions == 9
    assert by_flags.listeners.http == Address("::1", 2)


def test_topic_defaults_merge_key_by_key_and_become_text(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "defaults:\n  topic:\n    segment.bytes: 65536\n    flush: os\n    partitions: 3\n"
        "    unclean.leader.election.enable: false\n    cleanup.policy: [compact, delete]\n",
    )
    env = {
        "PENSTOCK_DEFAULTS__TOPIC": '{"flush": "interval", "retention.ms": 60000}',
        "PENSTOCK_DEFAULTS__TOPIC__RETENTION_MS": "70000",
    }
    config = load(file=file, env=env, flags={"defaults.topic.max.message.bytes": flag("1000")})
    assert dict(config.defaults.topic) == {
        "segment.bytes": "65536",
        "flush": "interval",
        "retention.ms": "70000",
        "unclean.leader.election.enable": "false",
        "cleanup.policy": "compact,delete",
        "max.message.bytes": "1000",
    }
    assert config.defaults.partitions == 3


def test_substitution_takes_the_environment_or_the_default(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "data_dir: ${BASE:/var}/penstock\nnode: {id: '${ID:5}'}\n"
        "listeners: {kafka: '${KAFKA:127.0.0.1:7777}'}\ndefaults: {topic: {note: '$${BASE}'}}\n",
    )
    config = load(file=file, env={"BASE": "/srv"})
    assert config.data_dir == Path("/srv/penstock")
    assert config.node.id == 5
    assert config.listeners.kafka == ("127.0.0.1", 7777)
    assert config.defaults.topic["note"] == "${BASE}"


def test_substitution_cannot_change_the_structure(tmp_path: Path) -> None:
    config = load(file=write(tmp_path, "data_dir: ${DIR}\n"), env={"DIR": "x\ninsecure: true"})
    assert config.insecure is False
    assert config.data_dir == Path("x\ninsecure: true")


def test_substitution_without_value_names_the_variable(tmp_path: Path) -> None:
    text = error_of(file=write(tmp_path, "data_dir: ${NOWHERE}/x\n"))
    assert "data_dir" in text
    assert "NOWHERE is not set" in text
    assert "${NOWHERE:value}" in text


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "node: {id: 12}\n")
    assert load(env={"PENSTOCK_CONFIG": str(file)}).node.id == 12


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("node.id", "x", "a whole number from 0"),
        ("node.id", -1, "a whole number from 0"),
        ("node.id", True, "a whole number from 0"),
        ("node.id", 1.5, "a whole number from 0"),
        ("insecure", "maybe", "true or false"),
        ("listeners.kafka", "nonsense", "host:port"),
        ("listeners.kafka", ":9092", "host:port"),
        ("listeners.kafka", "127.0.0.1:65536", "host:port"),
        ("listeners.kafka", "::1:9092", "host:port"),
        ("listeners.kafka", 9092, "host:port"),
        ("listeners.advertised_kafka", "0.0.0.0:9092", "no wildcard"),
        ("listeners.advertised_kafka", "host:0", "port 1 to 65535"),
        ("limits.max_request_bytes", 10, "from 1024"),
        ("defaults.topic.partitions", 0, "from 1 to 10000"),
        ("logging.level", "loud", "debug, info, warning, error"),
        ("logging.format", "xml", "text, json"),
        ("data_dir", "", "a directory path"),
    ],
)
def test_a_bad_value_names_key_value_source_and_what_is_allowed(key: str, value: object, allowed: str) -> None:
    text = error_of(flags={key: flag(value, "flag --there")})
    assert text.startswith(f"{key} = {value!r} (from flag --there)")
    assert allowed in text


def test_a_bad_value_names_file_or_variable(tmp_path: Path) -> None:
    file = write(tmp_path, "node: {id: x}\n")
    assert f"(from file {file})" in error_of(file=file)
    assert "(from PENSTOCK_NODE__ID)" in error_of(env={"PENSTOCK_NODE__ID": "x"})


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("listners.kafka", "did you mean listeners.kafka?"),
        ("limits.max_conections", "did you mean limits.max_connections?"),
        ("limits.zzz", "there is limits.max_connections, "),
        ("default.topic.flush", "did you mean defaults.topic.flush?"),
        ("qqq", "no such setting; 'penstock config show' lists"),
        ("foo.bar", "no such setting; 'penstock config show' lists"),
        ("listeners", "expected a list of {name, protocol, address"),
    ],
)
def test_an_unknown_key_gets_a_hint(key: str, hint: str) -> None:
    text = error_of(flags={key: flag("v")})
    assert text.startswith(f"{key} = 'v' (from flag --x)")
    assert hint in text


@pytest.mark.parametrize("name", ["PENSTOCK_LISTENERS__KAFKAA", "PENSTOCK_DATADIR", "PENSTOCK_NO__SUCH"])
def test_a_mistyped_variable_is_refused(name: str) -> None:
    assert f"(from {name})" in error_of(env={name: "v"})


def test_variables_that_are_no_settings_are_left_alone() -> None:
    env = {
        "PENSTOCK_SERVER": "x",
        "PENSTOCK_PASSWORD": "x",
        "PENSTOCK_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_PORT": "tcp://10.0.0.1:9092",
        "PENSTOCK_PORT_9092_TCP_ADDR": "10.0.0.1",
        "PENSTOCK_KAFKA_SERVICE_PORT_HTTP": "1",
        "PENSTOCK_WEATHER": "fine",
    }
    assert load(env=env).ignored_env == ("PENSTOCK_WEATHER",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node: {id: 1\n", "not valid YAML at line"),
        ("- 1\n- 2\n", "must hold settings"),
        ("node: {id: 1}\nnode: {id: 2}\n", "'node' is given twice"),
        ("node: {id: 1}\nnode.id: 2\n", "node.id (from file"),
        ("defaults: {topic: {Bad Key: 1}}\n", "no topic setting's name"),
        ("defaults: {topic: {flush: [{a: 1}]}}\n", "expected a text, number"),
        ("data_dir: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
    ],
)
def test_a_bad_file_says_where(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in error_of(file=write(tmp_path, text))


def test_an_unreadable_file_says_why(tmp_path: Path) -> None:
    assert "No such file" in error_of(file=tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in error_of(file=tmp_path / "bytes.yaml")


def test_an_empty_file_and_empty_values_keep_the_defaults(tmp_path: Path) -> None:
    assert load(file=write(tmp_path, "# nothing\n"), env={}) == Config()
    assert load(file=write(tmp_path, "node:\nlistener.kafka:\n"), env={}) == Config()


def test_a_map_variable_must_be_a_map() -> None:
    text = error_of(env={"PENSTOCK_DEFAULTS__TOPIC": "os"})
    assert "defaults.topic = 'os' (from PENSTOCK_DEFAULTS__TOPIC)" in text
    assert '{"flush": "os"' in text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "[::1]"])
def test_loopback_needs_nothing(host: str) -> None:
    load(env={}, flags={"listeners.kafka": flag(f"{host}:0"), "listeners.http": flag(f"{host}:0")})


@pytest.mark.parametrize("listener", ["kafka", "http", "metrics"])
@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "[::]", "[fe80::1]", "broker.example", "127.0.0.1.example"])
def test_beyond_loopback_needs_insecure(listener: str, host: str) -> None:
    flags = {f"listeners.{listener}": flag(f"{host}:4444")}
    text = error_of(flags=flags)
    assert f"listeners.{listener} = {host}:4444" in text
    assert f"--{listener} 127.0.0.1:4444" in text
    assert "--insecure" in text
    flags |= {"insecure": flag(True), "listeners.advertised_kafka": flag("broker.example:4444")}
    assert load(env={}, flags=flags).insecure


def test_a_wildcard_needs_an_address_clients_can_use() -> None:
    flags = {"listeners.kafka": flag("0.0.0.0:4444"), "insecure": flag(True)}
    assert "listeners.advertised_kafka" in error_of(flags=flags)


def test_config_errors_refuse_the_start() -> None:
    assert issubclass(ConfigError, StartupError)


@pytest.mark.parametrize("text", ["127.0.0.1:9092", "[::1]:0", "host-1.example:65535"])
def test_addresses_survive_parse_and_format(text: str) -> None:
    assert str(parse_address(text)) == text


def test_assignments() -> None:
    given = read_assignments(["node.id=3", "defaults.topic.note=a=b"], "--set")
    assert given == {"node.id": Given("3", "--set"), "defaults.topic.note": Given("a=b", "--set")}
    with pytest.raises(ConfigError, match="expected key=value"):
        read_assignments(["node.id"], "--set")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"cluster.store": "embedded"}, "cluster.members"),
        ({"cluster.members": "1@a:1:2"}, "cluster.store = none"),
        ({"cluster.store": "zookeeper://a:1"}, "etcd://"),
        ({"cluster.tls_cert": "/c"}, "cluster.tls_key"),
        ({"cluster.etcd_key": "/c"}, "cluster.etcd_cert"),
        ({"cluster.tls_crl": "/c"}, "cluster.tls_crl needs cluster.tls_ca too"),
        ({"cluster.store": "etcd://a:1", "listeners.internal": "0.0.0.0:9094"}, "listeners.advertised_internal"),
    ],
)
def test_what_belongs_together_in_a_cluster(flags: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        load(env={}, flags={key: flag(value) for key, value in flags.items()})


_EMBEDDED = {"cluster.store": "embedded", "cluster.members": "1@127.0.0.1:1:2,2@10.0.0.2:1:2,3@[::1]:1:2"}
_LOCAL = {"cluster.store": "embedded", "cluster.members": "1@127.0.0.1:1:2,2@localhost:1:2,3@[::1]:1:2"}
_FILES = {"cluster.etcd_ca": "/a", "cluster.etcd_cert": "/b", "cluster.etcd_key": "/c"}


@pytest.mark.parametrize(
    ("store", "far"),
    [
        ({"cluster.store": "etcd://127.0.0.1:2379,10.0.0.2:2379/prefix"}, "10.0.0.2"),
        ({"cluster.store": "etcd://etcd.example"}, "etcd.example"),
        ({"cluster.store": "etcd://[fe80::1]:2379"}, "fe80::1"),
        (_EMBEDDED, "10.0.0.2"),
        (_EMBEDDED | _FILES, None),
        (_LOCAL, None),
        ({"cluster.store": "etcds://etcd.example"}, None),
        ({"cluster.store": "etcd://etcd.example", "cluster.etcd_ca": "/a"}, None),
        ({"cluster.store": "etcd://127.0.0.1:2379,localhost,[::1]:2379"}, None),
    ],
)
def test_what_is_closed_keeps_its_secrets_from_the_network(store: dict[str, str], far: str | None) -> None:
    settings = store | {"security.mode": "closed"}
    flags = {key: flag(value) for key, value in settings.items()}
    if far is not None:
        text = error_of(flags=flags)
        assert f"reaches {far} in plain" in text and "cluster.etcd_ca" in text and "--insecure" in text
        flags["insecure"] = flag(True)
    config = load(env={}, flags=flags)
    assert (config.cluster.store, config.exposed_store) == (store["cluster.store"], far)
    config = load(env={}, flags={key: flag(value) for key, value in store.items()})
    assert (config.security_mode, config.exposed_store) == ("open", None)


def test_the_secret_in_the_environment_is_no_setting() -> None:
    config = load(env={"PENSTOCK_CLUSTER_SECRET": "not shown anywhere"})
    assert config == Config() and not config.ignored_env
