"""A queue of ours read by Kafka's share consumers, in the group named like it: priorities, delays and keys in order."""

import time
from collections.abc import Callable, Mapping

import pytest
from confluent_kafka import Producer

from penstock.cli.main import main
from tests.peers.broker import Broker

from .clients.client import DEADLINE_S
from .clients.shares import ACCEPT, EXPLICIT, ShareMember, Taken
from .conftest import PEER, fresh_name
from .test_shares import BOTH, NAMES, Sharers, sharers

pytestmark = pytest.mark.skipif(PEER != "penstock", reason="Kafka has no queues of ours")
__all__ = ["sharers"]
_POLL_S = 0.3
_DELAY_MS = 3000
MakeQueue = Callable[..., str]


@pytest.fixture
def queue(broker: Broker) -> MakeQueue:
    """Makes a queue of one partition with `penstock queue create`."""

    def make(*words: str) -> str:
        name = fresh_name("queue")
        command = ["queue", "create", name, "--partitions", "1", "--visibility", "1m", *words]
        assert main([*command, "--server", broker.bootstrap]) == 0
        return name

    return make


class Said:
    """Publishes messages, each in a batch of its own."""

    def __init__(self, broker: Broker) -> None:
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})

    def send(self, topic: str, value: str, key: str | None = None, **headers: str) -> None:
        named: list[tuple[str, str | bytes | None]] = [
            (f"penstock-{name.replace('_', '-')}", text.encode()) for name, text in headers.items()
        ]
        self._producer.produce(topic, value.encode(), key, headers=named)
        assert self._producer.flush(DEADLINE_S) == 0


@pytest.fixture
def said(broker: Broker) -> Said:
    return Said(broker)


def take(members: Mapping[str, ShareMember], count: int, see: Callable[[str, list[Taken]], None]) -> None:
    """Have members poll in turns, and accept what they got, until they had so many; `see` hears of it before."""
    deadline, found = time.monotonic() + DEADLINE_S, 0
    while found < count:
        for name, member in members.items():
            assert time.monotonic() < deadline, f"{found} of {count} messages came"
            polled = member.poll(_POLL_S)
            see(name, polled)
            found += len(polled)
    for member in members.values():
        member.commit()


@BOTH
def test_what_is_urgent_comes_first(sharers: Sharers, queue: MakeQueue, said: Said, name: str) -> None:
    topic, seen = queue("--lanes", "strict"), []
    for number in range(3):
        said.send(topic, f"background {number}", priority="background")
    said.send(topic, "plain")
    for number in range(3):
        said.send(topic, f"critical {number}", priority="9")
    member = sharers.join(name, topic, topic, EXPLICIT, most=1)

    def see(_: str, polled: list[Taken]) -> None:
        for each in polled:
            seen.append(each.value.decode())
            member.acknowledge(each, ACCEPT)

    take({name: member}, 7, see)
    lanes = [value.split(" ")[0] for value in seen]
    assert lanes == ["critical"] * 3 + ["plain"] + ["background"] * 3
    assert [value for value in seen if value.startswith("critical")] == [f"critical {number}" for number in range(3)]


@BOTH
def test_what_is_delayed_comes_when_it_is_due(sharers: Sharers, queue: MakeQueue, said: Said, name: str) -> None:
    topic, came_ms = queue(), {}
    member = sharers.join(name, topic, topic)
    said.send(topic, "before")
    due_ms = time.time() * 1000 + _DELAY_MS
    said.send(topic, "delayed", delay_ms=str(_DELAY_MS))
    said.send(topic, "at a moment", deliver_at=str(round(due_ms)))
    said.send(topic, "behind")

    def see(_: str, polled: list[Taken]) -> None:
        for each in polled:
            came_ms[each.value] = time.time() * 1000
            member.acknowledge(each, ACCEPT)

    take({name: member}, 4, see)
    assert all(came_ms[value] >= due_ms - 1 for value in (b"delayed", b"at a moment"))
    assert list(came_ms)[:2] == [b"before", b"behind"]


def test_of_a_key_one_message_is_out_at_a_time(sharers: Sharers, queue: MakeQueue, said: Said) -> None:
    topic = queue("--kind", "fifo")
    sent = {key: [f"{key} {number}" for number in range(6)] for key in ("a", "b", "c")}
    for number in range(6):
        for key, values in sent.items():
            said.send(topic, values[number], key)
    members = {name: sharers.join(name, topic, topic) for name in NAMES}
    out: dict[str, dict[str, Taken]] = {name: {} for name in NAMES}
    done: dict[str, list[str]] = {key: [] for key in sent}

    def see(name: str, polled: list[Taken]) -> None:
        """What was polled is kept until this member's next poll, while the other one polls."""
        for each in polled:
            value = each.value.decode()
            key = value.split(" ")[0]
            assert all(key not in kept for kept in out.values()), f"{value} came while another of its key was out"
            out[name][key] = each
            done[key].append(value)
        other = next(each for each in NAMES if each != name)
        for each in out[other].values():
            members[other].acknowledge(each, ACCEPT)
        if out[other]:
            members[other].commit()
            out[other] = {}

    take(members, 18, see)
    assert done == sent
