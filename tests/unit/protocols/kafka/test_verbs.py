"""The request of Penstock's own: who may ask it, what it does, and what it says to what it cannot read."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import orjson
import pytest
from tests.doors.kafka import Client, Door, with_door
from tests.doors.logins import guard_door, somebody, stranger
from tests.doors.verbs import CASES, RULE, ask, frame_of
from tests.unit.protocols.kafka.test_denied import codes_in

from penstock.engine.access import THE_CLUSTER, Kind, Operation
from penstock.protocols.kafka.handlers import penstock_verb
from penstock.protocols.kafka.session import APIS
from penstock.protocols.kafka.verbs.table import VERBS
from penstock.protocols.kafka_wire.penstock_verb import API, MAX_DOCUMENT_BYTES
from penstock.security.authentication import Key, Peer
from penstock.security.guard import Guard
from penstock.security.methods import SuperUsers
from penstock.security.modes import Mode
from penstock.security.rules import Effect, Pattern, Rule
from penstock.security.sealing import SealingKeys
from penstock.security.secret import Secret

C, INVALID, NOT_ALLOWED, NOT_FOUND, EXISTS, NO_GUARD = 31, 42, 44, 91, 92, 54
Body = Callable[[Door, Guard, Client], Awaitable[None]]


def run(body: Body, *, mode: Mode = Mode.CLOSED, user: str = "root") -> None:
    """With root, who is an admin, alice, who has role made, and somebody's connection."""

    async def main(door: Door) -> None:
        guard = await guard_door(door, mode=mode)
        await guard.rules.set_role("made", [rule("Role:made", Operation.WRITE, "made-")])
        await guard.users.create("root", Secret(b"secret"), roles=["admin"])
        await guard.users.create("alice", Secret(b"secret"), roles=["consumer"])
        try:
            await body(door, guard, await somebody(door, user))
        finally:
            await guard.stop()

    with_door(main)


def rule(principal: str, operation: Operation, name: str, *, kind: Kind = Kind.TOPIC) -> Rule:
    pattern = Pattern.PREFIXED if name.endswith("-") else Pattern.LITERAL
    return Rule(principal, "*", operation, kind, pattern, name, Effect.ALLOW)


def revision(guard: Guard) -> int:
    assert guard.loader.directory is not None
    return guard.loader.directory.revision


# --- who may ask


@pytest.mark.parametrize("verb", [name for name, each in VERBS.items() if each.changes_rules])
def test_while_watched_a_stranger_changes_nothing(verb: str) -> None:
    async def body(door: Door, guard: Guard, client: Client) -> None:
        before = revision(guard)
        assert (await ask(client, verb, CASES[verb])).code == C
        assert revision(guard) == before

    run(body, mode=Mode.WATCH, user="alice")


def test_what_changes_users_and_rules_is_marked() -> None:
    changing = {name for name, each in VERBS.items() if each.operation is Operation.ALTER}
    assert {name for name, each in VERBS.items() if each.changes_rules} == changing
    about_the_cluster = {name for name, each in VERBS.items() if each.about.__name__ == "_the_cluster"}
    assert about_the_cluster == {name for name in VERBS if not name.startswith("queue.")}


def test_nobody_is_told_of_it() -> None:
    async def body(door: Door, guard: Guard, client: Client) -> None:
        answer = await client.ask("api_versions", 3, client_software_name="x", client_software_version="1")
        assert API.key not in {each["api_key"] for each in answer["api_keys"]}

    run(body)
    assert penstock_verb.API not in APIS


def test_nothing_is_answered_before_the_login() -> None:
    async def body(door: Door, guard: Guard, client: Client) -> None:
        with pytest.raises((EOFError, OSError)):
            await ask(await stranger(door), "user.list")

    run(body)


def test_a_broker_that_asks_nobody_has_no_users() -> None:
    async def body(door: Door) -> None:
        for verb, document in CASES.items():
            if verb.startswith("queue."):
                continue
            told = await ask(await door.client(), verb, document)
            assert (told.code, "set security.mode" in told.help) == (NO_GUARD, True), verb

    with_door(body)


def test_an_api_key_changes_nothing() -> None:
    """Whatever its user may: it would outlive its own end."""

    async def body(door: Door, guard: Guard, client: Client) -> None:
        made = (await ask(client, "apikey.create", {"user": "root", "lasts_ms": 0})).document
        subject = await guard.authenticator.authenticate(Key(Secret(made["key"])), Peer("10.0.0.1", "kafka"))
        with pytest.raises(Exception, match="an API key changes no users"):
            guard.check_change(subject)

    run(body)


# --- what cannot be read


@pytest.mark.parametrize(
    ("verb", "data", "told"),
    [
        ("user.lst", b"{}", "did you mean user.list?"),
        ("mirror.begin", b"{}", "a later release"),
        ("queue.create", b'{"queue": "jobs", "settings": []}', "settings: [] is not an object"),
        ("queue.create", b'{"queue": "jobs", "settings": {"ttl": 1}}', "settings: ttl is 1, and no text"),
        ("queue.describe", b"{}", "queue is missing"),
        ("queue.describe", b'{"queue": "a/b"}', "queue name 'a/b'"),
        ("user.list", b"{", "no JSON"),
        ("user.list", b"[" * 100_000, "no JSON"),
        ("user.list", b"[]", "no JSON object but []"),
        ("user.list", b'{"afer": "x"}', "field 'afer' is not known to this broker, which knows after, limit"),
        ("user.list", b'{"after": 1}', "after: 1 is not a text"),
        ("user.list", b'{"limit": 1001}', "limit: 1001 is not a whole number from 1 to 1000"),
        ("user.list", b'{"limit": true}', "limit: True is not"),
        ("user.delete", b"{}", "user is missing"),
        ("user.create", b'{"user": "x", "certificate": 1}', "certificate: 1 is not true or false"),
        ("user.create", b'{"user": "x", "roles": [1]}', "roles: a list of texts"),
        ("role.set", b'{"role": "x", "rules": [{}]}', "a rule has principal, host"),
        ("role.set", b'{"role": "x", "rules": []}', "at least one rule"),
        ("role.set", b'{"role": "x", "how": "so"}', "a role has at least one rule"),
        ("apikey.create", b'{"user": "alice", "rules": []}', "at least one rule"),
        ("rule.explain", b'{"principal": "User:a", "operation": "fly", "kind": "topic"}', "'fly' is not one of read,"),
        ("role.set", b'{"role": "' + b"x" * MAX_DOCUMENT_BYTES + b'"}', "a document of"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_name(verb: str, data: bytes, told: str) -> None:
    async def body(door: Door, guard: Guard, client: Client) -> None:
        before = revision(guard)
        answer = await ask(client, verb, data=data)
        assert (answer.code, told in f"{answer.text}; {answer.help}") == (INVALID, True), answer
        assert revision(guard) == before
        assert (await ask(client, "role.list")).code == 0

    run(body)


def test_a_version_that_is_not_known_closes() -> None:
    async def body(door: Door, guard: Guard, client: Client) -> None:
        client.send_frame(struct.pack(">hhih", API.key, 1, 7, -1) + b"\0\0\0")
        with pytest.raises((EOFError, OSError)):
            await client.receive_frame()

    run(body)


def test_damaged_questions_are_answered_or_end_the_connection() -> None:
    """No bug of ours: that would be counted as an error of the request."""

    async def body(door: Door, guard: Guard, client: Client) -> None:
        random = Random(7)
        peer = await somebody(door, "alice")
        for _ in range(400):
            verb = random.choice(list(CASES))
            frame = bytearray(frame_of(verb, orjson.dumps(CASES[verb])))
            for _ in range(random.choice((1, 2, 5))):
                at = random.randrange(len(frame))
                frame[at : at + random.choice((0, 1, 4))] = random.randbytes(random.choice((0, 1, 4)))
            peer.send_frame(bytes(frame))
            try:
                await asyncio.wait_for(peer.receive_frame(), 3)
            except (EOFError, OSError, TimeoutError):
                peer = await somebody(door, "alice")
        assert {stats.errors for stats in door.stats.requests.values()} == {0}

    run(body)


# --- users


def test_users_are_listed_page_by_page_whether_they_have_a_password_or_not() -> None:
    async def body(door: Door, guard: Guard, client: Client) -> None:
        await ask(client, "user.create", {"user": "CN=robot", "certificate": True, "roles": ["producer:a-"]})
        await ask(client, "user.create", {"user": "script"})
        await ask(client, "apikey.create", {"user": "script"})
        first = (await ask(client, "user.list", {"limit": 3})).document
        second = (await ask(client, "user.list", {"limit": 3, "after": first["rows"][-1]["user"]})).document
        assert (first["more"], second["more"]) == (True, False)
        nothing: dict[str, Any] = {"mechanisms": [], "iterations": None, "enabled": True}
        both = {"mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"], "iterations": 10_000, "enabled": True}
        assert first["rows"] + second["rows"] == [
            {"user": "CN=robot", "roles": ["producer:a-"], "certificate": True, "api_keys": 0, **nothing},
            {"user": "alice", "roles": ["consumer"], "certificate": False, "api_keys": 0, **both},
            {"user": "root", "roles": ["admin"], "certificate": False, "api_keys": 0, **both},
            {"user": "script", "roles": [], "certificate": False, "api_keys": 1, **nothing},
        ]

    run(body)


def test_who_is_deleted_leaves_nothing_for_the_next_of_the_name_but_rules() -> None:
    async def body(door: Door, guard: Guard, client: Client) -> None:
        await guard.rules.create([rule("User:alice", Operation.READ, "t")])
        made = (await ask(client, "apikey.create", {"user": "alice"})).document
        gone = (await ask(client, "user.delete", {"user": "alice"})).document
        assert gone == {"user": "alice", "api_keys": 1, "rules": 1}
        await ask(client, "user.create", {"user": "alice"})
        (row,) = [each for each in (await ask(client, "user.list")).document["rows"] if each["user"] == "alice"]
        assert (row["roles"], row["api_keys"], row["mechanisms"]) == ([], 0, [])
        assert (await ask(client, "apikey.delete", {"id": made["id"]})).code == NOT_FOUND
        assert (await ask(client, "user.delete", {"user": "nobody"})).code == NOT_FOUND

    run(body)


# --- roles


def test_a_role_of_ones_own() -> None:
    async def body(door: Door, guard: Guard, client: Client) -> None:
        write = {**RULE, "operation": "write"}
        assert (await ask(client, "role.set", {"role": "clerk", "rules": [RULE]})).document["rules"] == 1
        assert (await ask(client, "role.set", {"role": "clerk", "rules": [write]})).code == EXISTS
        added = await ask(client, "role.set", {"role": "clerk", "rules": [write], "how": "add"})
        assert added.document == {"role": "clerk", "rules": 2}
        assert (await ask(client, "role.set", {"role": "other", "rules": [write], "how": "add"})).code == NOT_FOUND
        granted = await ask(client, "role.grant", {"role": "clerk", "user": "alice"})
        assert granted.document == {"user": "alice", "roles": ["consumer", "clerk"]}
        shown = (await ask(client, "role.show", {"role": "clerk"})).document
        assert [(each["principal"], each["operation"]) for each in shown["rules"]] == [
            ("Role:clerk", "read"),
            ("Role:clerk", "write"),
        ]
        assert shown["users"] == [{"user": "alice", "role": "clerk"}]
        refused = await ask(client, "role.delete", {"role": "clerk"})
        assert (refused.code, "that of user 'alice'" in refused.text) == (NOT_ALLOWED, True)
        assert (await ask(client, "role.revoke", {"role": "clerk", "user": "alice"})).document["roles"] == ["consumer"]
        again = await ask(client, "role.revoke", {"role": "clerk", "user": "alice"})
        assert (again.code, again.help) == (NOT_FOUND, "it has consumer")
        assert (await ask(client, "role.delete", {"role": "clerk"})).code == 0
        rows = (await ask(client, "role.list")).document["rows"]
        assert [each["role"] for each in rows] == ["admin", "auditor", "consumer", "made", "producer", "read-only"]
        assert {each["role"]: each["users"] for each in rows if each["users"]} == {"admin": 1, "consumer": 1}

    run(body)


def test_roles_that_are_always_there() -> None:
    async def body(door: Door, guard: Guard, client: Client) -> None:
        await ask(client, "role.grant", {"role": "producer:a-", "user": "alice"})
        shown = (await ask(client, "role.show", {"role": "producer"})).document
        assert (shown["built_in"], shown["users"]) == (True, [{"user": "alice", "role": "producer:a-"}])
        assert (await ask(client, "role.set", {"role": "producer", "rules": [RULE], "how": "replace"})).code == INVALID
        assert (await ask(client, "role.delete", {"role": "producer"})).code == NOT_ALLOWED
        assert (await ask(client, "role.show", {"role": "nothing"})).code == NOT_FOUND
        assert (await ask(client, "role.grant", {"role": "nothing", "user": "alice"})).code == INVALID

    run(body)


# --- API keys


def test_an_api_key_lives_as_long_as_it_was_said() -> None:
    async def body(door: Door, guard: Guard, client: Client) -> None:
        asked = {"user": "alice", "lasts_ms": 5000, "rules": [RULE], "note": "cron"}
        made = (await ask(client, "apikey.create", asked)).document
        now = door.clock.now_ms()
        assert made["key"].startswith(f"pk_{made['id']}_") and abs(made["until_ms"] - now - 5000) < 100
        (row,) = (await ask(client, "apikey.list", {"user": "alice"})).document["rows"]
        assert made["key"] not in repr(row)
        assert {**row, "made_ms": 0, "until_ms": 0} == {
            "id": made["id"],
            "prefix": f"pk_{made['id']}_...",
            "user": "alice",
            "made_ms": 0,
            "until_ms": 0,
            "ended": False,
            "last_used_ms": None,
            "signing": False,
            "rules": 1,
            "note": "cron",
        }
        assert (await ask(client, "apikey.list", {"user": "root"})).document["rows"] == []
        assert (await ask(client, "apikey.create", {"user": "nobody"})).code == NOT_FOUND
        assert (await ask(client, "apikey.delete", {"id": made["id"]})).document["user"] == "alice"

    run(body)


def test_the_hour_of_the_last_use_is_told() -> None:
    async def body(door: Door, guard: Guard, client: Client) -> None:
        made = (await ask(client, "apikey.create", {"user": "alice"})).document
        await guard.authenticator.authenticate(Key(Secret(made["key"])), Peer("10.0.0.1", "kafka"))
        await guard._used.save()
        (row,) = (await ask(client, "apikey.list")).document["rows"]
        hour = 3_600_000
        assert row["last_used_ms"] == door.clock.now_ms() // hour * hour

    run(body)


# --- what is in force


def test_which_rule_decides() -> None:
    async def body(door: Door, guard: Guard, client: Client) -> None:
        await guard.rules.create(
            [
                rule("User:alice", Operation.WRITE, "a"),
                rule("User:alice", Operation.READ, "b")._replace(host="10.0.0.9"),
            ]
        )
        await guard.users.change_roles("alice", give=["made"])

        async def told(operation: str, name: str, principal: str = "User:alice", **more: str) -> tuple[Any, ...]:
            asked = {"principal": principal, "operation": operation, "kind": "topic", "name": name, **more}
            answer = (await ask(client, "rule.explain", asked)).document
            found = answer["rule"] and answer["rule"]["principal"]
            return answer["allowed"], answer["why"], found, answer["of_other_hosts"]

        assert await told("describe", "a") == (True, "allowed by a rule", "User:alice", 0)
        assert await told("write", "made-x") == (True, "allowed by a rule", "Role:made", 0)
        assert await told("read", "b") == (True, "allowed by a rule", "Role:consumer", 1)
        assert await told("delete", "b") == (False, "allowed by no rule", None, 1)
        assert await told("delete", "b", host="10.0.0.9") == (False, "allowed by no rule", None, 0)
        assert await told("write", "x", "User:boss") == (True, "a super user", None, 0)
        assert await told("write", "x", "User:boss", by="certificate") == (False, "allowed by no rule", None, 0)
        narrow = (await ask(client, "apikey.create", {"user": "alice", "rules": [RULE]})).document["id"]
        assert (await told("write", "a", key=narrow))[:2] == (False, "allowed by no rule, of those of the API key")
        asked = {"principal": "User:alice", "operation": "alter", "kind": "cluster", "key": "0" * 16}
        assert (await ask(client, "rule.explain", asked)).code == NOT_FOUND

    async def main(door: Door) -> None:
        guard = await guard_door(door)
        guard.loader._supers = SuperUsers(["User:boss"])
        await guard.rules.set_role("made", [rule("Role:made", Operation.WRITE, "made-")])
        for name, roles in (("root", ["admin"]), ("alice", ["consumer"]), ("boss", [])):
            await guard.users.create(name, Secret(b"secret"), roles=roles)
        try:
            await body(door, guard, await somebody(door, "root"))
        finally:
            await guard.stop()

    with_door(main)


def test_what_closed_would_refuse_is_listed_until_rules_allow_it() -> None:
    async def body(door: Door, guard: Guard, client: Client) -> None:
        await door.topic("t")
        alice = await somebody(door, "alice")
        for _ in range(2):
            answer = await alice.ask(
                "create_partitions", 3, topics=[{"name": "t", "count": 2}], timeout=1000, validate_only=True
            )
            assert set(codes_in(answer)) == {0}
        told = (await ask(client, "security.refusals")).document
        assert (told["mode"], told["broker"]) == ("watch", 1)
        row = {"principal": "User:alice", "operation": "alter", "kind": "topic", "name": "t", "is_whole": True}
        assert [each for each in told["rows"] if each["operation"] == "alter"] == [
            {**row, "count": 2 if told["total"] > 1 else 1, "allowed_now": False}
        ]
        await guard.rules.create([rule("User:alice", Operation.ALTER, "t")])
        told = (await ask(client, "security.refusals")).document
        assert [each["allowed_now"] for each in told["rows"] if each["operation"] == "alter"] == [True]
        assert told["open_rule_count"] == 0
        await guard.rules.create([rule("User:*", Operation.ALL, "*"), rule("User:*", Operation.READ, "t")])
        assert (await ask(alice, "security.forget")).code == C
        (left,) = (await ask(client, "security.refusals")).document["open_rules"]
        assert (left["principal"], left["operation"], left["name"]) == ("User:*", "all", "*")
        assert (await ask(client, "security.forget")).document["forgotten"] > 1
        assert (await ask(client, "security.refusals")).document["total"] == 0

    run(body, mode=Mode.WATCH)


def test_secrets_are_sealed_anew_by_the_key_that_is_named() -> None:
    async def body(door: Door, guard: Guard, client: Client) -> None:
        made = [(await ask(client, "apikey.create", {"user": "alice", "signing": True})).document for _ in range(2)]
        old = (await ask(client, "security.sealing")).document
        assert old["secrets"] == {old["seals"]: 2} and old["opens"] == [old["seals"]]
        key = Secret(b"n" * 32)
        guard.keys._sealing = SealingKeys(key, [Secret(b"s" * 32)])
        new = (await ask(client, "security.sealing")).document
        assert set(new["opens"]) == {old["seals"], new["seals"]} and new["secrets"] == {old["seals"]: 2}
        assert (await ask(client, "security.reseal", {"by": old["seals"]})).code == INVALID
        assert (await ask(client, "security.reseal", {"by": new["seals"]})).document["resealed"] == 2
        guard.keys._sealing = SealingKeys(key)
        for each in made:
            assert guard.keys.signing_secret(each["id"]) == Secret(each["key"].split("_", 2)[2])
        assert (await ask(client, "security.sealing")).document["secrets"] == {new["seals"]: 2}

    run(body)


def test_what_cannot_be_opened_stops_before_anything_is_sealed_anew() -> None:
    async def body(door: Door, guard: Guard, client: Client) -> None:
        for key in (b"s", b"s", b"s", b"l", b"s", b"s"):
            guard.keys._sealing = SealingKeys(Secret(key * 32))
            await ask(client, "apikey.create", {"user": "alice", "signing": True})
        guard.keys._sealing = SealingKeys(Secret(b"n" * 32), [Secret(b"s" * 32)])
        before = revision(guard)
        by = (await ask(client, "security.sealing")).document["seals"]
        told = await ask(client, "security.reseal", {"by": by})
        assert told.code != 0 and "is not here" in told.text and "key file" in told.help
        assert revision(guard) == before

    run(body)


def test_the_cluster_is_what_the_right_is_taken_to() -> None:
    """Rules about topics are no rules about users."""

    async def body(door: Door, guard: Guard, client: Client) -> None:
        await guard.rules.create([rule("User:alice", Operation.ALL, "*")])
        assert (await ask(client, "user.list")).code == C
        await guard.rules.create([rule("User:alice", Operation.DESCRIBE, THE_CLUSTER.name, kind=Kind.CLUSTER)])
        assert (await ask(client, "user.list")).code == 0
        assert (await ask(client, "user.delete", {"user": "root"})).code == C

    run(body, user="alice")
