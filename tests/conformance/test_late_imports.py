"""What a broker imports once it is ready: a little at a time, as the loop stands still meanwhile.

Counts, not times: on the machines this was written on a module takes a third of a millisecond, and rarely three.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.peers import penstock
from tests.unit.net.certificates import Authority

from .test_http_door import curl

pytestmark = pytest.mark.skipif(
    os.environ.get("PENSTOCK_TEST_PEER", "penstock") != "penstock", reason="it is about our imports"
)
PASSWORD = "correct horse"  # noqa: S105 - of a test's broker
DEADLINE_S = 60.0
MOST_AT_ONCE = 20
"""Modules that one import may bring in; a few milliseconds of a loop that should not stand still for 50."""
MOST_IDLE_BYTES = 60_000_000
_LINE = re.compile(r"^import time:\s+(\d+) \|\s+(\d+) \| ( *)(\S+)$", re.MULTILINE)


class Import(NamedTuple):
    """One that nothing else being imported asked for."""

    name: str
    modules: int
    ms: float


def outermost(log: str) -> Iterator[Import]:
    """Python names a module after those that it imports, which stand further in."""
    modules = 0
    for _, cumulative_us, indent, name in _LINE.findall(log):
        modules += 1
        if not indent:
            yield Import(name, modules, int(cumulative_us) / 1000)
            modules = 0


def test_lines_of_python_are_understood() -> None:
    log = (
        "import time:       100 |        100 |   deeper\n"
        "a line of the log\n"
        "import time:        50 |        150 | outer\n"
        "import time:        10 |         10 | alone\n"
    )
    assert list(outermost(log)) == [Import("outer", 2, 0.15), Import("alone", 1, 0.01)]


def use_everything(secure: dict[str, str | int | float | bool], web: str) -> None:
    """A login over TLS; topics, rules, records, a group, a transaction; health and metrics."""
    admin = AdminClient(secure)
    admin.create_topics([NewTopic("books", 1, 1)], request_timeout=DEADLINE_S)["books"].result()
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert admin.describe_acls(everything, request_timeout=DEADLINE_S).result() is not None
    producer = Producer({**secure, "transactional.id": "mover", "compression.type": "gzip"})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce("books", b"one")
    consumer = Consumer({**secure, "group.id": "readers", "auto.offset.reset": "earliest"})
    offsets = [TopicPartition("books", 0, 0)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), DEADLINE_S)
    producer.commit_transaction(DEADLINE_S)
    consumer.subscribe(["books"])
    message = consumer.poll(DEADLINE_S)
    assert message is not None and message.value() == b"one"
    consumer.commit(message=message, asynchronous=False)
    consumer.close()
    assert admin.list_consumer_groups(request_timeout=DEADLINE_S).result().valid
    for path in ("/health", "/metrics"):
        assert curl("--user", f"admin:{PASSWORD}", f"http://{web}{path}")[0] == 200


def test_nothing_large_is_imported_once_the_broker_is_ready(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "ours")
    server = authority.sign("localhost")
    password = tmp_path / "admin.password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    settings = f"""\
security: {{admin_password_file: {password}}}
groups: {{initial_rebalance_delay_ms: 0}}
listeners:
- name: secure
  protocol: kafka
  address: localhost:0
  auth: [scram]
  tls: {{certificate: {server.certificate}, key: {server.key}}}
- {{name: web, protocol: http, address: "127.0.0.1:0", auth: [basic]}}
"""
    launcher = [sys.executable, "-X", "importtime", "-m", "penstock"]
    broker = penstock.start(tmp_path / "broker", settings=settings, launcher=launcher)
    try:
        ready_at = len(broker.log.read_text())
        said = (tmp_path / "broker" / "penstock.stdout").read_text()
        addresses = dict(word.split("=", 1) for word in said.split() if "=" in word)
        secure: dict[str, str | int | float | bool] = {
            "bootstrap.servers": addresses["secure"],
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": authority.certificate,
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "admin",
            "sasl.password": PASSWORD,
        }
        use_everything(secure, addresses["web"].removeprefix("http://"))
    finally:
        assert broker.stop() == 0
    late = list(outermost(broker.log.read_text()[ready_at:]))
    assert any(each.name.startswith("kio.schema") for each in late)  # so that the log was read right
    assert [each for each in late if each.modules > MOST_AT_ONCE] == []


def test_a_broker_takes_little_memory_until_it_is_used(tmp_path: Path) -> None:
    """With the doors that a start opens when nothing else is said."""
    broker = penstock.start(tmp_path / "broker")
    try:
        assert psutil.Process(broker.pid).memory_info().rss < MOST_IDLE_BYTES
    finally:
        assert broker.stop() == 0
