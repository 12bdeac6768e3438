"""`penstock user`, `penstock acl`, and all other commands as somebody, against a real broker that asks who they are."""

import io
import json
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from confluent_kafka import KafkaError
from tests.unit.cli.guarded_broker import ADMIN_PASSWORD, Guarded, guarded_broker
from tests.unit.cli.scripted_broker import Script, scripted_broker

from penstock.cli.connection import Server
from penstock.cli.consume import _Reading
from penstock.cli.failure import CommandError
from penstock.cli.main import main
from penstock.cli.security import _check_ready, permit

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

    def call(*words: str, user: str = "admin", password: str | None = None, said: str = "", **other: Any) -> Any:
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
        code = main([*words, *([] if other.get("bare") else ["--server", other.get("server", guarded.scram), *login])])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert ADMIN_PASSWORD not in out + err
        return code, out, err

    return call


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_broker(tmp_path_factory.mktemp("watched"), mode="watch") as running:
        yield running


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
        more = {"certificate": False, "api_keys": 0, "enabled": True}
        assert code == 0
        assert [row for row in json.loads(out) if row["user"] in ("admin", made)] == [
            {"user": "admin", **both, **more, "roles": ["admin"]},
            {"user": made, **both, **more, "roles": []},
        ]
        shown = [line.split() for line in run("user", "list")[1].splitlines()]
        assert [made, "SCRAM-SHA-256,", "SCRAM-SHA-512", "10000", "-", "0", "-"] in shown

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
        assert (code, f"no user '{made}x', did you mean {made}?" in err) == (1, True)

    def test_who_is_deleted_stays_out(self, run: As, made: str) -> None:
        code, _, err = run("user", "delete", made)
        assert (code, "say --yes" in err) == (2, True)
        assert run("user", "delete", made, "--yes")[:2] == (0, f"deleted user {made}\n")
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
        assert (code, "user ' x' cannot be created" in err) == (1, True)

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
            assert code == 0
            row = json.loads(out)
            return row["allowed"], row["rule"] and row["rule"]["effect"], "for single hosts" in err

        assert told("describe", "a") == (True, "allow", False)
        assert told("read", "a") == (False, None, False)
        assert told("write", "secret") == (True, "allow", True)
        assert told("write", "secret", "--host", "10.0.0.1") == (False, "deny", False)
        _, out, _ = run("acl", "explain", "--user", made, "--operation", "describe", "--topic", f"{made}-a")
        assert f"User:{made} may describe topic '{made}-a': allowed by a rule\n" in out
        assert "(which includes describe)" in out
        assert "there is no user" not in run("acl", "explain", "--user", made, "--operation", "read", "--topic", "a")[2]
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


class TestUsersWithoutPasswords:
    def test_who_comes_by_a_certificate_or_a_key_is_listed(self, run: As, name: str) -> None:
        assert run("user", "create", f"CN={name}", "--certificate", "--role", "producer:a-")[0] == 0
        assert run("user", "create", name, "--no-password", "--role", "consumer")[0] == 0
        rows = {row["user"]: row for row in json.loads(run("user", "list", "-o", "json")[1])}
        assert rows[f"CN={name}"]["certificate"] and rows[f"CN={name}"]["roles"] == ["producer:a-"]
        assert (rows[name]["certificate"], rows[name]["mechanisms"]) == (False, [])
        code, _, err = run("user", "create", name, "--password-file", "-", said="p\n")
        assert (code, f"'penstock user passwd {name}' sets another" in err) == (1, True)
        assert run("user", "passwd", name, "--password-file", "-", said=f"{name}-secret\n")[0] == 0
        assert run("topic", "list", user=name)[0] == 0

    def test_flags_that_do_not_go_together(self, run: As, name: str) -> None:
        code, _, err = run("user", "create", name, "--no-password", "--password-file", "-", said="p\n")
        assert (code, "no --password-file" in err) == (2, True)

    def test_a_role_that_is_not_there_makes_no_user(self, run: As, name: str) -> None:
        code, _, err = run("user", "create", name, "--password-file", "-", "--role", "nothing", said="p\n")
        assert (code, "no role 'nothing'; there are: admin, producer," in err) == (1, True)
        assert name not in run("user", "list")[1]

    def test_nothing_of_who_is_deleted_is_left_but_rules_which_are_told(self, run: As, made: str) -> None:
        assert run("role", "grant", "admin", "--user", made)[0] == 0
        assert run("apikey", "create", "--for", made, "--expires", "1h")[0] == 0
        run("acl", "add", "--user", made, "--allow", "read", "--topic", "a")
        code, out, _ = run("user", "delete", made, "--yes")
        rules = f"1 rule about it stay: 'penstock acl remove --user {made}' removes them"
        assert (code, out) == (0, f"deleted user {made} with 1 API key; {rules}\n")
        assert run("apikey", "list", "--for", made) == (0, "", "no API keys like that\n")
        assert run("user", "create", made, "--password-file", "-", said=f"{made}-secret\n")[0] == 0
        assert run("user", "list", user=made)[0] == 1, "the new one has the old one's role"


class TestRoles:
    def test_a_role_of_ones_own_is_in_force(self, run: As, made: str) -> None:
        role, topic = f"role-{made}", f"{made}-t"
        run("topic", "create", topic)
        assert run("role", "create", role, "--allow", "write", "--topic", f"{made}-", "--prefix")[:2] == (
            0,
            f"role {role} has 1 rule\n",
        )
        assert run("role", "grant", role, "--user", made)[:2] == (0, f"user {made} has {role}\n")
        assert run("produce", topic, user=made, said="one\n")[0] == 0
        assert run("role", "create", role, "--add", "--allow", "read", "--topic", topic)[:2] == (
            0,
            f"role {role} has 2 rules\n",
        )
        assert run("consume", topic, user=made)[:2] == (0, "one\n")
        code, out, _ = run("role", "show", role)
        assert (code, f"allow Role:{role} from * to read topic literal {topic}\n  user {made}\n" in out) == (0, True)
        code, _, err = run("role", "delete", role, "--yes")
        assert (code, "take it from its users first" in err) == (1, True)
        assert run("role", "revoke", role, "--user", made)[:2] == (0, f"user {made} has no roles\n")
        assert run("consume", topic, user=made)[0] == 1
        assert run("role", "delete", role)[0] == 2
        assert run("role", "delete", role, "--yes")[0] == 0
        assert role not in run("role", "list")[1]

    def test_the_list(self, run: As) -> None:
        shown = {line.split()[0]: line.split()[1:] for line in run("role", "list")[1].splitlines()}
        assert {"admin", "producer", "consumer", "read-only", "auditor"} <= set(shown)
        assert shown["admin"][:2] == ["built-in", "6"]

    @pytest.mark.parametrize(
        ("words", "code", "told"),
        [
            (["create", "admin", "--allow", "read", "--topic", "t"], 1, "role 'admin' is always there"),
            (["create", "x"], 2, "say what: --allow"),
            (["create", "x", "--allow", "read"], 2, "say on what"),
            (["create", "x", "--add", "--replace", "--allow", "read", "--topic", "t"], 2, "not both"),
            (["create", "x", "--add", "--allow", "read", "--topic", "t"], 1, "there is no role 'x'"),
            (["delete", "admin", "--yes"], 1, "role 'admin' is always there"),
            (["show", "x"], 1, "there is no role 'x'; there are: admin"),
            (["grant", "x", "--user", "admin"], 1, "there is no role 'x'"),
            (["grant", "admin", "--user", "nobody"], 1, "there is no user 'nobody'"),
            (["revoke", "auditor", "--user", "admin"], 1, "does not have the role 'auditor'; it has admin"),
            (["grant", "admin"], 2, "--user"),
        ],
    )
    def test_what_cannot_be(self, run: As, words: list[str], code: int, told: str) -> None:
        ended, out, err = run("role", *words)
        assert (ended, out, told in err, err.count("\n")) == (code, "", True, 1), err

    def test_who_may_not(self, run: As, made: str) -> None:
        code, _, err = run("role", "grant", "admin", "--user", made, user=made)
        assert (code, f"User:{made} may not alter cluster" in err, "acl explain" in err) == (1, True, True)


class TestKeys:
    def test_the_key_is_shown_once(self, run: As, made: str, tmp_path: Path) -> None:
        code, out, err = run("apikey", "create", "--for", made, "--expires", "90d", "--note", "nightly")
        assert (code, out.startswith("pk_"), out.count("\n")) == (0, True, 1)
        assert "is shown this once; it ends 2" in err and out.strip() not in err
        prefix = f"{out[:19]}_..."
        listed = run("apikey", "list", "--for", made)[1]
        assert prefix in listed and "nightly" in listed and out.strip() not in listed
        (row,) = json.loads(run("apikey", "list", "--for", made, "-o", "json")[1])
        assert abs(row["until_ms"] - row["made_ms"] - 90 * 86_400_000) < 1000 and row["last_used_ms"] is None
        assert run("apikey", "delete", prefix)[0] == 2
        assert run("apikey", "delete", prefix, "--yes")[:2] == (0, f"deleted API key {prefix} of user {made}\n")
        assert run("apikey", "delete", prefix, "--yes")[0] == 1

    def test_the_key_in_a_file_is_its_owners(self, run: As, made: str, tmp_path: Path) -> None:
        words = ["apikey", "create", "--for", made, "--expires", "never", "--key-file", str(tmp_path / "made.key")]
        code, out, err = run(*words, "--allow", "read", "--topic", "a", "--signing", "-o", "json")
        assert (code, err.count("pk_")) == (0, 0)
        said = (tmp_path / "made.key").read_text()
        assert said.startswith("pk_") and said.strip() not in out
        assert (tmp_path / "made.key").stat().st_mode & 0o77 == 0
        (row,) = json.loads(run("apikey", "list", "--for", made, "-o", "json")[1])
        assert (row["until_ms"], row["rules"], row["signing"]) == (None, 1, True)
        code, _, err = run(*words)
        assert (code, "is there already" in err) == (2, True)
        assert len(json.loads(run("apikey", "list", "--for", made, "-o", "json")[1])) == 1

    @pytest.mark.parametrize(
        ("words", "code", "told"),
        [
            (["create", "--for", "admin"], 2, "--expires"),
            (["create", "--expires", "1d"], 2, "--for"),
            (["create", "--for", "admin", "--expires", "soon"], 2, "write 90d, 12h, 4w or 1y"),
            (["create", "--for", "admin", "--expires", "0d"], 2, "no lifetime"),
            (["create", "--for", "nobody", "--expires", "1d"], 1, "there is no user 'nobody'"),
            (["create", "--for", "admin", "--expires", "1d", "--allow", "read"], 2, "say on what"),
            (["delete", "secret-thing", "--yes"], 2, "that is no key"),
            (["delete", "pk_0123456789abcdef", "--yes"], 1, "there is no API key"),
        ],
    )
    def test_what_cannot_be(self, run: As, words: list[str], code: int, told: str) -> None:
        ended, out, err = run("apikey", *words)
        assert (ended, out, told in err, err.count("\n")) == (code, "", True, 1), err
        assert "secret-thing" not in err


class TestExplain:
    def told(self, run: As, *words: str) -> tuple[str, str]:
        code, out, err = run("acl", "explain", *words)
        assert code == 0
        return out, err

    def test_a_role_decides(self, run: As, made: str) -> None:
        run("role", "grant", "producer:a-", "--user", made)
        words = ["--user", made, "--operation", "write", "--topic"]
        assert self.told(run, *words, "a-b") == (
            f"User:{made} may write topic 'a-b': allowed by a rule of role producer:a-\n"
            "  allow Role:producer:a- from * to write topic prefixed a-\n",
            "",
        )
        out, _ = self.told(run, *words, "b")
        assert out == (f"User:{made} may not write topic 'b': no rule allows it, and what no rule allows is refused\n")

    def test_names_that_are_no_users(self, run: As, name: str) -> None:
        words = ["--user", name, "--operation", "write", "--topic", "a"]
        assert f"there is no user '{name}'" in self.told(run, *words)[1]
        assert self.told(run, *words, "--by-certificate")[1] == ""

    def test_a_key_that_narrows(self, run: As, made: str) -> None:
        run("role", "grant", "consumer", "--user", made)
        asked = ["--for", made, "--expires", "1h", "--allow", "read", "--topic", "a"]
        key = json.loads(run("apikey", "create", *asked, "-o", "json")[1])["id"]
        words = ["--user", made, "--operation", "read", "--key", key, "--topic"]
        assert "may read topic 'a': allowed by a rule of role consumer" in self.told(run, *words, "a")[0]
        assert "may not read topic 'b': allowed by no rule, of those of the API key" in self.told(run, *words, "b")[0]
        code, _, err = run("acl", "explain", *words, "a", "--by-certificate")
        assert (code, "not both" in err) == (2, True)


class TestSecurity:
    def test_what_closed_would_refuse_until_it_is_permitted(self, run: As, watched: Guarded) -> None:
        def asked(*words: str, **more: str) -> Any:
            return run(*words, server=watched.scram, **more)

        code, out, err = asked("security", "check")
        assert (code, out, "nothing was counted" in err) == (0, "", True)
        user = "billing"
        asked("user", "create", user, "--password-file", "-", said=f"{user}-secret\n")
        asked("topic", "create", "orders")
        assert asked("produce", "orders", user=user, said="one\n")[0] == 0
        assert asked("consume", "orders", user=user)[0] == 0
        code, out, err = asked("security", "check")
        permits = [line for line in out.splitlines() if line.startswith("penstock acl add")]
        assert code == 1
        assert sorted(line for line in permits if "--topic" in line or "--cluster" in line) == [
            f"penstock acl add --user {user} --allow read --topic orders",
            f"penstock acl add --user {user} --allow write --topic orders",
        ]
        assert "closed would refuse" in err.splitlines()[-1]
        assert f"User:{user}" in out and "describe" in out
        for line in permits:
            assert asked(*line.split()[1:])[0] == 0
        code, out, err = asked("security", "check")
        assert (code, out, "--all shows them" in err) == (0, "", True)
        rows = json.loads(asked("security", "check", "--all", "--clear", "-o", "json")[1])
        assert json.loads(asked("security", "check", "--all", "-o", "json")[1])["would_be_refused"] == []
        assert asked("security", "check", "--clear", user=user)[0] == 1
        assert rows["mode"] == ["watch"] and all(row["allowed_now"] for row in rows["would_be_refused"])
        code, _, err = asked("role", "grant", "admin", "--user", user, user=user)
        assert (code, "may not alter cluster" in err) == (1, True)

    def test_rules_for_everybody_are_named(self, run: As, watched: Guarded) -> None:
        run("acl", "add", "--user", "*", "--allow", "all", "--topic", "*", server=watched.scram)
        _, _, err = run("security", "check", server=watched.scram)
        assert "everybody has a right that is as wide as can be: allow User:* from * to all topic literal *" in err
        run("acl", "remove", "--user", "*", "--yes", server=watched.scram)

    def test_a_mode_that_counts_nothing(self, run: As) -> None:
        code, out, err = run("security", "check")
        assert (code, out) == (0, "")
        assert "security.mode is closed: only 'watch' counts" in err

    def test_who_may_not(self, run: As, made: str) -> None:
        for words in (["check"], ["rotate-key", "--yes"]):
            code, _, err = run("security", *words, user=made)
            assert (code, f"User:{made} may not describe cluster" in err) == (1, True)

    def test_keys_are_told_and_nothing_is_done_where_nothing_is_old(self, run: As) -> None:
        told = json.loads(run("security", "rotate-key", "--dry-run", "-o", "json")[1])
        (broker,) = told["brokers"]
        assert broker["opens"] == [broker["seals"]]
        code, out, _ = run("security", "rotate-key", "--yes")
        assert (code, out) == (0, f"sealed 0 secrets anew by key {broker['seals']}\n")

    def test_a_key_is_replaced(self, run: As, tmp_path: Path) -> None:
        new = tmp_path / "new.key"
        with guarded_broker(tmp_path) as before:
            words = ["apikey", "create", "--for", "admin", "--expires", "1d"]
            assert run(*words, "--signing", server=before.scram)[0] == run(*words, server=before.scram)[0] == 0
        assert run("security", "new-key", str(new), bare=True)[:2] == (0, f"made {new}\n")
        code, _, err = run("security", "new-key", str(new), bare=True)
        assert (code, "is there already" in err, new.stat().st_mode & 0o77) == (2, True, 0)
        with guarded_broker(tmp_path, seal_key_file=new) as after:
            told = json.loads(run("security", "rotate-key", "--dry-run", "-o", "json", server=after.scram)[1])
            seals = told["brokers"][0]["seals"]
            ((old, count),) = [each for each in told["secrets"].items() if each[0] != seals]
            assert (count, told["secrets"][seals]) == (1, 0)
            code, _, err = run("security", "rotate-key", server=after.scram)
            assert (code, f"Seal 1 secret anew by key {seals}?" in err) == (2, True)
            assert run("security", "rotate-key", "--yes", server=after.scram)[:2] == (
                0,
                f"sealed 1 secret anew by key {seals}\n"
                f"nothing is sealed by {old} any more; take it out of security.other_seal_key_files\n",
            )

    @pytest.mark.parametrize(
        ("told", "silent", "why"),
        [
            ([("a", "a"), ("a", "a")], [3], "broker 3 does not answer"),
            ([("b", "ab"), ("a", "a")], [], "broker 2 does not have key b, by which others seal"),
            ([("b", "ab"), ("a", "ab")], [], "different keys (broker 1 by b; broker 2 by a)"),
        ],
    )
    def test_no_secret_is_sealed_by_a_key_that_a_broker_may_not_have(
        self, told: list[tuple[str, str]], silent: list[int], why: str
    ) -> None:
        rows = [{"broker": at, "seals": seals, "opens": list(opens)} for at, (seals, opens) in enumerate(told, 1)]
        with pytest.raises(CommandError) as refused:
            _check_ready(rows, silent)
        assert why in str(refused.value)

    @pytest.mark.parametrize(
        ("row", "line"),
        [
            ({"name": "a b"}, "penstock acl add --user eve --allow read --topic 'a b'"),
            ({"name": "-x"}, "penstock acl add --user eve --allow read --topic=-x"),
            ({"name": "a\nb"}, None),
            ({"name": "a" * 9, "is_whole": False}, None),
            ({"name": None, "operation": "write"}, "penstock acl add --user eve --allow idempotent-write --cluster"),
            ({"kind": "cluster", "operation": "alter"}, "penstock acl add --user eve --allow alter --cluster"),
            ({"kind": "token"}, None),
            ({"principal": "User:$(rm x)"}, "penstock acl add --user '$(rm x)' --allow read --topic t"),
        ],
    )  # fmt: skip
    def test_the_line_that_permits_is_safe_to_type(self, row: dict[str, Any], line: str | None) -> None:
        plain = {"principal": "User:eve", "operation": "read", "kind": "topic", "name": "t", "is_whole": True}
        assert permit({**plain, **row}) == line


class TestOtherServers:
    """Of a server that is no Penstock Kafka's API tells what it can."""

    def test_users_are_those_with_a_password(self, capsys: pytest.CaptureFixture[str]) -> None:
        infos = [{"mechanism": 1, "iterations": 4096}]
        answer = {
            "throttle_time": 0,
            "error_code": 0,
            "error_message": None,
            "results": [{"user": "a", "error_code": 0, "error_message": None, "credential_infos": infos}],
        }
        nobody = {"throttle_time": 0, "brokers": [], "cluster_id": None, "controller_id": -1, "topics": []}
        scripts = {
            "describe_user_scram_credentials": Script(50, 0, 0, lambda _: answer),
            "metadata": Script(3, 4, 4, lambda _: nobody),
            "penstock_verb": Script(32_000, 0, 0, lambda _: None),
        }
        with scripted_broker(**scripts) as broker:
            assert main(["user", "list", "-o", "json", "--server", broker.address]) == 0
            rows = json.loads(capsys.readouterr().out)
            assert rows == [{"user": "a", "mechanisms": ["SCRAM-SHA-256"], "iterations": 4096}]
            assert main(["role", "list", "--server", broker.address]) == 1
            assert "it is not a Penstock, or an older release" in capsys.readouterr().err

    def test_rules_alone_explain(self, capsys: pytest.CaptureFixture[str]) -> None:
        rule = {"principal": "User:a", "host": "*", "operation": 4, "permission_type": 3}
        resources = [{"resource_type": 2, "resource_name": "n", "pattern_type": 3, "acls": [rule]}]
        answer = {"throttle_time": 0, "error_code": 0, "error_message": None, "resources": resources}
        nobody = {"throttle_time": 0, "brokers": [], "cluster_id": None, "controller_id": -1, "topics": []}
        scripts = {
            "describe_acls": Script(29, 1, 3, lambda _: answer),
            "metadata": Script(3, 4, 4, lambda _: nobody),
            "penstock_verb": Script(32_000, 0, 0, lambda _: None),
        }
        words = ["acl", "explain", "--user", "a", "--operation", "describe", "--topic", "n"]
        with scripted_broker(**scripts) as broker:
            assert main([*words, "--server", broker.address]) == 0
            out, err = capsys.readouterr()
            assert "User:a may describe topic 'n': allowed by a rule\n" in out and "(which includes describe)" in out
            assert "this server tells nothing of super users, roles" in err
            assert main([*words, "--by-certificate", "--server", broker.address]) == 1


class TestManyBrokers:
    """Each broker is asked for what it alone knows."""

    ROW: ClassVar[dict[str, Any]] = {
        "principal": "User:a",
        "operation": "read",
        "kind": "topic",
        "name": "t",
        "is_whole": True,
        "allowed_now": False,
    }

    def answer(self, broker: int, count: int) -> bytes:
        told = {
            "broker": broker,
            "mode": "watch",
            "total": count,
            "unlisted": 0,
            "rows": [{**self.ROW, "count": count}],
            "open_rules": [],
            "open_rule_count": 0,
        }
        return json.dumps(told).encode()

    @pytest.mark.parametrize("third", ["none", "dead", "fenced"])
    def test_what_they_have_counted_is_one_list(
        self, third: str, closed_port: int, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def verb(broker: int) -> Script:
            answer = {"error_code": 0, "error_message": None, "help": None, "document": self.answer(broker, broker)}
            return Script(32_000, 0, 0, lambda _: answer)

        def cluster(_: Any) -> dict[str, Any]:
            ports = [first.port, second.port, *([] if third == "none" else [closed_port])]
            brokers = [
                {"broker_id": at, "host": "127.0.0.1", "port": port, "is_fenced": at == 3 and third == "fenced"}
                for at, port in enumerate(ports, 1)
            ]
            return {"endpoint_type": 1, "cluster_id": "c", "controller_id": 1, "brokers": brokers}

        scripts = {"describe_cluster": Script(60, 0, 2, cluster)}
        with (
            scripted_broker(**scripts, penstock_verb=verb(1)) as first,
            scripted_broker(**scripts, penstock_verb=verb(2)) as second,
        ):
            assert main(["security", "check", "-o", "json", "--server", first.address]) == 1
            out, err = capsys.readouterr()
            told = json.loads(out)
            assert [row["count"] for row in told["would_be_refused"]] == [3]
            assert told["brokers_not_asked"] == ([] if third == "none" else [3])
            assert ("broker 3 does not answer" in err) is (third != "none")
