"""A terminal's screen as rows of cells, read from text with escape sequences as tmux gives it."""

import re
from itertools import groupby
from typing import NamedTuple

_ESCAPE = re.compile(r"\x1b\[([\d;:]*)m|\x1b[\]P].*?(?:\x07|\x1b\\)|\x1b\[[^a-zA-Z]*[a-zA-Z]|[\x0e\x0f]", re.DOTALL)
_BOLD, _FAINT, _NORMAL = 1, 2, 22
_DEFAULT_COLOUR = 39
_EXTENDED = 38


class Style(NamedTuple):
    """
    Attributes:
        colour: empty for the terminal's own, `0` to `15` for those with a name, or `#rrggbb`.
    """

    colour: str = ""
    bold: bool = False
    faint: bool = False


class Cell(NamedTuple):
    character: str
    style: Style


class Run(NamedTuple):
    """Cells of one style beside each other."""

    column: int
    text: str
    style: Style


def parse_rows(text: str) -> list[tuple[Cell, ...]]:
    """The rows of a screen, without the blanks at their ends."""
    style, rows = Style(), []
    for line in text.splitlines():
        cells: list[Cell] = []
        at = 0
        for found in _ESCAPE.finditer(line):
            cells += [Cell(character, style) for character in line[at : found.start()]]
            if found[1] is not None:
                style = _change(style, found[1])
            at = found.end()
        cells += [Cell(character, style) for character in line[at:]]
        while cells and cells[-1].character == " ":
            cells.pop()
        rows.append(tuple(cells))
    return rows


def find_runs(cells: tuple[Cell, ...], column: int) -> list[Run]:
    """What is to be drawn of a row from a column on; blanks at the ends of a run are not."""
    runs, at = [], column
    for style, group in groupby(cells[column:], key=lambda cell: cell.style):
        text = "".join(cell.character for cell in group)
        if text.strip():
            runs.append(Run(at + len(text) - len(text.lstrip()), text.strip(), style))
        at += len(text)
    return runs


def _change(style: Style, parameters: str) -> Style:
    codes = [int(code or 0) for code in re.split("[;:]", parameters)]
    while codes:
        code = codes.pop(0)
        if code == 0:
            style = Style()
        elif code == _BOLD:
            style = style._replace(bold=True)
        elif code == _FAINT:
            style = style._replace(faint=True)
        elif code == _NORMAL:
            style = style._replace(bold=False, faint=False)
        elif code == _EXTENDED:
            style = style._replace(colour=_take_colour(codes))
        elif code == _DEFAULT_COLOUR:
            style = style._replace(colour="")
        elif 30 <= code <= 37 or 90 <= code <= 97:
            style = style._replace(colour=str(code - 30 if code < 90 else code - 82))
    return style


def _take_colour(codes: list[int]) -> str:
    """The colour that the codes begin with, by its number among 256 or by its parts; they are taken off."""
    if codes.pop(0) == 2:
        parts = [codes.pop(0) for _ in range(3)]
    else:
        number = codes.pop(0)
        if number < 16:
            return str(number)
        if number >= 232:
            parts = [8 + 10 * (number - 232)] * 3
        else:
            steps = divmod(number - 16, 36)[0], (number - 16) // 6 % 6, (number - 16) % 6
            parts = [55 + 40 * step if step else 0 for step in steps]
    return "#" + "".join(f"{part:02x}" for part in parts)
