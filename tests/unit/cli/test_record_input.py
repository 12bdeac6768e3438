"""Records out of lines, JSON and files, and what is said about input that is wrong."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cli.failure import CommandError
from penstock.cli.record_input import Form, Record, known_size, read_chunks


def read(content: bytes, form: Form = Form()) -> list[Record]:  # noqa: B008 - frozen
    records: list[Record] = []
    collect(content, form, records)
    return records


def collect(content: bytes, form: Form, records: list[Record]) -> None:
    """As `read`, but what came before an error stays in `records`."""
    # Wrong input is met in the middle of what was read at once; right input has its delimiters cut.
    standard = io.BytesIO(content) if form.json else _Trickle(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", SimpleNamespace(buffer=standard))
        for chunk in read_chunks(["-"], form):
            records += chunk.records


class _Trickle(io.BytesIO):
    """Hands out three bytes at a time, so that every delimiter is cut somewhere."""

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(3)


def values(records: Sequence[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def test_lines() -> None:
    assert values(read(b"one\ntwo\n\nlast")) == [b"one", b"two", b"", b"last"]
    assert values(read(b"\xff\r\n")) == [b"\xff\r"]
    assert read(b"") == []
    assert [record.place for record in read(b"a\nb\n")] == ["stdin:1", "stdin:2"]


def test_other_ends() -> None:
    assert values(read(b"one--two\n--", Form(delimiter=b"--"))) == [b"one", b"two\n"]
    assert values(read(b"one\r\ntwo\n", Form(crlf=True))) == [b"one", b"two"]


def test_keys_before_a_separator() -> None:
    records = read(b"a::1::x\n::2\n", Form(key_separator=b"::"))
    assert [(record.key, record.value) for record in records] == [(b"a", b"1::x"), (b"", b"2")]
    records = read(b"::\n", Form(key_separator=b"::", empty_is_null=True))
    assert [(record.key, record.value) for record in records] == [(None, None)]


def test_a_line_without_the_separator_stops_after_those_before_it() -> None:
    before: list[Record] = []
    with pytest.raises(CommandError, match="stdin:3: no key separator ':' in 'c'"):
        collect(b"a:1\nb:2\nc\nd:4\n", Form(key_separator=b":"), before)
    assert values(before) == [b"1", b"2"]


def test_what_all_records_get() -> None:
    form = Form(key=b"k", headers=[("a", b"1")], partition=3, timestamp_ms=5)
    assert read(b"v", form) == [Record("stdin", 1, b"v", b"k", (("a", b"1"),), 3, 5)]


def test_an_input_without_an_end_does_not_fill_the_memory() -> None:
    with pytest.raises(CommandError, match="stdin:2: no end within 10 bytes"):
        read(b"a\n" + b"x" * 100, Form(limit=10))
    with pytest.raises(CommandError, match="stdin: no end within 10 bytes"):
        read(b"x" * 100, Form(limit=10, whole=True))


def test_files(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"a\nb")
    two.write_bytes(b"c\n")
    names = [str(one), str(two)]
    records = [record for chunk in read_chunks(names, Form()) for record in chunk.records]
    assert [(record.place, record.value) for record in records] == [
        (f"{one}:1", b"a"),
        (f"{one}:2", b"b"),
        (f"{two}:1", b"c"),
    ]
    whole = [record for chunk in read_chunks(names, Form(whole=True)) for record in chunk.records]
    assert [(record.place, record.value) for record in whole] == [(str(one), b"a\nb"), (str(two), b"c\n")]
    assert known_size(names) == 5
    assert known_size([*names, "-"]) is None
    assert sum(chunk.size for chunk in read_chunks(names, Form())) == 5


def json_of(text: str, **form: Any) -> Record:
    (record,) = read(text.encode(), Form(json=True, **form))
    return record


def test_json_fields() -> None:
    record = json_of('{"key":"k","value":"v\\u00e9","partition":1,"timestamp":9,"topic":"x","offset":3,"time":"no"}')
    assert record == Record("stdin", 1, "vé".encode(), b"k", [], 1, 9)
    assert json_of('{"value":"v","topic":"x"}', route=True).topic == "x"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ('""', b""),
        ("true", b"true"),
        ("1", b"1"),
        ("1.10", b"1.10"),
        ("123456789012345678901234567890", b"123456789012345678901234567890"),
        ('{"a": [1, 2.50, {"b": null}], "c": "\\u00e9"}', '{"a":[1,2.50,{"b":null}],"c":"é"}'.encode()),
    ],
)
def test_json_values_lose_nothing(text: str, value: bytes | None) -> None:
    assert json_of(f'{{"value": {text}, "partition": 1, "timestamp": 7}}')[2:] == (value, None, [], 1, 7, None)


def test_json_bytes_and_keys() -> None:
    record = json_of('{"key_base64":"/w==","value_base64":"AA=="}')
    assert (record.key, record.value) == (b"\xff", b"\0")
    assert json_of('{"key":12345678901234567890123,"value":null}').key == b"12345678901234567890123"


@pytest.mark.parametrize(
    "headers",
    [
        '{"a":"1","b":null,"c":{"x":1.00}}',
        '[["a","1"],["b",null],["c",{"x":1.00}]]',
        '[{"name":"a","value":"1"},{"name":"b","value":null},{"name":"c","value_base64":"eyJ4IjoxLjAwfQ=="}]',
    ],
)
def test_json_headers(headers: str) -> None:
    record = json_of(f'{{"value":"v","headers":{headers}}}')
    assert record.headers == [("a", b"1"), ("b", None), ("c", b'{"x":1.00}')]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "unexpected end of data"),
        ("[1]", "expected a JSON object"),
        ('{"vlaue":1}', "unknown field 'vlaue'"),
        ("{}", "neither value nor value_base64"),
        ('{"value":"a","value_base64":"AA=="}', "both value and value_base64"),
        ('{"value_base64":"?"}', "value_base64 is no base64"),
        ('{"value_base64":1}', "value_base64 is no text"),
        ('{"value":"","partition":-1}', "partition is no whole number from 0 on"),
        ('{"value":"","partition":true}', "partition is no whole number"),
        ('{"value":1,"partition":1.5}', "partition is no whole number"),
        ('{"value":"","timestamp":0}', "timestamp is no whole number from 1 on"),
        ('{"value":"","headers":1}', "headers are no object and no list"),
        ('{"value":"","headers":[1]}', "a header is neither"),
        ('{"value":"","headers":[[1,"a"]]}', "a header's name is no text"),
        ('{"value":"","topic":1}', "topic is no text"),
        ('{"value":NaN}', "unexpected character"),
        ('{"value":"\x1b[2J"}', '{"value":"\\x1b[2J'),
        ('{"value":"' + "x" * 100, "…'"),
    ],
)
def test_json_that_is_wrong(text: str, reason: str) -> None:
    before: list[Record] = []
    with pytest.raises(CommandError, match=r"^stdin:3: .*; nothing from here on was sent$") as caught:
        collect(f'{{"value":"a"}}\n\n{text}\n{{"value":"b"}}'.encode(), Form(json=True), before)
    assert reason in str(caught.value)
    assert values(before) == [b"a"]
