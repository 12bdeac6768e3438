"""The picture in README: what terminals showed, for as long as they showed it, and small."""

from pathlib import Path
from xml.etree import ElementTree

from scripts.picture.drawing import draw, find_spans
from scripts.picture.recording import Frame, Panel
from scripts.picture.screen import Run, Style, find_runs, parse_rows

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "kill.svg"
SVG = "{http://www.w3.org/2000/svg}"
PLAIN = Style()


def test_colours_and_weights_are_read() -> None:
    (row,) = parse_rows("a\x1b[1;31mb\x1b[0m \x1b[38;5;197mc\x1b[38;2;1;2;3md\x1b[39m\x1b[2me\x1b[22mf \x1b[94mg   ")
    assert "".join(cell.character for cell in row) == "ab cdef g"
    assert find_runs(row, 0) == [
        Run(0, "a", PLAIN),
        Run(1, "b", Style("1", bold=True)),
        Run(3, "c", Style("#ff005f")),
        Run(4, "d", Style("#010203")),
        Run(5, "e", Style(faint=True)),
        Run(6, "f", PLAIN),
        Run(8, "g", Style("12")),
    ]


def test_a_style_goes_on_in_the_next_row() -> None:
    rows = parse_rows("\x1b[32ma\nb\x1b[m\nc")
    assert [row[0].style.colour for row in rows] == ["2", "2", ""]


def test_what_is_typed_is_drawn_once() -> None:
    spans = sorted(find_spans([(0.0, "$"), (1.0, "$ l"), (2.0, "$ ls")], 10.0))
    assert [(span.run.column, span.run.text, span.start_s, span.end_s) for span in spans] == [
        (0, "$", 0.0, 10.0),
        (2, "l", 1.0, 10.0),
        (3, "s", 2.0, 10.0),
    ]


def test_what_changes_ends_when_the_next_begins() -> None:
    spans = sorted(find_spans([(0.0, "n 10 x"), (1.0, "n 11 x"), (2.0, "")], 10.0))
    assert [(span.run.text, span.start_s, span.end_s) for span in spans] == [("n 10 x", 0.0, 1.0), ("n 11 x", 1.0, 2.0)]


def test_each_moment_can_be_read_off_the_spans() -> None:
    screens = [(0.0, "$ a\n"), (1.0, "$ ab\n-> 5%"), (2.0, "$ ab\n-> 10%\n$"), (3.0, "done\n$")]
    spans = list(find_spans(screens, 4.0))
    for at_s, text in screens:
        rows = [[" "] * 10 for _ in range(3)]
        for span in spans:
            if span.start_s <= at_s < span.end_s:
                rows[span.row][span.run.column : span.run.column + len(span.run.text)] = span.run.text
        assert "\n".join("".join(row).rstrip() for row in rows).rstrip() == text.rstrip()


def test_the_last_moment_is_what_is_seen_without_motion() -> None:
    drawn = draw([Panel("shell <1>", 20, 2)], [Frame(0.0, ("$ ls",)), Frame(5.0, ("$ ls\nfile & more",))], hold_s=5.0)
    texts = {text.text: text for text in ElementTree.fromstring(drawn).iter(f"{SVG}text")}  # noqa: S314 - our own
    assert set(texts) == {"shell <1>", "$ ls", "file & more"}
    assert texts["file & more"].get("class") == "a"
    assert "@keyframes k0{0%{visibility:hidden}50%{visibility:visible}}" in drawn
    gone = draw([Panel("shell", 20, 1)], [Frame(0.0, ("first",)), Frame(5.0, ("second",))], hold_s=5.0)
    assert 'class="a past" style="animation-name:k0">first</text>' in gone


def test_the_picture_is_small_and_shows_that_nothing_was_lost() -> None:
    text = PICTURE.read_text()
    assert len(text.encode()) < 200 * 1024
    root = ElementTree.fromstring(text)  # noqa: S314 - our own
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {"svg", "style", "rect", "text"}
    last = [each.text or "" for each in root.iter(f"{SVG}text") if "past" not in (each.get("class") or "").split()]
    assert any("lost 0, twice 0" in line and "echo" not in line for line in last)
