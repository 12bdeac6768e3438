"""Who a command says it is: layers of properties, files of them, and what is said when a server lets nobody in."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.cli.guarded_broker import ADMIN_PASSWORD, Guarded, guarded_broker

from penstock.cli import login
from penstock.cli.connection import Server
from penstock.cli.contexts import Contexts
from penstock.cli.failure import CommandError
from penstock.cli.main import main
from penstock.client.contexts import Context
from penstock.client.credentials import API_KEY, overlay

SCRAM = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="{}" password="{}";'


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_broker(tmp_path_factory.mktemp("guarded")) as running:
        yield running


@pytest.fixture
def hush(tmp_path: Path) -> str:
    file = tmp_path / "hush.password"
    file.touch(0o600)
    file.write_text("hush\n")
    return str(file)


@pytest.mark.parametrize(
    ("lower", "upper", "both"),
    [
        ({"sasl.username": "a", "sasl.password": "p"}, {}, {"sasl.username": "a", "sasl.password": "p"}),
        ({"sasl.username": "a", "sasl.password": "p"}, {"sasl.username": "b"}, {"sasl.username": "b"}),
        (
            {"sasl.username": "a", "sasl.password": "p"},
            {"sasl.password.file": "f"},
            {"sasl.username": "a", "sasl.password.file": "f"},
        ),
        ({"sasl.username": "a", "sasl.password": "p"}, {"sasl.jaas.config": "j"}, {"sasl.jaas.config": "j"}),
        ({"sasl.jaas.config": "j"}, {"sasl.username": "b"}, {"sasl.username": "b"}),
        ({"a": "1", "b": "2"}, {"b": "3"}, {"a": "1", "b": "3"}),
    ],
)
def test_no_password_of_another_user(lower: dict[str, str], upper: dict[str, str], both: dict[str, str]) -> None:
    assert overlay(lower, upper) == both


def test_where_the_password_is(hush: str) -> None:
    known = SCRAM | {"sasl.username": "a"}
    done = known | {"sasl.password": "hush"}
    assert login.complete(known | {"sasl.password.file": hush}, {"PENSTOCK_PASSWORD": "other"}) == done
    assert login.complete(known, {"PENSTOCK_PASSWORD": "hush"}) == done
    assert login.complete(done, {"PENSTOCK_PASSWORD": "other"}) == done
    assert login.complete(SCRAM | {"sasl.jaas.config": JAAS.format("a", "hush")}, {}) == done
    assert login.complete({"client.id": "x"}, {"PENSTOCK_PASSWORD": "hush"}) == {"client.id": "x"}


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        (SCRAM | {"sasl.username": "a"}, r"user 'a' has no password here: it comes by -X sasl\.password\.file"),
        (SCRAM | {"sasl.password": "hush"}, r"needs to know who you are: -X sasl\.username"),
        ({"sasl.username": "a"}, r"sasl\.username is set, and security\.protocol is PLAINTEXT"),
        (SCRAM | {"sasl.jaas.config": "hush"}, r"sasl\.jaas\.config must read"),
        (SCRAM | {"sasl.password.file": "/no/such"}, "/no/such: cannot be read: No such file"),
    ],
)
def test_what_is_missing_is_named(properties: dict[str, str], told: str) -> None:
    with pytest.raises(CommandError, match=told) as raised:
        login.complete(properties, {})
    assert raised.value.code == 2
    assert "hush" not in str(raised.value)


def test_a_file_of_properties(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "# comment=1\n! another\n\n  security.protocol = SASL_SSL\nsasl.mechanism:PLAIN\n"
        'sasl.jaas.config=Module required \\\n    username="a" \\\n\tpassword="b\\u00e9\\=\\\\\\\\";\n'
        "key.deserializer=org.example.X\nssl.truststore.type=PEM\nssl.truststore.location=/ca.pem\n"
        "bootstrap.servers localhost:1\n"
    )
    found = login.read_properties_file(str(file))
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": 'Module required username="a" password="bé=\\\\";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "bootstrap.servers": "localhost:1",
    }
    assert login.complete({"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"}, {}) == {
        "ssl.ca.location": "/ca.pem"
    }
    file.write_text("a=1\nhush\n")
    with pytest.raises(CommandError, match=r"property 2 is no NAME=VALUE") as raised:
        login.read_properties_file(str(file))
    assert "hush" not in str(raised.value)
    with pytest.raises(CommandError, match="cannot be read: Is a directory"):
        login.read_properties_file(str(tmp_path))


@pytest.mark.parametrize("words", [["topic", "list"], ["context", "add", "c", "--server", "a:1"]])
@pytest.mark.parametrize("key", ["sasl.password", "sasl.jaas.config", "ssl.key.password"])
def test_no_secret_is_a_word(words: list[str], key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "-X", f"{key}=hush"]) == 2
    err = capsys.readouterr().err
    assert f"-X {key}=... shows a secret" in err
    assert "hush" not in err
    assert not Contexts.load(os.environ).path.exists()


def test_a_context_keeps_where_the_password_is(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(guarded.admin.parent)
    said = [*(f"{key}={value}" for key, value in SCRAM.items()), "sasl.username=admin"]
    assert main(["context", "add", "tls", "--server", "a:1", "-X", "ssl.ca.location=ca.pem"]) == 0
    assert main(["context", "add", "probe", "--server", "a:1", "-X", "ssl.ca.location=probe"]) == 0
    paths = [Contexts.load(os.environ).get(name).properties["ssl.ca.location"] for name in ("tls", "probe")]
    assert paths == [str(guarded.admin.parent / "ca.pem"), "probe"]
    words = [word for each in [*said, f"sasl.password.file={guarded.admin.name}"] for word in ("-X", each)]
    assert main(["context", "add", "here", "--server", guarded.scram, *words]) == 0
    monkeypatch.chdir("/")
    assert main(["user", "list", "--context", "here"]) == 0
    assert main(["context", "list"]) == 0
    assert ADMIN_PASSWORD not in "".join(capsys.readouterr())


@pytest.mark.parametrize("key", ["sasl.password", "sasl.jaas.config", "ssl.key.password", "ssl.key.pem"])
def test_a_context_is_no_place_for_a_secret(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    contexts = Contexts.load(os.environ)
    contexts.by_name["old"] = Context("127.0.0.1:1", {key: "hush"})
    contexts.current = "old"
    contexts.save()
    way_out = "name a file with sasl.password.file, or set $PENSTOCK_PASSWORD" if "sasl" in key else "--command-config"
    for words in (["topic", "list"], ["user", "list", "--context", "old"]):
        assert main(words) == 2
        err = capsys.readouterr().err
        assert f"{contexts.path}: context 'old' holds a secret, {key}" in err
        assert way_out in err and err.count("\n") == 1
    assert main(["context", "list"]) == 0
    assert main(["context", "remove", "old"]) == 0
    assert "hush" not in "".join(capsys.readouterr())


def test_an_api_key_is_a_login(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = [word for key, value in SCRAM.items() for word in ("-X", f"{key}={value}")]
    admin += ["-X", "sasl.username=admin", "-X", f"sasl.password.file={guarded.admin}"]
    key, plain = tmp_path / "admin.key", ["-X", "security.protocol=SASL_PLAINTEXT"]
    of_admin = ["--for", "admin", "--expires", "1d", "--key-file", str(key)]
    made = main(["apikey", "create", *of_admin, "--server", guarded.scram, *admin])
    assert made == 0, capsys.readouterr().err
    monkeypatch.setenv("PENSTOCK_API_KEY", key.read_text().strip())
    for words in (["topic", "list"], ["user", "list"], ["txn", "list"]):
        assert main([*words, "--server", guarded.plain, *plain]) == 0, capsys.readouterr().err


def test_an_api_key_is_taken_where_nothing_else_is_said() -> None:
    plain, env = {"security.protocol": "SASL_SSL"}, {"PENSTOCK_API_KEY": "pk_0123456789abcdef_hu_sh"}
    done = plain | {"sasl.mechanism": "PLAIN", "sasl.username": "pk_0123456789abcdef", "sasl.password": env[API_KEY]}
    assert login.complete(plain, env) == done
    assert login.complete(plain | {"sasl.mechanism": "plain"}, env) == done
    known = plain | {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "p"}
    assert login.complete(known, env) == known
    assert login.complete({"client.id": "x"}, env) == {"client.id": "x"}


def test_an_api_key_that_is_not_used_is_spoken_of_and_never_told(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_API_KEY", "hush")
    who = [word for key, value in SCRAM.items() for word in ("-X", f"{key}={value}")]
    for words, told in (
        ([], "$PENSTOCK_API_KEY is taken where -X security.protocol=SASL_SSL"),
        ([*who, "-X", "sasl.username=admin"], "an API key in $PENSTOCK_API_KEY is taken where no user is named"),
        (["-X", "security.protocol=SASL_PLAINTEXT"], "$PENSTOCK_API_KEY holds no API key"),
    ):
        assert main(["topic", "list", "--server", guarded.scram, *words]) != 0
        err = capsys.readouterr().err
        assert told in err and "hush" not in err


def test_the_server_of_a_file_of_properties(
    guarded: Guarded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contexts = Contexts.load(os.environ)
    contexts.by_name["elsewhere"] = Context("127.0.0.1:1", {"sasl.username": "nobody", "sasl.password.file": "x"})
    contexts.current = "elsewhere"
    contexts.save()
    file = tmp_path / "client.properties"
    lines = {**SCRAM, "sasl.jaas.config": JAAS.format("admin", ADMIN_PASSWORD), "bootstrap.servers": guarded.scram}
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    assert main(["user", "list", "--command-config", str(file)]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("words", [["topic", "list"], ["produce", "t"], ["user", "list"], ["txn", "list"]])
@pytest.mark.parametrize("listener", ["scram", "plain"])
def test_a_wrong_password_is_told_at_once(
    guarded: Guarded,
    words: list[str],
    listener: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PENSTOCK_PASSWORD", "guessed")
    mechanism = {"scram": "SCRAM-SHA-256", "plain": "PLAIN"}[listener]
    who = ["-X", "security.protocol=SASL_PLAINTEXT", "-X", f"sasl.mechanism={mechanism}", "-X", "sasl.username=mallory"]
    begun = time.monotonic()
    assert main([*words, "--server", getattr(guarded, listener), *who, "--timeout", "60"]) == 1
    assert time.monotonic() - begun < 30
    err = capsys.readouterr().err
    assert f"does not let user 'mallory' in by {mechanism}" in err
    assert "penstock user passwd" in err
    assert ("guessed" in err, err.count("\n")) == (False, 1)


@pytest.mark.parametrize("words", [["topic", "list"], ["user", "list"], ["txn", "list"]])
def test_a_server_that_wants_a_login(guarded: Guarded, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--server", guarded.scram]) == 1
    err = capsys.readouterr().err
    assert "answers nobody who does not log in: -X security.protocol=" in err
    assert err.count("\n") == 1
    assert not Server(guarded.open, "a test").wants_login()


def test_a_login_where_nobody_is_asked(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_PASSWORD", "guessed")
    who = [word for key, value in SCRAM.items() for word in ("-X", f"{key}={value}")]
    assert main(["topic", "list", "--server", guarded.open, *who, "-X", "sasl.username=a"]) == 1
    assert f"the listener at {guarded.open} takes no login" in capsys.readouterr().err


def test_a_server_does_not_show_its_password() -> None:
    assert "hush" not in repr(Server("a:1", "--server", {"sasl.password": "hush"}))
