"""Rooms that may be compiled: their loads run, and a room without figures says why. Nothing is compiled here."""

from pathlib import Path

import pytest
from bench import room_loads, rooms

from penstock import compiled

SOURCES = Path(rooms.ROOT, "src", "penstock")


@pytest.mark.parametrize("room", room_loads.LOADS)
def test_a_room_is_of_sources_that_are_not_compiled_and_its_loads_run(room: str) -> None:
    for name in room.split():
        assert SOURCES.joinpath(*name.split(".")).with_suffix(".py").is_file()
        assert f"penstock.{name}" not in compiled.MODULES
    assert all(load.measure(3) >= 0 for load in room_loads.LOADS[room])


def test_a_child_measures_the_copy_it_is_told_to_and_says_when_that_is_not_compiled(tmp_path: Path) -> None:
    copies = rooms.Copies(tmp_path)
    (figure,) = copies.run("engine.leadership", 10, is_compiled=False)
    assert figure > 0
    with pytest.raises(rooms.RoomError, match=r"does not run compiled: .*compiled/penstock/engine/leadership\.py"):
        copies.run("engine.leadership", 10, is_compiled=True)


@pytest.fixture
def no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms.Copies, "__init__", lambda copies, directory: None)


@pytest.mark.usefixtures("no_copies")
def test_the_table_has_the_best_of_all_rounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    took = iter([[2.0], [1.5], [3.0], [1.0]])
    monkeypatch.setattr(rooms.Copies, "compile", lambda copies, room: None)
    monkeypatch.setattr(rooms.Copies, "run", lambda *_, is_compiled: next(took))
    assert rooms.main(["engine.leadership", "--rounds", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| `engine.leadership` | fetches of two followers | 2.00 | 1.00 | 0.50 |"
    ]


@pytest.mark.usefixtures("no_copies")
def test_a_room_that_does_not_compile_has_the_reason_in_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = "building\npenstock/net/frames.py:9: error: Unsupported\npenstock/net/frames.py:12: error: Another\n"

    def refuse(copies: rooms.Copies, room: str) -> None:
        raise rooms.RoomError(f"does not compile: {rooms.first_error(output)}")

    monkeypatch.setattr(rooms.Copies, "compile", refuse)
    assert rooms.main(["net.frames net.buffer"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| `net.frames`, `buffer` | does not compile: penstock/net/frames.py:9: error: Unsupported | | | |"
    ]


@pytest.mark.parametrize(("output", "said"), [("", "no reason given"), ("one\nlast\n", "last")])
def test_a_compiler_that_names_no_error_is_quoted_with_its_last_words(output: str, said: str) -> None:
    assert rooms.first_error(output) == said


def test_a_room_that_is_none_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        rooms.main(["engine.kitchen"])
    assert "no such room: engine.kitchen" in capsys.readouterr().err
