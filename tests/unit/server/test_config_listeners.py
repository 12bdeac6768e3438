"""Listeners as settings: the list, its short forms, both together, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.server.config import Address, Listener, Listeners, ListenerTls
from penstock.server.config_layers import ConfigError, Given
from penstock.server.config_loading import explain, find_problems, load
from penstock.server.doors.table import KINDS, Kind

OUTSIDE = {"name": "outside", "protocol": "kafka", "address": "127.0.0.1:9192", "advertised": "broker.example:9192"}
TLS = {"certificate": "c.pem", "key": "k.pem"}
BEYOND = OUTSIDE | {"address": "10.0.0.1:9192"}
KAFKA = {"name": "kafka", "protocol": "kafka", "address": "127.0.0.1:1", "auth": "scram"}
INTERNAL = {"name": "internal", "protocol": "internal", "address": "127.0.0.1:2"}
HTTP = {"name": "plain_http", "protocol": "http", "address": "127.0.0.1:1"}
PARSED = Listener("outside", "kafka", Address("127.0.0.1", 9192), Address("broker.example", 9192))


def listed(*items: object, source: str = "--set") -> dict[str, Given]:
    return {"listeners": Given(json.dumps(items), source)}


def error_of(*items: object, **short: str) -> str:
    flags = listed(*items) | {f"listeners.{form}": Given(value, f"flag {form}") for form, value in short.items()}
    with pytest.raises(ConfigError) as caught:
        load(env={}, flags=flags)
    return str(caught.value)


def test_a_list_comes_from_file_environment_and_flag(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text(
        "listeners:\n- name: outside\n  protocol: kafka\n  address: 127.0.0.1:${PORT:9192}\n"
        "  advertised: broker.example:9192\n  tls: none\n  auth:\n"
    )
    by_file = load(file=file, env={}).listeners
    assert by_file == load(env={"PENSTOCK_LISTENERS": json.dumps([OUTSIDE])}).listeners
    assert by_file == load(env={}, flags=listed(OUTSIDE)).listeners
    assert by_file.more == (PARSED,)
    assert [each.name for each in by_file.listed(in_cluster=False)] == ["kafka", "http", "outside"]
    assert [each.name for each in by_file.listed(in_cluster=True)] == ["kafka", "http", "outside", "internal"]
    assert load(file=file, env={"PORT": "7"}).listeners.more[0].address.port == 7


def test_the_list_may_stand_for_the_short_forms() -> None:
    told = {"protocol": "kafka", "address": "127.0.0.1:1", "advertised": "broker.example:2"}
    flags = {
        "listeners.kafka": Given("127.0.0.1:1", "flag"),
        "listeners.advertised_kafka": Given("broker.example:2", "flag"),
    }
    by_list = load(env={}, flags=listed(told)).listeners
    assert by_list == load(env={}, flags=flags).listeners
    assert by_list.more == ()
    shown = {each.key: (str(each.value), each.source) for each in explain(env={}, flags=listed(told, OUTSIDE))}
    assert shown["listeners.kafka"] == ("127.0.0.1:1", "--set")
    assert shown["listeners.http"] == ("127.0.0.1:8080", "default")
    assert shown["listeners"] == ("outside=kafka://127.0.0.1:9192 (advertised broker.example:9192)", "--set")


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([OUTSIDE, OUTSIDE | {"address": "127.0.0.1:1"}], "two listeners are called outside, at 127.0.0.1:9192 and"),
        ([{"protocol": "kafka", "address": "127.0.0.1:1"}] * 2, "two listeners are called kafka"),
        ([OUTSIDE | {"tls": "required"}], "listener outside has tls = 'required'; expected a map of certificate, key"),
        ([OUTSIDE | {"tls": {"certificate": "c"}}], "tls of listener outside has no key; give it the path"),
        ([OUTSIDE | {"tls": {**TLS, "keys": "c"}}], "tls of listener outside has no such key as 'keys'; did you mean"),
        ([OUTSIDE | {"tls": {**TLS, "key": 7}}], "tls of listener outside has key = 7; expected text"),
        ([OUTSIDE | {"tls": {**TLS, "client_auth": "maybe"}}], "has client_auth = 'maybe'; expected one of none"),
        ([OUTSIDE | {"tls": {**TLS, "sni": "a.example"}}], "has sni = 'a.example'; expected a map from names"),
        ([OUTSIDE | {"tls": {**TLS, "sni": {"a b": TLS}}}], "sni of listener outside has 'a b'; expected a server's"),
        ([OUTSIDE | {"tls": {**TLS, "sni": {"a": "c"}}}], "sni of listener outside for a is 'c'; expected a map of"),
        ([OUTSIDE | {"tls": {**TLS, "sni": {"a": {"key": "k"}}}}], "sni of listener outside for a has no certificate"),
        ([OUTSIDE | {"tls": {**TLS, "sni": {"a": TLS, "A": TLS}}}], "for A is given twice"),
        ([OUTSIDE | {"tls": {**TLS, "sni": {"a": {**TLS, "names": "x"}}}}], "for a has no such key as 'names'"),
        ([INTERNAL | {"tls": TLS}], "listener internal has tls: listeners of protocol internal have none yet"),
        ([OUTSIDE | {"tls": TLS, "auth": "certificate"}], "has auth certificate, but asks nobody for one"),
        ([BEYOND | {"tls": TLS}], "reaches beyond this machine and has no authentication"),
        ([OUTSIDE | {"auth": "kerberos"}], "listener outside has auth = 'kerberos'; listeners of protocol kafka have"),
        ([HTTP | {"auth": "scram"}], "has auth = 'scram'; listeners of protocol http have basic, key"),
        ([HTTP | {"auth": "key", "address": "10.0.0.1:1"}], "plain_http = 10.0.0.1:1 reaches beyond this machine"),
        ([BEYOND | {"auth": "scram"}], "reaches beyond this machine and has no TLS"),
        ([BEYOND | {"auth": "plain"}], "listener outside = 10.0.0.1:9192 reaches beyond this machine and has no TLS"),
        ([OUTSIDE | {"protocol": "gopher"}], "has protocol 'gopher'; this build has kafka, http, metrics, internal"),
        ([{"name": "outside"}], "has protocol None"),
        ([OUTSIDE | {"adress": "x"}], "has no such key as 'adress'; did you mean address?"),
        ([OUTSIDE | {"name": "Out side"}], "a listener cannot be called 'Out side'"),
        ([OUTSIDE | {"name": "node"}], "a listener cannot be called 'node'"),
        ([OUTSIDE | {"name": "http"}], "listener http has protocol kafka; give it another name, or protocol http"),
        ([OUTSIDE | {"address": "nowhere"}], "listener outside has address = 'nowhere'; expected host:port"),
        ([OUTSIDE | {"address": None}], "listener outside has no address; give it one, such as 127.0.0.1:9092"),
        ([OUTSIDE | {"advertised": "0.0.0.0:1"}], "listener outside has advertised = '0.0.0.0:1'; expected host:port"),
        (["outside"], "expected a list of {name, protocol, address"),
        ([OUTSIDE | {"address": "10.0.0.1:9192"}], "listener outside = 10.0.0.1:9192 reaches beyond this machine"),
    ],
)
def test_what_is_wrong_with_a_list_is_named(items: list[object], says: str) -> None:
    assert says in error_of(*items)


@pytest.mark.parametrize("form", ["kafka", "advertised_kafka"])
def test_a_listener_in_both_forms_is_refused_with_both_places(form: str) -> None:
    text = error_of({"protocol": "kafka", "address": "127.0.0.1:1"}, **{form: "127.0.0.1:2"})
    assert text == (
        f"listener kafka is given twice: in the list listeners (from --set) and as listeners.{form} "
        f"(from flag {form}); keep one of the two"
    )


def test_all_that_is_wrong_is_found_at_once() -> None:
    flags = listed({"protocol": "kafka", "address": "127.0.0.1:1"}) | {
        "listeners.kafka": Given("127.0.0.1:2", "flag"),
        "node.id": Given("x", "flag"),
    }
    problems, _ = find_problems(env={}, flags=flags)
    assert [str(each).partition(" ")[0] for each in problems] == ["node.id", "listener"]


def test_a_wildcard_needs_an_address_for_clients_wherever_it_is_named() -> None:
    beyond = {"name": "outside", "protocol": "kafka", "address": "0.0.0.0:1"}
    flags = listed(beyond) | {"insecure": Given(True, "flag")}
    with pytest.raises(ConfigError, match=r"listener outside = 0.0.0.0:1 is a wildcard.*with its key advertised"):
        load(env={}, flags=flags)
    http = {"name": "probes", "protocol": "http", "address": "0.0.0.0:1"}
    assert load(env={}, flags=listed(http) | {"insecure": Given(True, "flag")}).listeners.more[0].name == "probes"


def test_only_a_start_that_names_no_listener_opens_all_doors(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*_: object) -> None:
        raise AssertionError

    monkeypatch.setitem(KINDS, "echo", Kind("echo", "Echo", 7777, "echoes", "Echo", make))  # type: ignore[arg-type]
    standard = load(env={}).listeners
    assert standard.is_standard and standard == Listeners()
    assert Listener("echo", "echo", Address("127.0.0.1", 7777)) in standard.listed(in_cluster=False)
    for layers in (
        {"flags": {"listeners.kafka": Given("127.0.0.1:9092", "flag")}},  # where it would be anyway
        {"env": {"PENSTOCK_LISTENERS__HTTP": "127.0.0.1:0"}},
        {"flags": listed(OUTSIDE)},
    ):
        named = load(**({"env": {}} | layers)).listeners  # type: ignore[arg-type]
        assert not named.is_standard
        assert "echo" not in [each.name for each in named.listed(in_cluster=True)]
    own = Listeners(kafka=Address("127.0.0.1", 0), http=Address("127.0.0.1", 0))
    assert [each.name for each in own.listed(in_cluster=False)] == ["kafka", "http"]


def test_a_listener_that_asks_who_somebody_is_closes_what_is_not_open_by_name() -> None:
    asking = load(env={}, flags=listed(OUTSIDE | {"auth": ["scram", "plain"]}))
    assert asking.listeners.more[0].auth == ("scram", "plain")
    assert (asking.security_mode, asking.has_guard) == ("closed", True)
    (kafka,) = [each for each in load(env={}, flags=listed(KAFKA)).listeners.listed(in_cluster=False) if each.auth]
    assert (kafka.name, kafka.auth) == ("kafka", ("scram",))
    watched = load(env={}, flags=listed(OUTSIDE | {"auth": "scram"}) | {"security.mode": Given("watch", "--set")})
    assert (watched.security_mode, watched.has_guard) == ("watch", True)
    nobody = load(env={}, flags=listed(OUTSIDE | {"auth": "none"}))
    assert (nobody.security_mode, nobody.has_guard) == ("open", False)


def test_a_listener_with_tls_and_logins_may_be_reached_from_elsewhere() -> None:
    mutual = {**TLS, "authority": "a.pem", "client_auth": "require", "names": "RULE:CN=(.*)/$1/"}
    (listener,) = load(env={}, flags=listed(BEYOND | {"tls": mutual, "auth": ["certificate", "plain"]})).listeners.more
    assert listener.tls == ListenerTls(
        Path("c.pem"), Path("k.pem"), authority=Path("a.pem"), client_auth="require", names="RULE:CN=(.*)/$1/"
    )
    kafka = {"name": "kafka", "protocol": "kafka", "address": "10.0.0.1:1", "auth": "scram", "tls": TLS}
    (by_name,) = [each for each in load(env={}, flags=listed(kafka)).listeners.listed(in_cluster=False) if each.tls]
    assert by_name.name == "kafka"


def test_a_listener_that_others_can_reach_closes_what_is_not_open_by_name() -> None:
    beyond = listed(BEYOND | {"tls": TLS, "auth": ["scram"]})
    assert load(env={}, flags=beyond).security_mode == "closed"
    assert load(env={}, flags=beyond | {"security.mode": Given("open", "--set")}).security_mode == "open"
    internal = {"cluster.store": Given("etcds://a:1", "x"), "listeners.internal": Given("10.0.0.1:1", "x")}
    member = load(env={}, flags=internal)
    assert (member.security_mode, member.has_guard, member.exposed) == ("closed", True, ())
    assert load(env={}, flags={"listeners.internal": Given("10.0.0.1:1", "x")}).security_mode == "open"


@pytest.mark.parametrize("parts", [{}, {"tls": TLS}, {"auth": ["scram"]}, {"tls": TLS, "auth": ["scram"]}])
def test_a_listener_that_lacks_tls_or_logins_is_exposed(parts: dict[str, Any]) -> None:
    config = load(env={}, flags=listed(BEYOND | parts) | {"insecure": Given(True, "--insecure")})
    exposed = [each.name for each in config.exposed]
    assert exposed == ([] if len(parts) == 2 else [BEYOND["name"]])
    assert config.security_mode == ("closed" if "auth" in parts else "open")
    assert load(env={}, flags={"insecure": Given(True, "--insecure")}).exposed == ()


@pytest.mark.parametrize("given", ["9090", " 9090 ", 9090, "127.0.0.1:9090"])
def test_a_metrics_listener_may_be_a_port_alone(given: object) -> None:
    assert "metrics" not in [each.name for each in load(env={}).listeners.listed(in_cluster=True)]
    listeners = load(env={}, flags={"listeners.metrics": Given(given, "--metrics")}).listeners
    (found,) = [each for each in listeners.listed(in_cluster=False) if each.protocol == "metrics"]
    assert found == Listener("metrics", "metrics", Address("127.0.0.1", 9090))
    assert listeners.short_form("metrics") == found.address


@pytest.mark.parametrize("given", ["65536", -1, True, 1.5, "localhost", ":9090", ""])
def test_what_is_no_place_for_metrics_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match=r"expected \[host:\]port, such as 9090"):
        load(env={}, flags={"listeners.metrics": Given(given, "--metrics")})


def test_passwords_are_not_said_in_the_open() -> None:
    exposed = listed(BEYOND | {"auth": ["scram", "plain"]}) | {"insecure": Given(True, "--insecure")}
    with pytest.raises(ConfigError, match="has auth plain, by which passwords could be read on the way"):
        load(env={}, flags=exposed)
