"""A broker of either make with every principal, every rule, and something in it for them to be about."""

import hashlib
import io
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from kio.serial import entity_reader, entity_writer

from tests.conformance.clients.client import DEADLINE_S
from tests.conformance.wire import Wire
from tests.doors.kafka import batch_of, make, produce_values
from tests.doors.kio_values import entity_of, plain
from tests.peers import kafka, penstock
from tests.peers.ports import free_ports

from .answers import words
from .questions import (
    ASKED_TOPICS,
    AUTO,
    CLASSIC,
    DOOMED,
    GROUPS,
    MODERN,
    SHARED,
    TOPICS,
    TRANSACTIONS,
    Question,
    World,
)
from .rules import LAST, SUPER, all_rules, parse, principals

ADMIN: Final = "admin"
PASSWORD: Final = "secret"  # noqa: S105 - of a broker that lasts as long as the test
_RULES_AT_ONCE: Final = 200
_JAAS: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SETTINGS: Final = """\
listeners:
- {{name: secure, protocol: kafka, address: "127.0.0.1:0", auth: [plain]}}
- {{name: web, protocol: http, address: "127.0.0.1:0", auth: [basic, key]}}
security: {{admin_password_file: "{password}", super_users: "User:{super_user},User:admin"}}
groups: {{initial_rebalance_delay_ms: 0, consumer_session_timeout_ms: 600000}}
"""
_UNKNOWN_TOPIC: Final = 3
_MADE: Final = re.compile(rf"\[[035] (?={AUTO})")
_PARTITIONS: Final = re.compile(r" \[(\d+ like )?0 [^]]*\]")
_NAMED: Final = re.compile(rb"(?<![\w-])(?:%s)(?![\w-])" % "|".join((*TOPICS, DOOMED)).encode())
_MEMBER: Final = {"group_id": MODERN, "member_id": "m1"}
_SHARER: Final = {"group_id": SHARED, "member_id": "m1"}
_LONG_MS: Final = 600_000
"""Longer than all of it takes."""


class Addresses(NamedTuple):
    """Where principals log in: to the Kafka door, over HTTP; then a listener that asks nobody. Empty: there is none."""

    kafka: str
    web: str = ""
    http: str = ""
    password_file: Path = Path()


@contextmanager
def kafka_broker(directory: Path) -> Iterator[Addresses]:
    """Apache Kafka with its own authorizer."""
    port, controller, secure = free_ports(3)
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in (ADMIN, LAST[0], *principals()))
    properties = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},SECURE://127.0.0.1:{secure}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},SECURE://127.0.0.1:{secure}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_PLAINTEXT",
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": f"{_JAAS} required {users};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN};User:{SUPER};User:ANONYMOUS",
        "group.consumer.session.timeout.ms": "600000",  # as long as all of it takes at most
        "group.consumer.max.session.timeout.ms": "600000",
        "group.share.session.timeout.ms": "600000",
        "group.share.max.session.timeout.ms": "600000",
        "share.coordinator.state.topic.num.partitions": "1",
        "offsets.topic.num.partitions": "16",  # as many as Penstock has: answers name them
        "transaction.state.log.num.partitions": "16",
    }
    with pytest.MonkeyPatch.context() as patch:  # one property names all ports, so all are chosen here
        patch.setattr(kafka, "free_ports", lambda _: [port, controller])
        broker = kafka.start(directory, heap="512m", partitions=1, properties=properties)
    try:
        yield Addresses(f"127.0.0.1:{secure}")
    finally:
        broker.stop()


@contextmanager
def penstock_broker(directory: Path, more_users: Iterable[str] = ()) -> Iterator[Addresses]:
    """Penstock with the same principals, and more of them."""
    password = directory / "admin.password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    broker = penstock.start(directory, settings=_SETTINGS.format(password=password, super_user=SUPER))
    try:
        said = (directory / "penstock.stdout").read_text()
        kafka_door, web, http = (_address(said, name) for name in ("secure", "web", "http"))
        addresses = Addresses(kafka_door, web, http, password)
        with log_in(addresses.kafka, ADMIN) as admin:
            add_users(admin, [LAST[0], *principals(), *more_users])
        yield addresses
    finally:
        assert broker.stop() == 0


def _address(ready: str, listener: str) -> str:
    """Where a listener is, by the line that a broker says when it is ready."""
    found = re.search(rf"\b{listener}=(\S+)", ready)
    assert found is not None, ready
    return found.group(1).removeprefix("http://")


def log_in(address: str, user: str) -> Wire:
    wire = Wire(address)
    wire.call("sasl_handshake", 1, mechanism="PLAIN")
    said = f"\0{user}\0{PASSWORD}".encode()
    answer = wire.call("sasl_authenticate", 2, auth_bytes=said)
    assert not answer.error_code.value, (user, answer.error_message)
    return wire


def add_users(admin: Wire, names: list[str]) -> None:
    """As Kafka's API makes them; of one salt, so that the password is salted once."""
    salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), b"salt", 4096)
    rows = [
        {"name": name, "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": salted} for name in names
    ]
    made = call(admin, "alter_user_scram_credentials", 0, deletions=[], upsertions=rows)
    assert not any(row["error_code"] for row in made["results"]), made


def settle(address: str) -> World:
    """Makes the rules, and what they are about; returns when all of them are in force."""
    rules = [rule.creation() for rule in all_rules()]
    with log_in(address, ADMIN) as admin:
        for at in range(0, len(rules), _RULES_AT_ONCE):
            make_rules(admin, rules[at : at + _RULES_AT_ONCE])
        world = _fill(admin)
        make_rules(admin, [parse(*LAST).creation()])
    with log_in(address, LAST[0]) as last:
        _wait(lambda: _look(last, LAST[0]) == _UNKNOWN_TOPIC)
    return world


def make_rules(admin: Wire, creations: list[dict[str, Any]]) -> None:
    made = call(admin, "create_acls", 3, creations=creations)
    assert not any(row["error_code"] for row in made["results"]), made


def _fill(admin: Wire) -> World:
    world = World()
    for topic in (*TOPICS, DOOMED):
        make_topic(admin, world, topic)
    for topic in TOPICS:
        _ask_again(admin, "produce", 9, **produce_values(batch_of(b"first"), topic))
    for group in GROUPS:
        _ask_again(admin, "find_coordinator", 4, key_type=0, coordinator_keys=[group])
        rows = [
            {"name": name, "partitions": [{"partition_index": 0, "committed_offset": 1}]}
            for name in ASKED_TOPICS
            if name in TOPICS
        ]
        _ask_again(
            *(admin, "offset_commit", 8),
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=rows,
        )
    kept = [{"name": "share.record.lock.duration.ms", "value": "20000", "config_operation": 0}]
    things = [{"resource_type": 32, "resource_name": group, "configs": kept} for group in GROUPS]
    _ask_again(admin, "incremental_alter_configs", 1, resources=things)
    _join(admin, world)
    _join_to_share(admin, world)
    for name in TRANSACTIONS:
        _ask_again(admin, "find_coordinator", 4, key_type=1, coordinator_keys=[name])
        producer = {"transactional_id": name, "producer_id": -1, "producer_epoch": -1}
        begun = _ask_again(admin, "init_producer_id", 4, transaction_timeout=_LONG_MS, **producer)
        added = {f"v3_and_below_{key}": begun[key] for key in ("producer_id", "producer_epoch")}
        named = [{"name": topic, "partitions": [0]} for topic in ("books", "letters")]
        values = {**added, "v3_and_below_transactional_id": name, "v3_and_below_topics": named}
        _ask_again(admin, "add_partitions_to_txn", 3, **values)
    return world


def _join(admin: Wire, world: World) -> None:
    """One group has a member that the broker gave partitions, one a member that divides them itself."""
    joining = {
        "group_id": CLASSIC,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\0\0\0\0\0"}],
        "session_timeout": _LONG_MS,
        "rebalance_timeout": _LONG_MS,
    }
    told = call(admin, "join_group", 7, member_id="", **joining)
    assert told["error_code"] == 79, told  # it has to come again with the id it is given
    told = call(admin, "join_group", 7, member_id=told["member_id"], **joining)
    assert told["error_code"] == 0, told
    at = {"group_id": CLASSIC, "member_id": told["member_id"], "generation_id": told["generation_id"]}
    share = [{"member_id": told["member_id"], "assignment": b""}]
    told = call(admin, "sync_group", 5, **at, protocol_type="consumer", protocol_name="range", assignments=share)
    assert told["error_code"] == 0, told
    joins = {"subscribed_topic_names": ("books", "letters"), "topic_partitions": (), "rebalance_timeout": _LONG_MS}

    def is_in() -> bool:
        told = call(admin, "consumer_group_heartbeat", 1, **_MEMBER, member_epoch=0, **joins)
        world.member_epoch = told["member_epoch"]
        return bool(told["assignment"])

    _wait(is_in)


def _join_to_share(admin: Wire, world: World) -> None:
    """One group has a member that takes from partitions as others may."""
    wanted = {"subscribed_topic_names": ("books", "letters")}

    def is_in() -> bool:
        told = call(admin, "share_group_heartbeat", 1, **_SHARER, member_epoch=0, **wanted)
        world.share_epoch = told["member_epoch"]
        return len((told["assignment"] or {}).get("topic_partitions", ())) == 2

    _wait(is_in)


def stay(admin: Wire, world: World) -> None:
    """The members of the consumer group and of the share group say that they are there."""
    asked = {"member_epoch": world.member_epoch, "rebalance_timeout": -1, "subscribed_topic_names": None}
    told = call(admin, "consumer_group_heartbeat", 1, **_MEMBER, **asked)
    assert told["error_code"] == 0, told
    world.member_epoch = told["member_epoch"]
    told = call(admin, "share_group_heartbeat", 1, **_SHARER, member_epoch=world.share_epoch)
    assert told["error_code"] == 0, told
    world.share_epoch = told["member_epoch"]


def make_topic(admin: Wire, world: World, name: str) -> None:
    kept = [{"name": "retention.ms", "value": "-1"}]
    rows = [{"name": name, "num_partitions": 1, "replication_factor": 1, "configs": kept}]

    def made() -> bool:
        told = call(admin, "create_topics", 7, topics=rows, timeout=10_000)["topics"][0]
        if told["error_code"] == 0:
            world.ids[name] = told["topic_id"]
        return told["error_code"] == 0

    _wait(made)  # one that was just deleted may be there for a moment
    _wait(lambda: is_there(admin, name))


def delete_topic(admin: Wire, name: str) -> None:
    _wait(
        lambda: call(admin, "delete_topics", 5, topic_names=[name], timeout=10_000)["responses"][0]["error_code"] == 3
    )
    _wait(lambda: not is_there(admin, name))


def is_there(wire: Wire, name: str) -> bool:
    return _look(wire, name) == 0


def _look(wire: Wire, name: str) -> int:
    told = call(wire, "metadata", 9, topics=[{"name": name}], allow_auto_topic_creation=False)
    return int(told["topics"][0]["error_code"])


class Asker:
    """One principal at one broker. What is said in the same bytes is read once.

    Attributes:
        unasked: by the name of the question, topics that the answer names and the question did not.
    """

    def __init__(self, address: str, user: str, world: World, admin: Wire) -> None:
        self._address, self._user = address, user
        self._world, self._admin = world, admin
        self._wire = log_in(address, user)
        self.unasked: dict[str, frozenset[str]] = {}

    def close(self) -> None:
        self._wire.__exit__()

    def ask(self, question: Question) -> str:
        """What is answered, in words; see `answers`."""
        request = make(question.api, question.version, question.values(self._world))
        body = io.BytesIO()
        entity_writer(type(request))(body, request)
        self._wire.send_body(type(request), body.getvalue())
        if question.values(self._world).get("acks") == 0:
            said = self._silence()
        else:
            try:
                frame = self._wire.receive_bytes()
                said = read_words(question.api, question.version, frame)
                self.unasked[question.name] = _topics_in(frame) - _topics_in(body.getvalue())
            except ConnectionError:
                said = "closed"
        if said == "closed":
            self._wire.__exit__()
            self._wire = log_in(self._address, self._user)
        return self._undo(question.undo, said) if question.undo else said

    def _silence(self) -> str:
        """Whether nothing is said to a request that wants no answer, and the connection stays."""
        try:
            self._wire.call("api_versions", 0)
        except OSError:
            return "closed"
        return "stays"

    def _undo(self, topic: str, said: str) -> str:
        """Puts right what the answer says was done; returns what it says for good, as a new topic is there at once or
        a moment later."""
        if topic == AUTO and (made := _MADE.match(said)):
            _wait(lambda: is_there(self._admin, topic))
            delete_topic(self._admin, topic)
            return _PARTITIONS.sub("", f"[made {said[made.end() :]}")
        if topic == DOOMED and f"{DOOMED} id 0" in said:
            _wait(lambda: not is_there(self._admin, topic))
            make_topic(self._admin, self._world, topic)
        return said


@cache
def _topics_in(frame: bytes) -> frozenset[str]:
    """Those that are named in it, wherever."""
    return frozenset(found.decode() for found in _NAMED.findall(frame))


@cache
def read_words(api: str, version: int, frame: bytes) -> str:
    """The words of an answer; `frame` is what follows the correlation id."""
    kind = entity_of(api, version, "response")
    start = 1 if kind.__flexible__ else 0  # type: ignore[attr-defined]
    answer: Any
    answer, used = entity_reader(kind)(frame, start)
    assert start + used == len(frame), "bytes after the response"
    return words(plain(answer))


def call(wire: Wire, api: str, version: int, /, **values: Any) -> dict[str, Any]:
    answer: dict[str, Any] = plain(wire.ask(make(api, version, values), entity_of(api, version, "response")))
    return answer


def _ask_again(wire: Wire, api: str, version: int, /, **values: Any) -> dict[str, Any]:
    """Until there is no error in it: coordinators and leaders take their time."""
    told: dict[str, Any] = {}

    def is_done() -> bool:
        told.update(call(wire, api, version, **values))
        return not _has_error(told)

    _wait(is_done, lambda: str(told))
    return told


def _has_error(value: Any) -> bool:
    if isinstance(value, dict):
        return any(part != 0 if name.endswith("error_code") else _has_error(part) for name, part in value.items())
    return isinstance(value, tuple | list) and any(map(_has_error, value))


def _wait(done: Callable[[], bool], told: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline, told()
        time.sleep(0.02)
