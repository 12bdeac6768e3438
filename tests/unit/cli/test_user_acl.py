"""`penstock user`, `penstock acl`, and all other commands as somebody, against a real broker that asks who they are."""

import io
import json
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError
from tests.unit.cli.guarded_broker import ADMIN_PASSWORD, Guarded, guarded_broker
from tests.unit.cli.scripted_broker import Script, scripted_broker

from penstock.cli.connection import Server
from penstock.cli.consume import _Reading
from penstock.cli.failure import CommandError
from penstock.cli.main import main

As = Callable[..., Any]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Shared: a test keeps to users and topics of its own."""
    with guarded_broker(tmp_path_factory.mktemp("guarded")) as running:
        yield running


@pytest.fixture
def name() -> str:
    return f"u{uuid.uuid4().hex[:12]}"


@pytest.fixture
def run(guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> As:
    """Calls `penstock WORDS...` as a user, by default admin."""

    def call(*words: str, user: str = "admin", password: str | None = None, said: str = "", **other: str) -> Any:
        file = tmp_path / f"{uuid.uuid4().hex}.password"
        file.touch(0o600)
        file.write_text(password or (ADMIN_PASSWORD if user == "admin" else f"{user}-secret"))
        properties = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": other.get("mechanism", "SCRAM-SHA-256"),
            "sasl.username": user,
            "sasl.password.file": str(file),
        }
        login = [word for key, value in properties.items() for word in ("-X", f"{key}={value}")]
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said.encode())))
        capsys.readouterr()
        code = main([*words, "--server", other.get("server", guarded.scram), *login])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert ADMIN_PASSWORD not in out + err
        return code, out, err

    return call


@pytest.fixture
def made(run: As, name: str) -> str:
    """A user who may do nothing yet."""
    assert run("user", "create", name, "--password-file", "-", said=f"{name}-secret\n")[0] == 0
    return name


class TestUsers:
    @pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
    def test_who_is_made_gets_in(self, run: As, made: str, guarded: Guarded, mechanism: str) -> None:
        done = run("topic", "list", user=made, mechanism=mechanism, server=guarded.plain)
        assert done == (0, "", "no topics; 'penstock topic create NAME' makes one\n")

    def test_the_list(self, run: As, made: str) -> None:
        code, out, _ = run("user", "list", "-o", "json")
        both = {"mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"], "iterations": 10_000}
        assert code == 0
        assert [row for row in json.loads(out) if row["user"] in ("admin", made)] == [
            {"user": "admin", **both},
            {"user": made, **both},
        ]
        assert f"\n{made}  SCRAM-SHA-256, SCRAM-SHA-512       10000\n" in run("user", "list")[1]

    def test_nobody_is_made_twice(self, run: As, made: str) -> None:
        code, _, err = run("user", "create", made, "--password-file", "-", said="another\n")
        assert (code, f"user '{made}' exists already" in err) == (1, True)
        assert run("topic", "list", user=made)[0] == 0

    def test_another_password(self, run: As, made: str) -> None:
        assert run("user", "passwd", made, "--password-file", "-", said="new\n")[:2] == (
            0,
            f"changed the password of user {made}\n",
        )
        assert run("topic", "list", user=made, password="new")[0] == 0  # noqa: S106
        assert run("topic", "list", user=made)[0] == 1

    @pytest.mark.parametrize("command", ["passwd", "delete"])
    def test_users_that_are_not_there(self, run: As, made: str, command: str) -> None:
        more = ["--yes"] if command == "delete" else ["--password-file", "-"]
        code, _, err = run("user", command, f"{made}x", *more, said="p\n")
        assert (code, f"no user '{made}x' with a password, did you mean {made}?" in err) == (1, True)

    def test_who_is_deleted_stays_out(self, run: As, made: str) -> None:
        code, _, err = run("user", "delete", made)
        assert (code, "say --yes" in err) == (2, True)
        code, out, _ = run("user", "delete", made, "--yes")
        assert (code, "its rules stay" in out) == (0, True)
        assert run("topic", "list", user=made)[0] == 1
        assert run("user", "delete", made, "--yes", "--if-exists")[:2] == (0, f"no user {made}\n")

    def test_passwords_that_are_none(self, run: As, name: str, tmp_path: Path) -> None:
        code, _, err = run("user", "create", name, "--password-file", "-", said="\n")
        assert (code, "at least one character" in err) == (2, True)
        code, _, err = run("user", "create", name)
        assert (code, "say --password-file" in err) == (2, True)
        open_file = tmp_path / "open.password"
        open_file.write_text("seen")
        open_file.chmod(0o644)
        code, _, err = run("user", "create", name, "--password-file", str(open_file))
        assert (code, "chmod 600" in err) == (2, True)

    def test_a_name_that_cannot_be(self, run: As) -> None:
        code, _, err = run("user", "create", " x", "--password-file", "-", said="p\n")
        assert (code, "user ' x' cannot be given a password" in err) == (1, True)

    def test_who_may_not(self, run: As, made: str) -> None:
        code, out, err = run("user", "list", user=made)
        assert (code, out) == (1, "")
        assert f"User:{made} may not describe cluster 'kafka-cluster'" in err
        assert "acl explain" in err


class TestRules:
    def test_what_is_added_is_in_force(self, run: As, made: str) -> None:
        topic = f"{made}-orders"
        assert run("topic", "create", topic)[0] == 0
        code, out, _ = run("acl", "add", "--user", made, "--allow", "read,write", "--topic", f"{made}-", "--prefix")
        assert (code, out) == (
            0,
            f"added: allow User:{made} from * to read topic prefixed {made}-\n"
            f"added: allow User:{made} from * to write topic prefixed {made}-\n",
        )
        code, out, err = run("produce", topic, user=made, said="one\n")
        assert (code, "1 record" in out + err) == (0, True), err

    def test_the_list_is_what_flags_say(self, run: As, made: str) -> None:
        run("acl", "add", "--user", made, "--allow", "read", "--topic", "a", "--group", "g")
        run("acl", "add", "--principal", f"User:{made}", "--deny", "write", "--topic", "a", "--prefix", "--host", "::1")

        def found(*words: str) -> list[tuple[str, ...]]:
            rows = json.loads(run("acl", "list", "--user", made, *words, "-o", "json")[1])
            return [(row["effect"], row["operation"], row["kind"], row["pattern"], row["host"]) for row in rows]

        group = ("allow", "read", "group", "literal", "*")
        literal, prefixed = ("allow", "read", "topic", "literal", "*"), ("deny", "write", "topic", "prefixed", "::1")
        assert found() == [group, literal, prefixed]
        assert found("--topic", "a") == [literal, prefixed]
        assert found("--topic", "abc") == []
        assert found("--topic", "abc", "--covering") == [prefixed]
        assert found("--prefix") == [prefixed]
        assert found("--host", "::1") == [prefixed]
        assert found("--deny", "write") == [prefixed]
        assert found("--allow", "write") == []
        _, out, _ = run("acl", "list", "--user", made, "--group", "g")
        assert out.splitlines()[0].split() == ["PRINCIPAL", "EFFECT", "OPERATION", "KIND", "PATTERN", "NAME", "HOST"]

    def test_what_is_removed_is_what_was_shown(self, run: As, made: str) -> None:
        for pattern in ([], ["--prefix"]):
            run("acl", "add", "--user", made, "--allow", "read,delete", "--topic", "a", *pattern)
        code, out, err = run("acl", "remove", "--user", made, "--allow", "read", "--prefix")
        assert (code, "Remove 1 rule?" in err, "prefixed" in out) == (2, True, True)
        code, out, _ = run("acl", "remove", "--user", made, "--allow", "read", "--prefix", "--yes")
        assert (code, out.splitlines()[-1]) == (0, "removed 1 rule")
        left = json.loads(run("acl", "list", "--user", made, "-o", "json")[1])
        assert [(row["operation"], row["pattern"]) for row in left] == [
            ("delete", "literal"),
            ("delete", "prefixed"),
            ("read", "literal"),
        ]
        code, _, err = run("acl", "remove", "--user", made, "--group", "a", "--yes")
        assert (code, "no rules like that" in err) == (1, True)
        assert run("acl", "remove", "--user", made, "--group", "a", "--yes", "--if-exists")[0] == 0

    def test_nothing_said_removes_nothing(self, run: As, made: str) -> None:
        run("acl", "add", "--user", made, "--allow", "read", "--topic", "a")
        for words in (["--yes"], ["--all", "--user", made, "--yes"]):
            code, _, err = run("acl", "remove", *words)
            assert (code, "--all" in err) == (2, True)
        assert run("acl", "list", "--user", made)[1]

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (["--allow", "read", "--topic", "t"], "say whom: --user"),
            (["--user", "u", "--topic", "t"], "say what: --allow"),
            (["--user", "u", "--allow", "read"], "say on what: --topic"),
            (["--user", "u", "--allow", "fly", "--topic", "t"], "'fly' is no operation; there are read,"),
            (["--user", "u", "--allow", "write", "--group", "g"], "write is nothing that can be done to a group"),
            (["--user", "User:u", "--allow", "read", "--topic", "t"], "a user's bare name"),
            (["--principal", "u", "--allow", "read", "--topic", "t"], "not of the form User:NAME"),
            (["--user", "u", "--allow", "read", "--topic", "t", "--host", "10.0.0.0/8"], "networks are not understood"),
        ],
    )
    def test_rules_that_cannot_be(self, run: As, words: list[str], told: str) -> None:
        code, out, err = run("acl", "add", *words)
        assert (code, out, told in err) == (2, "", True), err

    def test_who_may_not(self, run: As, made: str) -> None:
        words = ["--user", made, "--allow", "all", "--topic", "*"]
        code, _, err = run("acl", "add", *words, user=made)
        assert (code, f"User:{made} may not alter cluster" in err) == (1, True)
        assert json.loads(run("acl", "list", "--user", made, "-o", "json")[1]) == []

    def test_explaining(self, run: As, made: str) -> None:
        run("acl", "add", "--user", made, "--allow", "write", "--topic", f"{made}-", "--prefix")
        run("acl", "add", "--user", "*", "--deny", "write", "--topic", f"{made}-secret", "--host", "10.0.0.1")

        def told(operation: str, topic: str, *more: str) -> Any:
            words = ["--user", made, "--operation", operation, "--topic", f"{made}-{topic}", *more]
            code, out, err = run("acl", "explain", *words, "-o", "json")
            assert (code, "super users" in err) == (0, True)
            row = json.loads(out)
            return row["allowed"], row["rule"] and row["rule"]["effect"], "for single hosts" in err

        assert told("describe", "a") == (True, "allow", False)
        assert told("read", "a") == (False, None, False)
        assert told("write", "secret") == (True, "allow", True)
        assert told("write", "secret", "--host", "10.0.0.1") == (False, "deny", False)
        _, out, _ = run("acl", "explain", "--user", made, "--operation", "describe", "--topic", f"{made}-a")
        assert f"User:{made} may describe topic '{made}-a': allowed by a rule\n" in out
        assert "(which includes describe)" in out
        assert run("acl", "explain", "--user", made, "--operation", "read", "--topic", "a", "--cluster")[0] == 2

    def test_rules_with_words_that_are_not_known_here(self, capsys: pytest.CaptureFixture[str]) -> None:
        rule = {"principal": "User:a", "host": "*", "operation": 3, "permission_type": 3}
        resources = [
            {"resource_type": kind, "resource_name": "n", "pattern_type": 3, "acls": [rule]} for kind in (2, 99)
        ]
        answer = {"throttle_time": 0, "error_code": 0, "error_message": None, "resources": resources}
        with scripted_broker(describe_acls=Script(29, 1, 3, lambda _: answer)) as broker:
            assert main(["acl", "list", "--server", broker.address]) == 0
        out, err = capsys.readouterr()
        assert (len(out.splitlines()), err) == (2, "1 rule of kinds that are not known here are left out\n")


class TestOtherCommands:
    """What somebody may not do is one line: what, who, the way out."""

    def test_reading_and_writing(self, run: As, made: str) -> None:
        topic = f"{made}-t"
        run("topic", "create", topic)
        run("acl", "add", "--user", made, "--allow", "describe", "--topic", topic)
        for more in ([], ["--acks", "1"]):
            code, _, err = run("produce", topic, *more, user=made, said="one\n")
            assert (code, "acl add" in err, "uthorization failed" in err) == (1, True, True), err
        assert run("produce", topic, said="one\n")[0] == 0
        code, out, err = run("consume", topic, user=made)
        assert (code, out, f"User:{made} may not" in err, err.count("\n")) == (1, "", True, 1), err
        run("acl", "add", "--user", made, "--allow", "read", "--topic", topic)
        assert run("consume", topic, user=made)[0] == 0

    def test_a_reader_needs_no_group(self) -> None:
        """librdkafka looks for the coordinator of the group it was given; its answer may come before the records do."""
        reading: Any = SimpleNamespace(_absence=SimpleNamespace(server=Server("a:1", "a test")))
        _Reading._hear(reading, ("t", 0), cast(Any, None), KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
        with pytest.raises(CommandError, match="User:ANONYMOUS may not do that"):
            _Reading._hear(reading, ("t", 0), cast(Any, None), KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    def test_all_kinds_of_questions(self, run: As, made: str) -> None:
        for words in (["topic", "list"], ["group", "list"], ["group", "lag"], ["txn", "list"], ["cluster", "status"]):
            code, _, err = run(*words)
            assert code == 0, err
        code, _, err = run("topic", "create", "x", user=made)
        assert (code, f"User:{made} may not create topic 'x'" in err, err.count("\n")) == (1, True, 1)
        code, _, err = run("cluster", "status", user=made)
        assert (code, "'penstock acl explain' tells the rule" in err) == (1, True)
