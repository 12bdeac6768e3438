"""A figure in characters: boxes and lines where they fit the width, else an indented list."""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.pipelines.drawing.channel import Port, route
from penstock.pipelines.drawing.figure import Figure, Mood, Node, Role
from penstock.pipelines.drawing.layout import Bend, Cell, Columns, Extent, Hop, arrange, place_rows

_NARROWEST: Final = 10
"""Characters of text a box needs so that a person makes something of it."""
_LEFT, _RIGHT, _UP, _DOWN = 1, 2, 4, 8
_UNICODE: Final = dict(
    enumerate(" ╴╶─╵┘└┴╷┐┌┬│┤├┼")  # by the sum of the directions that a line leaves a cell in
)
_ASCII: Final = {**dict.fromkeys(range(16), "+"), 0: " ", 1: "-", 2: "-", 3: "-", 4: "|", 8: "|", 12: "|"}
_DASHES: Final = {"─": "╌", "│": "╎", "╴": "╌", "╶": "╌", "-": ".", "|": ":"}
_BOLD, _FAINT = "1", "2"
_COLOURS: Final = {Mood.PLAIN: "", Mood.GOOD: "32", Mood.WARN: "33", Mood.BAD: "31"}
_Exit = tuple[Cell, bool]
"""Where lines leave a box or a bend; those that lead aside leave by themselves."""
_ROLE_COLOURS: Final = {Role.SOURCE: "36", Role.STEP: "34", Role.SINK: "35", Role.LETTERS: "33"}


def draw(figure: Figure, *, width: int, unicode: bool = True, colour: bool = False) -> str:
    """The figure in lines of at most `width` characters; where even narrow boxes do not fit, a list of what is in it.

    Args:
        unicode: False where the terminal's encoding has ASCII alone.
        colour: with ANSI colours.
    """
    columns = arrange(figure)
    lines = [*_headline(figure, width, colour), ""]
    plan = _plan(figure, columns, width)
    if plan is None:
        lines += _list(figure, width, colour)
    else:
        lines += _paint(figure, columns, plan, unicode).lines(colour)
    return "\n".join(line if unicode else _to_ascii(line) for line in lines)


def can_draw(encoding: str | None) -> bool:
    """Whether an encoding has the lines of boxes."""
    try:
        "".join((*_UNICODE.values(), *_DASHES.values(), "►·…")).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Plan:
    """
    Attributes:
        tops: row of each cell.
        lefts, widths: of each column, borders included.
        rows_out, tracks: between each column and the next: the row each line leaves by, and its track where it bends.
    """

    tops: Mapping[Cell, int]
    lefts: tuple[int, ...]
    widths: tuple[int, ...]
    rows_out: tuple[Mapping[_Exit, int], ...]
    tracks: tuple[Mapping[_Exit, int], ...]


def _plan(figure: Figure, columns: Columns, width: int) -> _Plan | None:
    nodes = {node.key: node for node in figure.nodes}
    heights = {key: _count_lines(node, columns) + 2 for key, node in nodes.items()}

    def extent(cell: Cell) -> Extent:
        # Rows that lines enter by are even, see `_connect`; so every height is.
        return Extent(2, 0) if isinstance(cell, Bend) else Extent(heights[cell] + 1 & ~1, 2)

    tops = place_rows(columns, extent, grid=2)
    rows_out, tracks = [], []
    for number in range(len(columns.cells) - 1):
        rows, found = _connect(columns.hops_from(number), tops)
        rows_out.append(rows)
        tracks.append(found)
    gaps = [3 + 2 * (max(found.values(), default=-1) + 1) for found in tracks]
    widths = _fit([_find_room(column, nodes) for column in columns.cells], width - sum(gaps))
    if widths is None:
        return None
    lefts = [0]
    for own, gap in zip(widths, gaps, strict=False):
        lefts.append(lefts[-1] + own + gap)
    return _Plan(tops, tuple(lefts), tuple(widths), tuple(rows_out), tuple(tracks))


def _connect(hops: list[Hop], tops: Mapping[Cell, int]) -> tuple[dict[_Exit, int], dict[_Exit, int]]:
    """By which row each line leaves, and its track. Lines go straight on where they can; where that would have two of
    them on each other, all leave by odd rows, while they enter by even ones."""
    enters: dict[_Exit, list[int]] = {}
    for hop in hops:
        enters.setdefault((hop.start, hop.aside), []).append(_row_in(hop.end, tops))
    for shift in (0, -1):
        rows = {(cell, aside): _row_out(cell, aside, tops, shift) for cell, aside in enters}
        found = route([Port(name, rows[name], tuple(targets)) for name, targets in enters.items()])
        if found is not None:
            return rows, found
    raise AssertionError("lines that leave and enter by different rows are always apart")


def _row_in(cell: Cell, tops: Mapping[Cell, int]) -> int:
    return tops[cell] if isinstance(cell, Bend) else tops[cell] + 2


def _row_out(cell: Cell, aside: bool, tops: Mapping[Cell, int], shift: int) -> int:
    if isinstance(cell, Bend):
        return tops[cell] - shift
    return tops[cell] + 3 if aside else tops[cell] + 2 + shift


def _count_lines(node: Node, columns: Columns) -> int:
    leads_aside = any(hop.aside and hop.start == node.key for hop in columns.hops)
    return max(2 + len(node.facts), 3 if leads_aside else 2)


def _words(node: Node) -> Iterator[str]:
    yield node.name
    yield node.kind
    yield from (fact.text for fact in node.facts)


class _Room(NamedTuple):
    """Characters of text that a column would like to have, and has to: names are not cut."""

    most: int
    least: int


def _find_room(column: tuple[Cell, ...], nodes: Mapping[str, Node]) -> _Room:
    here = [nodes[cell] for cell in column if isinstance(cell, str)]
    most = max((_measure(line) for node in here for line in _words(node)), default=0)
    names = max((_measure(node.name) for node in here), default=0)
    return _Room(most, min(most, max(names, _NARROWEST)))


def _fit(rooms: list[_Room], width: int) -> list[int] | None:
    """Widths of the columns, the widest ones cut until all fit; None where they do not."""
    frame = 4
    limit = max((room.most for room in rooms), default=0)
    while True:
        widths = [max(min(room.most, limit), room.least) + frame for room in rooms]
        if sum(widths) <= width:
            return widths
        if limit == 0:
            return None
        limit -= 1


class _Canvas:
    """Characters with colours, and lines that join where they meet."""

    def __init__(self, unicode: bool) -> None:
        self._lines = _UNICODE if unicode else _ASCII
        self._written: dict[tuple[int, int], tuple[str, str]] = {}
        self._across: dict[tuple[int, int], tuple[int, bool]] = {}
        self._along: dict[tuple[int, int], tuple[int, bool]] = {}
        self._joints: set[tuple[int, int]] = set()

    def write(self, x: int, y: int, text: str, style: str = "") -> None:
        for each in text:
            self._written[x, y] = each, style
            if _measure(each) == 2:
                self._written[x + 1, y] = "", style
            x += _measure(each)

    def draw_across(self, y: int, left: int, right: int, *, dashed: bool = False) -> None:
        for x in range(left, right + 1):
            bits = (_LEFT if x > left else 0) | (_RIGHT if x < right else 0)
            known, was_dashed = self._across.get((x, y), (0, True))
            self._across[x, y] = known | bits, dashed and was_dashed

    def draw_along(self, x: int, top: int, bottom: int, *, dashed: bool = False) -> None:
        for y in range(top, bottom + 1):
            bits = (_UP if y > top else 0) | (_DOWN if y < bottom else 0)
            known, was_dashed = self._along.get((x, y), (0, True))
            self._along[x, y] = known | bits, dashed and was_dashed

    def join(self, x: int, y: int) -> None:
        self._joints.add((x, y))

    def lines(self, colour: bool) -> list[str]:
        cells = {**self._trace(), **self._written}
        height = max((y for _, y in cells), default=-1) + 1
        rows: list[dict[int, tuple[str, str]]] = [{} for _ in range(height)]
        for (x, y), cell in cells.items():
            rows[y][x] = cell
        return [_join_row(row, colour) for row in rows]

    def _trace(self) -> dict[tuple[int, int], tuple[str, str]]:
        found = {}
        for at in self._across.keys() | self._along.keys():
            across, dashed_across = self._across.get(at, (0, True))
            along, dashed_along = self._along.get(at, (0, True))
            if across and along and at not in self._joints:
                across, dashed_across = 0, True  # passes below
            glyph = self._lines[across | along]
            dashed = dashed_across and dashed_along
            found[at] = (_DASHES.get(glyph, glyph) if dashed else glyph), (_FAINT if dashed else "")
        return found


def _join_row(row: Mapping[int, tuple[str, str]], colour: bool) -> str:
    text, last = "", ""
    for x in range(max(row, default=-1) + 1):
        glyph, style = row.get(x, (" ", ""))
        if colour and style != last:
            text += ("\x1b[0m" if last else "") + (f"\x1b[{style}m" if style else "")
            last = style
        text += glyph
    return (text + "\x1b[0m" if last else text).rstrip()


def _paint(figure: Figure, columns: Columns, plan: _Plan, unicode: bool) -> _Canvas:
    canvas = _Canvas(unicode)
    nodes = {node.key: node for node in figure.nodes}
    for number, column in enumerate(columns.cells):
        for cell in column:
            if isinstance(cell, str):
                _paint_box(canvas, nodes[cell], plan.lefts[number], plan.tops[cell], plan.widths[number], columns)
    for number in range(len(columns.cells) - 1):
        hops = columns.hops_from(number)
        for hop in hops:
            _paint_hop(canvas, hop, number, plan, "►" if unicode else ">")
    return canvas


def _paint_box(canvas: _Canvas, node: Node, left: int, top: int, width: int, columns: Columns) -> None:
    bottom = top + _count_lines(node, columns) + 1
    right = left + width - 1
    for y in (top, bottom):
        canvas.draw_across(y, left, right)
    for x in (left, right):
        canvas.draw_along(x, top, bottom)
        canvas.join(x, top)
        canvas.join(x, bottom)
    room = width - 4
    canvas.write(left + 2, top + 1, _cut(node.name, room), f"{_BOLD};{_ROLE_COLOURS[node.role]}")
    canvas.write(left + 2, top + 2, _cut(node.kind, room))
    for at, fact in enumerate(node.facts):
        canvas.write(left + 2, top + 3 + at, _cut(fact.text, room), _COLOURS[fact.mood])


def _paint_hop(canvas: _Canvas, hop: Hop, number: int, plan: _Plan, arrow: str) -> None:
    name = (hop.start, hop.aside)
    row_out, row_in = plan.rows_out[number][name], _row_in(hop.end, plan.tops)
    edge = plan.lefts[number] + plan.widths[number] - 1
    goal = plan.lefts[number + 1] - 1
    start = edge
    if isinstance(hop.start, Bend):
        start = _paint_bend(canvas, hop, number, row_out, plan)
    else:
        canvas.join(edge, row_out)
    track = plan.tracks[number].get(name)
    if track is None:
        canvas.draw_across(row_out, start, goal, dashed=hop.aside)
    else:
        x = edge + 2 + 2 * track
        canvas.draw_across(row_out, start, x, dashed=hop.aside)
        canvas.draw_along(x, min(row_out, row_in), max(row_out, row_in), dashed=hop.aside)
        canvas.draw_across(row_in, x, goal, dashed=hop.aside)
        canvas.join(x, row_out)
        canvas.join(x, row_in)
    if isinstance(hop.end, Bend):
        canvas.draw_across(row_in, goal, goal + 1, dashed=hop.aside)
    else:
        canvas.write(goal, row_in, arrow, _FAINT if hop.aside else "")


def _paint_bend(canvas: _Canvas, hop: Hop, number: int, row_out: int, plan: _Plan) -> int:
    """Takes a line through a column, down a row where it has to leave by another one; returns where it goes on from."""
    left, top = plan.lefts[number], plan.tops[hop.start]
    edge = left + plan.widths[number] - 1
    canvas.draw_across(top, left, edge, dashed=hop.aside)
    if row_out != top:
        canvas.draw_along(edge, top, row_out, dashed=hop.aside)
        canvas.join(edge, top)
        canvas.join(edge, row_out)
    return edge


def _headline(figure: Figure, width: int, colour: bool) -> Iterator[str]:
    words = [(figure.title, _BOLD)]
    if figure.state:
        words.append((figure.state, _COLOURS[figure.mood]))
    words += [(fact.text, _COLOURS[fact.mood]) for fact in figure.facts]
    yield from _flow(words, width, colour)
    if figure.description:
        yield _style(_cut(figure.description, width), _FAINT, colour)


def _list(figure: Figure, width: int, colour: bool) -> Iterator[str]:
    """Each box in a line, under what it is; what it gets rows from and how it does below."""
    names = max((_measure(node.name) for node in figure.nodes if node.role is not Role.LETTERS), default=0)
    for role in Role:
        members = [node for node in figure.nodes if node.role is role]
        if not members:
            continue
        yield str(role) if role is Role.LETTERS else f"{role}s"
        for node in members:
            name = "" if role is Role.LETTERS else node.name + " " * (names - _measure(node.name) + 2)
            room = max(width - 2 - _measure(name), _NARROWEST)
            yield f"  {_style(name, f'{_BOLD};{_ROLE_COLOURS[role]}', colour)}{_cut(node.kind, room)}"
            words = [(f"from {', '.join(feeders)}", _FAINT)] if (feeders := figure.feeders(node.key)) else []
            words += [(fact.text, _COLOURS[fact.mood]) for fact in node.facts]
            yield from (f"    {line}" for line in _flow(words, max(width - 4, _NARROWEST), colour))


def _flow(words: Sequence[tuple[str, str]], width: int, colour: bool) -> Iterator[str]:
    """Words with styles, two spaces between, in as many lines as it takes."""
    line, length = "", 0
    for text, style in words:
        text = _cut(text, width)
        if line and length + 2 + _measure(text) > width:
            yield line
            line, length = "", 0
        gap = "  " if line else ""
        line += gap + _style(text, style, colour)
        length += len(gap) + _measure(text)
    if line:
        yield line


def _style(text: str, style: str, colour: bool) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if colour and style and text else text


def _cut(text: str, room: int) -> str:
    if _measure(text) <= room:
        return text
    kept = ""
    for each in text:
        if _measure(kept) + _measure(each) >= room:
            break
        kept += each
    return f"{kept}…"


def _measure(text: str) -> int:
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else not unicodedata.combining(each) for each in text)


def _to_ascii(line: str) -> str:
    line = line.replace("…", "~").replace("·", "-")
    return line.encode("ascii", "replace").decode()
