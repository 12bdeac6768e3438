"""A figure as an SVG file of its own: no fonts, scripts or pictures from elsewhere, light or dark as the reader has it.

How wide a text will be is guessed from above, as fonts differ; what is cut off stands whole in the box's tooltip.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from penstock.pipelines.drawing.figure import Fact, Figure, Mood, Node, Role
from penstock.pipelines.drawing.layout import Bend, Cell, Columns, Extent, arrange, place_rows

_MARGIN: Final = 28
_GAP_X: Final = 84
_GAP_Y: Final = 24
_NARROW, _WIDE = 148, 268
_TITLE_PX, _NAME_PX, _TEXT_PX = 13.5, 9.2, 7.2
"""Width of a character of the title, of a name, and of any other text."""
_LONGEST_PX: Final = 720
_INDENT: Final = 18
_HEAD: Final = 54
_LINE: Final = 19
_HEADINGS: Final = {Role.SOURCE: "Sources", Role.STEP: "Steps", Role.SINK: "Sinks"}

# Each colour twice: for light screens, and for dark ones.
_PALETTE: Final = {
    "page": ("fill", "#fbfbfa", "#16181d"),
    "card": ("fill", "#ffffff", "#21252c"),
    "card, .rule": ("stroke", "#d9dbe0", "#3a404a"),
    "ink": ("fill", "#1d2330", "#eceff4"),
    "soft": ("fill", "#5f6775", "#a5adba"),
    "line": ("stroke", "#98a1b0", "#717b8a"),
    "tip": ("fill", "#98a1b0", "#717b8a"),
    "line.aside": ("stroke", "#c2882b", "#c99a4d"),
    "tip.aside": ("fill", "#c2882b", "#c99a4d"),
    "source": ("fill", "#0e8a92", "#38b6be"),
    "step": ("fill", "#3f6fd1", "#7aa2f0"),
    "sink": ("fill", "#8a4fc4", "#b98ae6"),
    "letters": ("fill", "#c2882b", "#d9ab5f"),
    "good": ("fill", "#1d7f45", "#6fcf97"),
    "warn": ("fill", "#9a6200", "#f0b95a"),
    "bad": ("fill", "#c22f2f", "#ff8a80"),
    "card.trouble": ("stroke", "#c22f2f", "#ff8a80"),
    "pill.plain": ("fill", "#e9ebef", "#343a44"),
    "pill.good": ("fill", "#dff3e6", "#1c3b29"),
    "pill.warn": ("fill", "#fbeccf", "#453411"),
    "pill.bad": ("fill", "#fbe0de", "#4a2120"),
}
_FONT: Final = "font-family: system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif;"
_SHAPES: Final = (
    f"text {{ {_FONT} font-size: 12px; font-variant-numeric: tabular-nums; }}",
    ".title { font-size: 20px; font-weight: 700; }",
    ".name { font-size: 14px; font-weight: 600; }",
    ".heading { font-size: 11px; font-weight: 600; letter-spacing: 0.08em; }",
    ".state { font-weight: 600; }",
    ".card { stroke-width: 1; }",
    ".card.trouble { stroke-width: 2; }",
    ".rule { stroke-width: 1; }",
    ".line { fill: none; stroke-width: 1.75; }",
    ".aside.line { stroke-dasharray: 5 4; }",
)


class _Box(NamedTuple):
    x: int
    y: int
    width: int
    height: int


def draw(figure: Figure) -> str:
    """The figure as an SVG document."""
    columns = arrange(figure)
    boxes = _place(figure, columns)
    width = max([box.x + box.width for box in boxes.values()] + [_measure_head(figure)], default=0) + _MARGIN
    height = max((box.y + box.height for box in boxes.values()), default=_top(figure)) + _MARGIN
    name = re.sub(r"[^A-Za-z0-9_-]", "-", figure.title)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-labelledby="{name}-title {name}-desc">',
        f'<title id="{name}-title">{escape(f"Pipeline {figure.title}")}</title>',
        f'<desc id="{name}-desc">{escape(tell(figure))}</desc>',
        f"<style>{_style(name)}</style>",
        f'<g class="{name}-figure">',
        f'<rect class="page" width="{width}" height="{height}" rx="12"/>',
        *_draw_head(figure),
        *_draw_headings(figure, boxes),
        *_draw_lines(columns, boxes, name),
    ]
    for node in figure.nodes:
        parts += _draw_box(node, boxes[node.key])
    return "\n".join([*parts, "</g>", "</svg>", ""])


def tell(figure: Figure) -> str:
    """The figure in sentences, for those who cannot see it."""
    said = [figure.description.rstrip(".")] if figure.description else []
    if figure.state:
        said.append(", ".join([f"State: {figure.state}", *(fact.text for fact in figure.facts)]))
    for node in figure.nodes:
        name = node.name if node.role is Role.LETTERS else f"{node.role} {node.name}"
        feeders = figure.feeders(node.key)
        about = [f"{name[0].upper()}{name[1:]} ({node.kind})"]
        about += [f"from {' and '.join(feeders)}"] if feeders else []
        said.append(", ".join([*about, *(fact.text for fact in node.facts)]))
    return ". ".join(said) + "."


def _style(name: str) -> str:
    """Rules that hold inside this figure only: a page may have several."""
    scope = f".{name}-figure"
    light = [_rule(scope, which, key, value) for which, (key, value, _) in _PALETTE.items()]
    dark = [_rule(scope, which, key, value) for which, (key, _, value) in _PALETTE.items()]
    shapes = [f"{scope} {rule}" for rule in _SHAPES]
    return "\n".join(["", *shapes, *light, "@media (prefers-color-scheme: dark) {", *dark, "}", ""])


def _rule(scope: str, which: str, key: str, value: str) -> str:
    return ", ".join(f"{scope} .{each.strip().lstrip('.')}" for each in which.split(",")) + f" {{ {key}: {value}; }}"


def _place(figure: Figure, columns: Columns) -> dict[Cell, _Box]:
    nodes = {node.key: node for node in figure.nodes}
    heights = {key: _HEAD + (_LINE * len(node.facts) + 12 if node.facts else 0) for key, node in nodes.items()}

    def extent(cell: Cell) -> Extent:
        if isinstance(cell, Bend):
            return Extent(_GAP_Y, 0)
        return Extent(heights[cell] + _GAP_Y, heights[cell] // 2)

    tops = place_rows(columns, extent)
    boxes: dict[Cell, _Box] = {}
    x = _MARGIN
    for column in columns.cells:
        width = max((_measure(nodes[cell]) for cell in column if isinstance(cell, str)), default=0)
        for cell in column:
            boxes[cell] = _Box(x, _top(figure) + 16 + tops[cell], width, 0 if isinstance(cell, Bend) else heights[cell])
        x += width + _GAP_X
    return boxes


def _measure(node: Node) -> int:
    texts = [len(node.name) * _NAME_PX, len(node.kind) * _TEXT_PX]
    texts += [len(fact.text) * _TEXT_PX + (12 if fact.mood is not Mood.PLAIN else 0) for fact in node.facts]
    return round(min(max(_NARROW, max(texts) + 2 * _INDENT), _WIDE))


def _measure_head(figure: Figure) -> int:
    texts = [len(line) * _TEXT_PX for line in _tell_head(figure)]
    return _MARGIN + round(max([*texts, len(figure.title) * _TITLE_PX + 140]))


def _tell_head(figure: Figure) -> list[str]:
    lines = (figure.description, " · ".join(fact.text for fact in figure.facts))
    return [_cut(line, _LONGEST_PX) for line in lines if line]


def _top(figure: Figure) -> int:
    """Where headings of columns stand."""
    return 76 + _LINE * len(_tell_head(figure))


def _draw_head(figure: Figure) -> Iterator[str]:
    yield f'<text class="ink title" x="{_MARGIN}" y="42">{escape(figure.title)}</text>'
    if figure.state:
        x = _MARGIN + round(len(figure.title) * _TITLE_PX) + 14
        width = round(len(figure.state) * _TEXT_PX + 26)
        mood = figure.mood.value
        yield f'<rect class="pill {mood}" x="{x}" y="25" width="{width}" height="22" rx="11"/>'
        ink = "soft" if figure.mood is Mood.PLAIN else mood
        yield (
            f'<text class="state {ink}" x="{x + width / 2:g}" y="40" text-anchor="middle">{escape(figure.state)}</text>'
        )
    for at, line in enumerate(_tell_head(figure)):
        yield f'<text class="soft" x="{_MARGIN}" y="{66 + _LINE * at}">{escape(line)}</text>'


def _draw_headings(figure: Figure, boxes: dict[Cell, _Box]) -> Iterator[str]:
    for role, text in _HEADINGS.items():
        places = [boxes[node.key].x for node in figure.nodes if node.role is role]
        if places:
            yield f'<text class="soft heading" x="{min(places)}" y="{_top(figure)}">{text.upper()}</text>'


def _draw_lines(columns: Columns, boxes: dict[Cell, _Box], name: str) -> Iterator[str]:
    yield "<defs>"
    for kind in ("", " aside"):
        yield (
            f'<marker id="{name}-tip{kind.strip()}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            f'markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
            f'<path class="tip{kind}" d="M0 0.5 L8 4 L0 7.5 z"/></marker>'
        )
    yield "</defs>"
    for hop in columns.hops:
        start, end = boxes[hop.start], boxes[hop.end]
        x, goal = start.x + start.width, end.x - (0 if isinstance(hop.end, Bend) else 3)
        y = start.y + (start.height - 16 if hop.aside and start.height else start.height // 2)
        to = end.y + end.height // 2
        middle = (x + goal) / 2
        through = f"M{start.x} {y} H{x} " if isinstance(hop.start, Bend) else f"M{x} {y} "
        kind = " aside" if hop.aside else ""
        tip = "" if isinstance(hop.end, Bend) else f' marker-end="url(#{name}-tip{kind.strip()})"'
        path = f"{through}C{middle:g} {y} {middle:g} {to} {goal} {to}"
        yield f'<path class="line{kind}" d="{path}"{tip}/>'


def _draw_box(node: Node, box: _Box) -> Iterator[str]:
    kind = "letters" if node.role is Role.LETTERS else node.role.value
    x, y, width, height = box
    mood = " trouble" if node.mood is Mood.BAD else ""
    yield f"<g aria-label={quoteattr(node.name)}>"
    yield f"<title>{escape(_tell_box(node))}</title>"
    yield f'<rect class="card{mood}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
    yield f'<rect class="{kind}" x="{x + 6}" y="{y + 10}" width="4" height="{_HEAD - 20}" rx="2"/>'
    room = width - 2 * _INDENT + 8
    left = x + _INDENT
    yield f'<text class="ink name" x="{left}" y="{y + 23}">{escape(_cut(node.name, room, _NAME_PX))}</text>'
    yield f'<text class="soft" x="{left}" y="{y + 41}">{escape(_cut(node.kind, room))}</text>'
    if node.facts:
        yield f'<path class="rule" d="M{x + 10} {y + _HEAD} H{x + width - 10}"/>'
    yield from _draw_facts(node.facts, left, y + _HEAD, room)
    yield "</g>"


def _draw_facts(facts: Sequence[Fact], left: int, top: int, room: int) -> Iterator[str]:
    for at, fact in enumerate(facts):
        y = top + 20 + _LINE * at
        if fact.mood is Mood.PLAIN:
            yield f'<text class="ink" x="{left}" y="{y}">{escape(_cut(fact.text, room))}</text>'
        else:
            mood = fact.mood.value
            yield f'<circle class="{mood}" cx="{left + 3}" cy="{y - 4}" r="3"/>'
            yield f'<text class="{mood}" x="{left + 12}" y="{y}">{escape(_cut(fact.text, room - 12))}</text>'


def _tell_box(node: Node) -> str:
    return "\n".join([f"{node.name}: {node.kind}", *(fact.text for fact in node.facts)])


def _cut(text: str, room: float, per_character: float = _TEXT_PX) -> str:
    most = int(room / per_character)
    return text if len(text) <= most else f"{text[: most - 1]}…"
