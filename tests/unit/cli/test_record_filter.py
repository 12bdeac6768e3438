"""Which records pass."""

import re
from typing import Any

import pytest
from confluent_kafka import Message

from penstock.cli.record_filter import Conditions, compile_filter

ORDER = (
    b'{"id": 7, "total": 12.5, "user": {"name": "ann"}, "items": [{"sku": "a"}], "paid": true, "note": null,'
    b' "big": 9007199254740993, "size": "10", "html": "<b>", "both": "salt and a=b"}'
)


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
    assert passes(traced, headers=["trace==2"])
    assert passes(record(headers=[("trace", b"=2")]), headers=["trace===2"])


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
        "id==7",
        "user.name==ann",
        'user.name="ann"',
        "user.name = 'ann'",
        "user . name=ann",
        "paid=True",
        "note!=none",
        "note=NULL",
        "big=9007199254740993",
        "big>9007199254740992",
        "size>9",
        "size<100",
        "html= <b>",
        'html="<b>"',
        "html~^<b>$",
        'both="salt and a=b"',
        "both~ and a=",
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
        "id==8",
        "big=9007199254740992",
        "total=1_2.5",
        "total>abc",
        "total<abc",
        "paid>1",
        "paid<zzz",
        "note<zzz",
        "items>0",
        "size=10.0",
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


@pytest.mark.parametrize(
    ("word", "way_out"),
    [
        ("id=>7", "there is no =>"),
        ("id=<7", "there is no =<"),
        ("id<>7", "there is no <>"),
        ("user.name=~ann", "there is no =~"),
        ("id===7", "there is no ==="),
        ("id!~7", "expected FIELD=VALUE"),
        (".id=7", "'.id' is no field"),
        ("user..name=ann", "expected name, user.name or items.0.id"),
        ("$.id=7", "is no field"),
        ("items[0].sku=a", "items.0.id"),
        ("id=7 and total>1", "--where for each"),
        ("id=7 || id=8", "--where for each"),
    ],
)
def test_a_slip_that_would_never_match_is_refused(word: str, way_out: str) -> None:
    with pytest.raises(ValueError, match=re.escape(way_out)):
        compile_filter(Conditions(where=[word]))


@pytest.mark.parametrize("word", ["trace!=1", "trace~^1", "=1", ""])
def test_headers_are_compared_with_equals_alone(word: str) -> None:
    with pytest.raises(ValueError, match="is no header; expected NAME, or NAME=VALUE"):
        compile_filter(Conditions(headers=[word]))


def test_a_text_of_thousands_of_digits_is_a_text() -> None:
    assert not passes(record(b'{"id": "' + b"1" * 5000 + b'"}'), where=["id>2"])
