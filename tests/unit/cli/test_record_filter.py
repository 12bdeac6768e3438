"""Which records pass."""

from typing import Any

import pytest
from confluent_kafka import Message

from penstock.cli.record_filter import Conditions, compile_filter

ORDER = b'{"id": 7, "total": 12.5, "user": {"name": "ann"}, "items": [{"sku": "a"}], "paid": true, "note": null}'


def record(
    value: bytes | None = b"", key: bytes | None = None, headers: list[tuple[str, str | bytes | None]] | None = None
) -> Message:
    return Message(topic="t", partition=0, offset=0, key=key, value=value, headers=headers)


def passes(message: Message, **asked: Any) -> bool:
    matches = compile_filter(Conditions(**asked))
    assert matches is not None
    return matches(message)


def test_nothing_asked_is_no_filter() -> None:
    assert compile_filter(Conditions()) is None


def test_keys() -> None:
    ann = record(key=b"user-ann")
    assert passes(ann, key="user-*")
    assert not passes(ann, key="user")
    assert not passes(ann, key="USER-*")
    assert passes(ann, key_regex="^user")
    assert not passes(ann, key_regex="^ann")
    assert not passes(record(key=None), key="*")


def test_values() -> None:
    assert passes(record(b"one two"), contains="e t")
    assert not passes(record(b"one two"), contains="E t")
    assert passes(record(b"one two"), grep="^one.*o$")
    assert passes(record(b"\xff error"), grep="error")
    assert not passes(record(None), grep="")


def test_headers() -> None:
    traced = record(headers=[("trace", b"1"), ("trace", b"2")])
    assert passes(traced, headers=["trace"])
    assert passes(traced, headers=["trace=2"])
    assert not passes(traced, headers=["trace="])
    assert not passes(traced, headers=["span"])
    assert not passes(record(), headers=["trace"])


@pytest.mark.parametrize(
    "holds",
    [
        "id=7",
        "id!=8",
        "total>12",
        "total<13",
        "total>=12.5",
        "total<=12.5",
        "user.name=ann",
        "user.name~^a",
        "id = 7",
        "items.0.sku=a",
        "paid=true",
        "note=null",
        "user.name>aaa",
        'user={"name":"ann"}',
        "total>9",
    ],
)
def test_conditions_that_hold(holds: str) -> None:
    assert passes(record(ORDER), where=[holds])


@pytest.mark.parametrize(
    "fails",
    [
        "id=8",
        "id!=7",
        "total>12.5",
        "user.name=bob",
        "missing=1",
        "missing!=1",
        "user.name.first=a",
        "items.1.sku=a",
        "paid=1",
        "user.name~^b",
        "total>100",
    ],
)
def test_conditions_that_do_not(fails: str) -> None:
    assert not passes(record(ORDER), where=[fails])


def test_a_value_that_is_no_json_never_matches() -> None:
    assert not passes(record(b"id=7"), where=["id=7"])
    assert not passes(record(None), where=["id!=7"])


def test_all_must_hold() -> None:
    assert passes(record(ORDER, b"k"), key="k", where=["id=7", "total>1"])
    assert not passes(record(ORDER, b"k"), key="k", where=["id=7", "total>100"])
    assert not passes(record(ORDER, b"x"), key="k", where=["id=7"])


@pytest.mark.parametrize(
    "asked", [{"grep": "("}, {"key_regex": "["}, {"where": ["id"]}, {"where": ["=1"]}, {"where": ["a~("]}]
)
def test_what_cannot_be_asked(asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is no (regular expression|condition)"):
        compile_filter(Conditions(**asked))
