"""Log lines: their form, their limits, and that nothing a peer sends can forge one."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from penstock.observe import logs


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger(logs.ROOT)
    before = (root.level, list(root.handlers), ours.level)
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    ours.setLevel(before[2])


def to_text(level: str = "info", form: str = "text") -> io.StringIO:
    stream = io.StringIO()
    logs.configure(level, form, stream)
    return stream


def test_text_line() -> None:
    stream = to_text()
    logs.get_logger("storage").info("segment rolled", topic="orders", partition=3, took_s=0.12345678, note="a b")
    stamp, rest = stream.getvalue().split(" ", 1)
    assert stamp.endswith("Z")
    words = " ".join(rest.split())
    assert words == 'info storage segment rolled topic=orders partition=3 took_s=0.123457 note="a b"'


def test_json_line() -> None:
    stream = to_text(form="json")
    logs.get_logger("storage").warning("torn write", size_bytes=7, level="mine", peer=("h", 1), gone=None)
    line = json.loads(stream.getvalue())
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "warning",
        "subsystem": "storage",
        "event": "torn write",
        "size_bytes": 7,
        "field_level": "mine",
        "peer": "('h', 1)",
        "gone": None,
    }


def test_level() -> None:
    stream = to_text("warning")
    log = logs.get_logger("net")
    log.debug("no")
    log.info("no")
    log.warning("yes")
    assert len(stream.getvalue().splitlines()) == 1


def test_configuring_twice_does_not_double_lines() -> None:
    first, second = to_text(), to_text()
    logs.get_logger("net").info("once")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


EVIL = 'x\r\n2026-01-01T00:00:00.000Z info broker forged\x1b[2J\x85\u2028"'


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_value_can_start_a_line_or_move_the_cursor(form: str) -> None:
    stream = to_text(form=form)
    log = logs.get_logger("net")
    log.warning("bad client", client=EVIL)
    log.warning(EVIL)
    log.warning("bytes", raw=EVIL.encode())
    logging.getLogger("uvicorn.error").warning("said %s", EVIL)
    assert len(stream.getvalue().splitlines()) == 4
    assert stream.getvalue().replace("\n", "").isprintable()


def test_an_error_cannot_forge_a_line_either() -> None:
    stream = to_text()
    try:
        raise ValueError(EVIL)
    except ValueError:
        logs.get_logger("net").exception("handler failed", kind="Fetch")
    first, *trace = stream.getvalue().splitlines()
    assert "handler failed kind=Fetch" in first
    assert trace
    assert all(line.startswith("  | ") and line.isprintable() for line in trace)


def test_json_error_carries_its_traceback() -> None:
    stream = to_text(form="json")
    logs.get_logger("broker").critical("stops", error=OSError(5, "I/O error"))
    assert "I/O error" in json.loads(stream.getvalue())["exception"]


def test_long_values_are_clipped() -> None:
    stream = to_text()
    logs.get_logger("net").info("x" * 10_000, y="y" * 10_000)
    assert len(stream.getvalue()) < 2 * logs.MAX_VALUE_CHARS + 200
    assert "(+5904)" in stream.getvalue()


def test_limited_lines_say_how_many_were_left_out() -> None:
    stream, now = to_text(), [100.0]
    log = logs.Logger(logging.getLogger("penstock.net"), clock=lambda: now[0])
    for _ in range(50):
        log.limited("bad frame", per_second=2).warning("bad frame")
    log.limited("another", per_second=1).warning("another")
    assert len(stream.getvalue().splitlines()) == 3
    now[0] += 0.5
    log.limited("bad frame", per_second=2).warning("bad frame")
    log.limited("bad frame", per_second=2).warning("bad frame")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[-1].endswith("suppressed=48")


def test_a_bound_logger_shares_the_limit() -> None:
    stream = to_text()
    log = logs.Logger(logging.getLogger("penstock.net"), clock=lambda: 0.0)
    log.limited("k").info("one")
    log.bind(peer="p").limited("k").info("two")
    assert len(stream.getvalue().splitlines()) == 1


def test_limit_keys_are_bounded() -> None:
    log = logs.Logger(logging.getLogger("penstock.net"), clock=lambda: 0.0)
    for number in range(3 * logs.MAX_LIMIT_KEYS):
        log.limited(str(number))
    assert len(log._buckets) <= logs.MAX_LIMIT_KEYS


def test_libraries_are_limited_and_ours_are_not() -> None:
    stream = to_text()
    for _ in range(100):
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logs.get_logger("net").info("ours")
    text = stream.getvalue()
    assert text.count("ours") == 100
    assert 1 <= text.count("Invalid HTTP") <= 20


def test_a_dead_stream_harms_nobody() -> None:
    stream = to_text()
    stream.close()
    logs.get_logger("net").error("nobody hears")
