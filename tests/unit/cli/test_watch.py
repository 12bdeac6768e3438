"""`--watch`: how it is typed, what is shown each time, and what a server that goes away does to it."""

import io
import json
import sys
from collections.abc import Callable
from typing import Any

import click
import pytest
import yaml

from penstock.cli import watch
from penstock.cli.failure import UNREACHABLE, CommandError
from penstock.cli.output import note_none, print_table

AWAY = CommandError("no server at there:9092", code=UNREACHABLE)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--watch", "--watch=2"),
        ("--watch orders", "--watch=2 orders"),
        ("orders --watch", "orders --watch=2"),
        ("--watch -o json", "--watch=2 -o json"),
        ("--watch 5 orders", "--watch 5 orders"),
        ("--watch 0.5", "--watch 0.5"),
        ("--watch=7 orders", "--watch=7 orders"),
        ("--watch --  5", "--watch=2 -- 5"),
        ("-- --watch", "-- --watch"),
        ("orders", "orders"),
    ],
)
def test_the_interval_may_be_left_out(typed: str, meant: str) -> None:
    assert watch.add_interval(typed.split()) == meant.split()


class Away:
    """A server whose client can be had, except when the script says it cannot."""

    def __init__(self, *clients: Any) -> None:
        self._clients = list(clients)

    def admin(self) -> Any:
        client = self._clients.pop(0)
        if isinstance(client, Exception):
            raise client
        return client


Ask = Callable[[Any], Any]


def script(*answers: Any) -> Ask:
    """Gives one answer after the other, then Ctrl+C."""
    left = list(answers)

    def ask(admin: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [admin, answer]

    return ask


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.watch.time.sleep", lambda _: None)
    monkeypatch.setattr("penstock.cli.watch._clock", lambda: "12:00:00")


def run(server: Away, ask: Ask, *, output: str = "table", interval_s: float | None = 3.0) -> None:
    watch.answer(server, interval_s, output, ask, lambda value: click.echo(f"value {value[1]}"))  # type: ignore[arg-type]


def test_once_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    run(Away(1), script("a"), interval_s=None)
    assert capsys.readouterr() == ("value a\n", "")


def test_tables_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Away(1), script("a", "b"))
    assert capsys.readouterr() == ("12:00:00\nvalue a\n\n12:00:00\nvalue b\n\n", "")


def test_json_is_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Away(1), script("a", "b"), output="json")
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [[1, "a"], [1, "b"]]


def test_yaml_is_a_document_each(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Away(1), script("a", "b"), output="yaml")
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == [[1, "a"], [1, "b"]]


def test_the_first_answer_has_to_come() -> None:
    with pytest.raises(CommandError, match="no server"):
        run(Away(AWAY), script())
    with pytest.raises(CommandError, match="no server"):
        run(Away(1), script(AWAY))


def test_a_server_that_is_away_is_told_and_asked_again_through_a_new_client(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Away(1, AWAY, 2), script("a", AWAY, "b", "c"), output="json")
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == [[1, "a"], [2, "b"], [2, "c"]]
    assert err == "12:00:00: no server at there:9092; trying again every 3 s\n" * 2


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_redrawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    ask = script("first", AWAY, "second")

    def noisy(admin: Any) -> Any:
        click.echo("a note", err=True)
        return ask(admin)

    with pytest.raises(KeyboardInterrupt):
        watch.answer(Away(1, 2), 3.0, "table", noisy, lambda value: print_table([[value[1]]], ["word"]))  # type: ignore[arg-type]
    drawn = screen.getvalue()
    frames = drawn.split("12:00:00: ")[1:]
    assert ["first" in frame for frame in frames] == [True, True, False, False]  # what is known stays meanwhile
    assert ["second" in frame for frame in frames] == [False, False, True, True]  # the end draws the last once more
    assert ["no server at there:9092; trying" in frame for frame in frames] == [False, True, False, False]
    assert ["a note" in frame for frame in frames] == [False, False, True, True]
    assert all("\x1b[1A" in frame for frame in frames[:-1])  # up again, over what was drawn
    assert drawn.rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_a_note_in_place_of_a_table_is_drawn_like_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(KeyboardInterrupt):
        watch.answer(Away(1), 3.0, "table", script("a"), lambda _: note_none("groups"))  # type: ignore[arg-type]
    assert "no groups" in screen.getvalue()
    assert capsys.readouterr().err == ""
