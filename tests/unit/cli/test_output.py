"""Tables, JSON, YAML and progress; plain where nobody looks."""

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout

import pytest
import yaml

from penstock.cli import output
from penstock.cli.failure import CommandError, report

ESCAPE = "\x1b"
ROWS = [["orders", 12, 1_000, None], ["a", 3, None, "compact"]]
COLUMNS = ["name", "partitions", "records", "policy"]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def _colours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_a_piped_table_is_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(ROWS, COLUMNS, title="Topics")
    assert capsys.readouterr().out == (
        "Topics\n"
        "NAME    PARTITIONS  RECORDS  POLICY\n"
        "orders          12     1000  -\n"
        "a                3        -  compact\n"
    )


def test_what_a_server_says_does_not_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]52;c;eA==\x07\x9b2Jé"
    output.print_table([[evil]], ["name"])
    output.print_fields({"name": evil})
    assert report(CommandError(evil)) == 1
    out, err = capsys.readouterr()
    for text in (out, err):
        assert "\x1b" not in text and "\x9b" not in text and "\x07" not in text
        assert r"\x1b]52;c;eA==\x07\x9b2Jé" in text


def test_an_empty_table_is_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table([], COLUMNS)
    assert capsys.readouterr().out == "NAME  PARTITIONS  RECORDS  POLICY\n"


@pytest.mark.usefixtures("_colours")
def test_a_table_on_a_terminal_is_drawn() -> None:
    with redirect_stdout(Screen()) as screen:
        output.print_table([*ROWS, ["[red]x[/red]", 1, 1, "markup is text"]], COLUMNS)
    text = screen.getvalue()
    assert ESCAPE in text
    assert "───" in text
    assert "[red]x[/red]" in text


@pytest.mark.usefixtures("_colours")
def test_a_table_that_a_terminal_is_too_narrow_for_is_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of one letter a line are no table; a terminal wraps, or is made wider."""
    needed = len("orders") + len("partitions") + len("records") + len("compact") + 2 * 4
    for width, is_drawn in ((needed, True), (needed - 1, False)):
        monkeypatch.setenv("COLUMNS", str(width))
        with redirect_stdout(Screen()) as screen:
            output.print_table(ROWS, COLUMNS)
        lines = screen.getvalue().splitlines()
        assert ("───" in screen.getvalue()) is is_drawn
        assert sum("orders" in line and "1000" in line for line in lines) == 1, lines


@pytest.mark.usefixtures("_colours")
def test_no_color_draws_without_a_single_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with redirect_stdout(Screen()) as screen:
        output.print_table(ROWS, COLUMNS, title="Topics")
        output.print_fields({"id": 1}, title="orders")
    assert "───" in screen.getvalue()
    assert ESCAPE not in screen.getvalue()


def test_fields(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_fields({"id": "x", "records": None}, title="orders")
    assert capsys.readouterr().out == "orders\n  id       x\n  records  -\n"


@pytest.mark.usefixtures("_colours")
def test_the_title_of_fields_stands_out_on_a_terminal() -> None:
    with redirect_stdout(Screen()) as screen:
        output.print_fields({"id": "x"}, title="orders")
    assert screen.getvalue().startswith(f"{ESCAPE}[1morders")


def test_forms_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    value = [{"name": "été", "count": 3, "none": None, "list": [1, 2]}]
    output.show(value, "json", pytest.fail)
    assert json.loads(capsys.readouterr().out) == value
    output.show(value, "yaml", pytest.fail)
    text = capsys.readouterr().out
    assert yaml.safe_load(text) == value
    assert "été" in text
    output.show(value, "table", lambda: print("table"))
    assert capsys.readouterr().out == "table\n"


def test_an_empty_list_is_a_note_for_people_and_a_list_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    def table() -> None:
        raise AssertionError("there is nothing to draw")

    for words, told in (
        ({}, "no topics\n"),
        ({"way_out": "make one"}, "no topics; make one\n"),
        ({"narrowed": True, "way_out": "make one"}, "no topics like that\n"),
    ):
        output.show_list([], "table", "topics", table, **words)  # type: ignore[arg-type]
        assert capsys.readouterr() == ("", told)
    for form in ("json", "yaml"):
        output.show_list([], form, "topics", table)
        assert capsys.readouterr() == ("[]\n", "")
    output.show_list(["a"], "table", "topics", lambda: print("drawn"))
    assert capsys.readouterr() == ("drawn\n", "")


def test_notes_are_no_part_of_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    output.note("by the way")
    assert capsys.readouterr() == ("", "by the way\n")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536 * 1024, "1.5 MiB"),
        (3 << 30, "3.0 GiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert output.format_bytes(count) == text


def test_progress_is_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("writing", 10) as bar:
        bar.advance(5)
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("_colours")
@pytest.mark.parametrize(("total", "shown"), [(10, "5/10 records"), (None, "5 records")])
def test_progress_on_a_terminal_goes_to_standard_error(total: float | None, shown: str) -> None:
    with (
        redirect_stdout(io.StringIO()) as answer,
        redirect_stderr(Screen()) as screen,
        output.progress("writing", total, unit="records") as bar,
    ):
        bar.advance(5)
    assert "writing" in screen.getvalue()
    assert shown in screen.getvalue()
    assert answer.getvalue() == ""


class Teletype(io.TextIOWrapper):
    """Standard error as a terminal has it, with bytes below."""

    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("_colours")
def test_a_note_has_a_line_of_its_own_above_a_bar() -> None:
    below = io.BytesIO()
    with redirect_stderr(Teletype(below, encoding="utf-8", errors="backslashreplace")):
        with output.progress("sending", 10) as bar:
            bar.advance(5)
            output.note("the server is away")
        text = below.getvalue().decode()
    assert re.search(r"(\n|\x1b\[2K)the server is away *\r?\n", text), repr(text)
