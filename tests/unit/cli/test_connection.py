"""Which server is meant, and what is said when it cannot be reached."""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from tests.unit.cli.scripted_broker import Script, scripted_broker

from penstock.cli.connection import Refused, Server, find_server, read_properties
from penstock.cli.contexts import Contexts
from penstock.cli.failure import CommandError
from penstock.client.contexts import Context
from penstock.testing import EmbeddedBroker

Run = Callable[..., Any]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A home with two contexts, one of them current."""
    contexts = Contexts.load({"HOME": str(tmp_path)})
    contexts.by_name["near"] = Context("near:1", {"sasl.password.file": "near"})
    contexts.by_name["far"] = Context("far:1", {"sasl.password.file": "far"})
    contexts.current = "near"
    contexts.save()
    return {"HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("address", "context", "variables", "found"),
    [
        (None, None, {}, ("near:1", "context near", "near")),
        (None, None, {"PENSTOCK_CONTEXT": "far"}, ("far:1", "context far", "far")),
        (None, "near", {"PENSTOCK_CONTEXT": "far"}, ("near:1", "context near", "near")),
        (None, None, {"PENSTOCK_SERVER": "env:1"}, ("env:1", "$PENSTOCK_SERVER", None)),
        (
            None,
            None,
            {"PENSTOCK_SERVER": "env:1", "PENSTOCK_CONTEXT": "far"},
            ("env:1", "$PENSTOCK_SERVER", None),
        ),
        (None, "far", {"PENSTOCK_SERVER": "env:1"}, ("far:1", "context far", "far")),
        ("flag:1", None, {"PENSTOCK_SERVER": "env:1"}, ("flag:1", "--server", None)),
        ("flag:1", None, {"PENSTOCK_CONTEXT": "far"}, ("flag:1", "--server", None)),
        ("flag:1", "far", {"PENSTOCK_SERVER": "env:1"}, ("flag:1", "--server", "far")),
    ],
)
def test_flag_before_environment_before_context(
    env: dict[str, str],
    address: str | None,
    context: str | None,
    variables: dict[str, str],
    found: tuple[str, str, str | None],
) -> None:
    server = find_server(address, context, env=env | variables)
    assert (server.address, server.origin, server.properties.get("sasl.password.file")) == found


def test_the_default_without_any_of_them(tmp_path: Path) -> None:
    server = find_server(env={"HOME": str(tmp_path)})
    assert (server.address, server.origin, server.properties) == ("127.0.0.1:9092", "the default", {})


def test_a_property_on_the_line_wins_over_the_context_s(env: dict[str, str]) -> None:
    server = find_server(properties={"sasl.password.file": "mine", "client.id": "me"}, env=env)
    assert server.properties == {"sasl.password.file": "mine", "client.id": "me"}
    assert server.client_properties({"client.id": "x", "linger.ms": 5})["client.id"] == "me"
    assert server.client_properties()["bootstrap.servers"] == "near:1"


def test_an_empty_server_is_not_the_default(env: dict[str, str]) -> None:
    with pytest.raises(CommandError, match="--server is empty"):
        find_server("", env=env)


def test_an_unknown_context_is_wrong_usage(env: dict[str, str]) -> None:
    for words in ({"context_name": "nowhere"}, {"env": env | {"PENSTOCK_CONTEXT": "nowhere"}}):
        with pytest.raises(CommandError, match=r"context 'nowhere' is unknown; known: far, near\.") as raised:
            find_server(**{"env": env, **words})  # type: ignore[arg-type]
        assert raised.value.code == 2


def test_a_broken_file_does_not_matter_to_who_names_the_server(tmp_path: Path) -> None:
    (tmp_path / ".penstock").mkdir()
    (tmp_path / ".penstock" / "config.yaml").write_text("{")
    home = {"HOME": str(tmp_path)}
    assert find_server("a:1", env=home).address == "a:1"
    with pytest.raises(CommandError, match="is no YAML"):
        find_server(env=home)


def test_properties() -> None:
    assert read_properties(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for word in ("a", "=1", ""):
        with pytest.raises(CommandError, match="is no KEY=VALUE"):
            read_properties([word])


def test_no_server_is_told_at_once(closed_port: int) -> None:
    began = time.monotonic()
    with pytest.raises(CommandError) as raised:
        Server(f"127.0.0.1:{closed_port},localhost:{closed_port}", "context far", timeout_s=60).admin()
    assert time.monotonic() - began < 30
    assert raised.value.code == 3
    told = f"no server at 127.0.0.1:{closed_port},localhost:{closed_port} (from context far): Connection refused; "
    assert str(raised.value).startswith(told)
    assert "--server HOST:PORT" in str(raised.value)


@pytest.mark.parametrize("kind", ["admin", "producer", "consumer"])
def test_every_client_looks_first(kind: str, closed_port: int) -> None:
    with pytest.raises(CommandError, match="Connection refused"):
        getattr(Server(f"127.0.0.1:{closed_port}", "--server"), kind)()


def test_a_host_that_is_none() -> None:
    for host in ("no-such-host.invalid", "a..b"):
        with pytest.raises(CommandError) as raised:
            Server(f"{host}:9092", "--server").admin()
        assert raised.value.code == 3
        assert f"no server at {host}:9092 (from --server): " in str(raised.value)


@pytest.mark.parametrize("address", ["host:port", ":9092", "host:", "host:99999", "host:-1"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(CommandError, match=f"'{address}' is no HOST:PORT") as raised:
        Server(address, "--server").admin()
    assert raised.value.code == 2


def test_one_of_several_servers_is_enough(run: Run, broker: EmbeddedBroker, closed_port: int) -> None:
    for address in (f"127.0.0.1:{closed_port},{broker.bootstrap}", f"PLAINTEXT://{broker.bootstrap}"):
        assert run("topic", "list", "--server", address).code == 0


def test_ipv6() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listening:
        Server(f"[::1]:{listening.getsockname()[1]}", "--server").admin()


@pytest.mark.parametrize("words", [["list"], ["describe", "t"], ["create", "t"]])
def test_a_server_that_says_nothing(run: Run, words: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = run("topic", *words, "--server", address, "--timeout", "0.5")
    assert (done.code, done.out) == (3, "")
    assert f"no server at {address} (from --server): no answer within 0.5 s" in done.err


def test_a_property_that_is_none(run: Run) -> None:
    done = run("topic", "list", "-X", "no.such.property=1")
    assert done.code == 2
    assert "no.such.property" in done.err and "-X" in done.err


def test_a_refusal_keeps_kafka_s_name(broker: EmbeddedBroker, topic: str) -> None:
    from confluent_kafka import TopicCollection

    server = Server(broker.bootstrap, "--server")
    admin = server.admin()
    (future,) = admin.describe_topics(TopicCollection([topic])).values()
    with pytest.raises(Refused) as raised:
        server.wait(future)
    assert (raised.value.name, raised.value.code) == ("UNKNOWN_TOPIC_OR_PART", 1)


def test_what_a_blocking_call_raises_is_raised_here() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Server("a:1", "--server").run(fail)


def _store_says(code: int) -> Script:
    answer = {"error_code": code, "error_message": "", "resource_type": 4, "resource_name": ""}
    return Script(44, 0, 1, lambda _: {"throttle_time": 0, "responses": [answer]})


def test_no_answer_for_want_of_the_metadata_store_is_said_to_be_that() -> None:
    late, bare = KafkaError(KafkaError._TIMED_OUT), KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
    with scripted_broker(incremental_alter_configs=_store_says(5)) as broker:
        server = Server(broker.address, "--server", timeout_s=5.0)
        told = server.explain(late)
        assert (told.code, "metadata store (etcd) does not answer it" in str(told)) == (1, True)
        assert "is it running" not in str(told)
        refused = server.explain(bare)
        assert isinstance(refused, Refused)
        assert (refused.name, "metadata store" in str(refused)) == ("LEADER_NOT_AVAILABLE", True)
        assert str(server.explain(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "why it is"))) == "why it is"
    with scripted_broker(incremental_alter_configs=_store_says(0)) as broker:
        server = Server(broker.address, "--server", timeout_s=5.0)
        assert "is it running?" in str(server.explain(late))
        assert str(server.explain(bare)) == "Broker: Leader not available"


def test_no_answer_from_nobody_is_that(closed_port: int) -> None:
    told = Server(f"127.0.0.1:{closed_port}", "--server", timeout_s=5.0).explain(KafkaError(KafkaError._TIMED_OUT))
    assert (told.code, "is it running?" in str(told)) == (3, True)
