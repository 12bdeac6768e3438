"""Records as text: every form, and nothing that drives a terminal."""

from typing import Any

import orjson
import pytest
import yaml
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from penstock.cli.record_text import (
    format_time,
    parse_fields,
    render_json,
    render_lines,
    render_people,
    render_raw,
    render_template,
    render_yaml,
)

# A title, a cleared screen, C1's CSI, a turned line, a lone carriage return, a bell.
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\rover\x00\x7f"
DANGEROUS = set("\x1b\x07\x9b\u202e\r\x00\x7f")


def record(value: bytes | None = b"v", key: bytes | None = None, **changes: Any) -> Message:
    fields: dict[str, Any] = {
        "timestamp": (TIMESTAMP_CREATE_TIME, 1_777_593_600_123),
        "offset": 7,
        "headers": None,
    }
    return Message(topic="t", partition=2, key=key, value=value, **fields | changes)


HOSTILE_RECORD = record(HOSTILE.encode(), HOSTILE.encode(), headers=[(HOSTILE.replace("\0", ""), HOSTILE.encode())])


def test_raw_is_values_alone() -> None:
    assert render_raw(b"\0")([record(b"a\n"), record(None), record(b"\xff")]) == b"a\n\0\0\xff\0"


def test_json() -> None:
    text = render_json(terminal=False)([record(b"v", b"\xff", headers=[("a", b"1"), ("a", None), ("b", b"\xfe")])])
    assert orjson.loads(text) == {
        "topic": "t",
        "partition": 2,
        "offset": 7,
        "timestamp": 1_777_593_600_123,
        "time": "2026-05-01T00:00:00.123Z",
        "key_base64": "/w==",
        "value": "v",
        "headers": [{"name": "a", "value": "1"}, {"name": "a", "value": None}, {"name": "b", "value_base64": "/g=="}],
    }
    assert text.endswith(b"\n")
    assert text.count(b"\n") == 1


def test_yaml_says_what_json_says() -> None:
    records = [record(b"1", b"k", headers=[("h", b"x")]), record(None), record(b"\xff"), record(b"a\nb: c\n")]
    documents = list(yaml.safe_load_all(render_yaml(terminal=False)(records)))
    assert documents == [orjson.loads(line) for line in render_json(terminal=False)(records).splitlines()]


def test_a_record_without_a_time_and_one_beyond_the_calendar() -> None:
    none = orjson.loads(render_json(terminal=False)([record(timestamp=(TIMESTAMP_NOT_AVAILABLE, -1))]))
    assert (none["timestamp"], none["time"]) == (None, None)
    far = orjson.loads(render_json(terminal=False)([record(timestamp=(TIMESTAMP_CREATE_TIME, 2**62))]))
    assert (far["timestamp"], far["time"]) == (2**62, None)
    assert format_time(-1) == "1969-12-31T23:59:59.999Z"
    assert b"4611686018427387904" in render_people(["timestamp"], colour=False)([record(timestamp=(1, 2**62))])


@pytest.mark.parametrize("form", ["people", "json", "yaml", "template"])
def test_a_hostile_record_does_not_drive_the_terminal(form: str) -> None:
    render = {
        "people": render_people(["topic", "key", "headers"], colour=False),
        "json": render_json(terminal=True),
        "yaml": render_yaml(terminal=True),
        "template": render_template("%k %h %s\\n", terminal=True),
    }[form]
    text = render([HOSTILE_RECORD]).decode()
    assert not set(text) & DANGEROUS
    assert text.count("owned") == text.count("evil") >= 3


def test_json_for_a_terminal_says_the_same() -> None:
    assert orjson.loads(render_json(terminal=True)([HOSTILE_RECORD])) == orjson.loads(
        render_json(terminal=False)([HOSTILE_RECORD])
    )


def test_a_line_for_people_cannot_be_forged() -> None:
    text = render_people(["offset", "key"], colour=False)([record(b"one\n@8  k  two", b"k\n@9")])
    assert text == b"@7  k\\x0a@9  one\n    @8  k  two\n"


def test_lines_for_people() -> None:
    render = render_people(["partition", "offset", "key", "headers"], colour=True)
    text = render([record(b"\xffv", b"k", headers=[("a", b"1"), ("b", None)]), record(None)]).decode()
    first, second = text.splitlines()
    assert first == "\x1b[2mp2\x1b[0m  \x1b[2m@7\x1b[0m  \x1b[36mk\x1b[0m  \x1b[2m{a=1, b=null}\x1b[0m  \\xffv"
    assert second.endswith("\x1b[36m-\x1b[0m  \x1b[2mnull\x1b[0m")


def test_lines_for_pipes_are_bytes() -> None:
    render = render_lines(["key", "timestamp", "partition", "offset", "headers", "topic"], b"|")
    text = render([record(b"\x1b\xff", b"\xfe", headers=[("a", b"1"), ("b", None)])])
    assert text == b"\xfe\t2026-05-01T00:00:00.123Z\t2\t7\ta=1,b=NULL\tt\t\x1b\xff|"


def test_templates() -> None:
    render = render_template("%t %p %o %k=%s (%K,%S) %T %h%%\\n\\x00", terminal=False)
    text = render([record(b"\xff", b"key", headers=[("a", b"1"), ("b", b"2")]), record(None)])
    assert text == b"t 2 7 key=\xff (3,1) 1777593600123 a=1,b=2%\n\0" + b"t 2 7 = (-1,-1) 1777593600123 %\n\0"
    for wrong in ("%q", "%", "\\q"):
        with pytest.raises(ValueError, match=r"is no (token|escape)"):
            render_template(wrong, terminal=False)


def test_fields() -> None:
    assert parse_fields(["key,offset", "topic"]) == ("key", "offset", "topic")
    assert parse_fields(["none"]) == ()
    assert "headers" in parse_fields(["all"])
    with pytest.raises(ValueError, match="'kye' is no field"):
        parse_fields(["kye"])


def test_headers_the_client_cannot_decode_do_not_end_the_reading() -> None:
    class Unreadable(Message):
        def headers(self) -> None:
            raise SystemError

    message = Unreadable(topic="t", partition=0, offset=0, value=b"v", timestamp=(1, 1))
    assert orjson.loads(render_json(terminal=False)([message]))["headers"] == [{"name": "\ufffd", "value": None}]
