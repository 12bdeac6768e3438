"""Receipts with a verdict: each asked of who leads its partition, and answered for, whatever becomes of the others."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from penstock.cli.connection import Refused, Server
from penstock.cli.failure import UNREACHABLE, CommandError
from penstock.cli.queue_leaders import Leaders
from penstock.cli.queue_settlement import extend, failures, settle
from penstock.cli.verbs import Led, Verbs
from penstock.engine.queues.receipts import make_receipt, parse_receipt

A, B = ("a", 1), ("b", 2)
Told = Mapping[str, Any]


class FakeVerbs(Verbs):
    """Brokers that say what a test says.

    Args:
        leaders: who leads which partition; the first as long as nobody was asked, then the next, and so on.
        act: what a broker answers about a receipt: None for well, a code for an error; may raise.
    """

    def __init__(self, *leaders: Mapping[int, Any], act: Callable[[Any, str], str | None]) -> None:
        self.asked: list[tuple[Any, str, list[Any]]] = []
        self.looked = 0
        self._told = leaders
        self._act = act

    def leaders(self, topic: str) -> Led:
        found = self._told[min(self.looked, len(self._told) - 1)]
        self.looked += 1
        return Led([0, 1, 2], dict(found))

    def ask(self, what: str, verb: str, /, *, at: Any = None, **fields: Any) -> Any:
        self.asked.append((at, verb, fields["receipts"]))
        texts = [each["receipt"] if isinstance(each, dict) else each for each in fields["receipts"]]
        results = [(text, self._act(at, text)) for text in texts]
        return {"results": [{"receipt": text, "error": error, "text": "no", "help": ""} for text, error in results]}


def leaders(verbs: Verbs, timeout_s: float = 10.0) -> Leaders:
    return Leaders(Server("h:1", "a test", timeout_s=timeout_s), verbs, "jobs")


def receipts(*partitions: int) -> list[str]:
    return [make_receipt(partition, offset, 5) for offset, partition in enumerate(partitions)]


def well(at: Any, text: str) -> None:
    return None


def test_each_receipt_goes_to_who_leads_its_partition() -> None:
    verbs = FakeVerbs({0: A, 1: B, 2: A}, act=well)
    some = receipts(1, 0, 2, 1)
    results = settle(leaders(verbs), "nack", some, 5, "why")
    assert [row["receipt"] for row in results] == some
    assert not failures(results)
    assert {at: [row["receipt"] for row in rows] for at, _, rows in verbs.asked} == {
        A: [some[1], some[2]],
        B: [some[0], some[3]],
    }
    assert verbs.asked[0][2][0] == {"receipt": some[1], "verdict": "nack", "delay_ms": 5, "reason": "why"}
    assert extend(leaders(verbs), some[:1], 7) == results[:1]
    assert verbs.asked[-1] == (B, "queue.extend", some[:1])


def test_a_stale_receipt_spoils_none_of_the_others() -> None:
    some = receipts(0, 0, 0)
    verbs = FakeVerbs({0: A}, act=lambda at, text: "stale_receipt" if text == some[1] else None)
    results = settle(leaders(verbs), "ack", some)
    assert [row["receipt"] for row in failures(results)] == [some[1]]
    assert len(verbs.asked) == 1, "what is stale stays so"


def test_what_no_server_needs_to_see() -> None:
    verbs = FakeVerbs({0: A}, act=well)
    elsewhere = make_receipt(7, 1, 5)
    results = settle(leaders(verbs), "ack", ["nonsense", elsewhere, *receipts(0)])
    assert [row["error"] for row in results] == ["invalid_request", "unknown_queue", None]
    assert "has 8 characters" in results[0]["text"] and "partition 7" in results[1]["text"]
    assert len(verbs.asked) == 1


def test_leaders_that_move_are_found() -> None:
    def act(at: Any, text: str) -> str | None:
        return "not_leader" if at == A and parse_receipt(text).partition == 1 else None

    verbs = FakeVerbs({0: A, 1: A}, {0: A}, {0: A, 1: B}, act=act)
    assert not failures(settle(leaders(verbs), "ack", receipts(0, 1)))
    assert [(at, len(rows)) for at, _, rows in verbs.asked] == [(A, 2), (B, 1)], "what is done is not done twice"


def test_a_broker_that_is_gone_is_waited_for() -> None:
    gone = [A, A]

    def act(at: Any, text: str) -> None:
        if at in gone:
            gone.remove(at)
            raise CommandError("no broker at a:1", code=UNREACHABLE)

    verbs = FakeVerbs({0: A}, act=act)
    assert not failures(settle(leaders(verbs), "ack", receipts(0)))
    assert len(verbs.asked) == 3


def test_after_the_timeout_each_receipt_says_why() -> None:
    verbs = FakeVerbs({1: A}, act=lambda at, text: "not_leader")
    results = settle(leaders(verbs, 0.2), "ack", receipts(0, 1))
    assert [row["error"] for row in results] == ["not_available", "not_leader"]
    assert "no broker leads partition 0" in results[0]["text"]


def test_a_refusal_ends_it() -> None:
    def act(at: Any, text: str) -> None:
        raise Refused("may not", "GROUP_AUTHORIZATION_FAILED")

    with pytest.raises(Refused):
        settle(leaders(FakeVerbs({0: A}, act=act)), "ack", receipts(0))


def test_many_receipts_go_in_parts() -> None:
    verbs = FakeVerbs({0: None}, act=well)
    some = [make_receipt(0, offset, 5) for offset in range(250)]
    assert not failures(settle(leaders(verbs), "ack", some))
    assert [len(rows) for _, _, rows in verbs.asked] == [100, 100, 50]
