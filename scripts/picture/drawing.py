"""A recording as one SVG file that plays wherever pictures are shown: style sheets move it, no script does.

Every text stands where it was, and is visible for as long as it was there. What stays while the rest of its row changes
is drawn once. Readers who want no motion, and programs that know none, get the last moment.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from scripts.picture.recording import Frame, Panel
from scripts.picture.screen import Cell, Run, Style, find_runs, parse_rows

_CHARACTER: Final = 8.0
_ROW: Final = 18
_MARGIN: Final = 14
_HEAD: Final = 26
_GAP: Final = 12
_FONT: Final = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"

# Each colour twice: for light screens, and for dark ones.
_PALETTE: Final = {
    "panel": ("#f6f8fa", "#0d1117"),
    "edge": ("#c9d1d9", "#3d444d"),
    "title": ("#59636e", "#9198a1"),
    "text": ("#1f2328", "#e6edf3"),
    "1": ("#b3261e", "#ff7b72"),
    "2": ("#116329", "#56d364"),
    "3": ("#7d4e00", "#e3b341"),
    "4": ("#0550ae", "#79c0ff"),
    "5": ("#8250df", "#d2a8ff"),
    "6": ("#0b6b75", "#56d4dd"),
}


class Span(NamedTuple):
    """A run of a panel's row, and from when to when it is seen."""

    row: int
    run: Run
    start_s: float
    end_s: float


def draw(panels: Sequence[Panel], frames: Sequence[Frame], hold_s: float = 4.0) -> str:
    """The SVG document; the last moment stays for `hold_s` before all begins again."""
    length_s = frames[-1].at_s + hold_s
    width = max(panel.columns for panel in panels) * _CHARACTER + 2 * _MARGIN
    clock = _Clock(length_s)
    body: list[str] = []
    top = 0.0
    for number, panel in enumerate(panels):
        height = _HEAD + panel.lines * _ROW + _MARGIN
        body.append(f'<rect class="panel" x=".5" y="{top + 0.5}" width="{width - 1}" height="{height - 1}" rx="8"/>')
        body.append(f'<text class="title" x="{_MARGIN}" y="{top + 18}">{escape(panel.title)}</text>')
        screens = [(frame.at_s, frame.screens[number]) for frame in frames]
        body += [_draw_span(span, top, clock) for span in find_spans(screens, length_s)]
        top += height + _GAP
    size = f'width="{width:g}" height="{top - _GAP:g}" viewBox="0 0 {width:g} {top - _GAP:g}"'
    label = escape(" and ".join(panel.title for panel in panels), {'"': "&quot;"})
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'
    return "\n".join([head, _style(clock), *body, "</svg>"]) + "\n"


def find_spans(screens: Sequence[tuple[float, str]], length_s: float) -> Iterator[Span]:
    """What is seen of one terminal, and when; `screens` have the time from which each was seen."""
    rows = max(len(parse_rows(text)) for _, text in screens)
    shown: list[tuple[Cell, ...]] = [()] * rows
    open_runs: list[list[tuple[Run, float]]] = [[] for _ in range(rows)]
    for at_s, text in screens:
        now = parse_rows(text)
        for row in range(rows):
            cells = now[row] if row < len(now) else ()
            if cells == shown[row]:
                continue
            kept = _common(shown[row], cells)
            staying = [pair for pair in open_runs[row] if pair[0].column + len(pair[0].text) <= kept]
            yield from (Span(row, run, since_s, at_s) for run, since_s in open_runs[row][len(staying) :])
            begin = staying[-1][0].column + len(staying[-1][0].text) if staying else 0
            open_runs[row] = staying + [(run, at_s) for run in find_runs(cells, begin)]
            shown[row] = cells
    for row, runs in enumerate(open_runs):
        yield from (Span(row, run, since_s, length_s) for run, since_s in runs)


def _common(old: Sequence[Cell], new: Sequence[Cell]) -> int:
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    return same


class _Clock:
    """The style sheet's animations, one for all that come and go together."""

    def __init__(self, length_s: float) -> None:
        self.length_s = length_s
        self.names: dict[tuple[float, float], str] = {}

    def name(self, start_s: float, end_s: float) -> str:
        """Empty for what is always there."""
        moments = round(100 * start_s / self.length_s, 2), round(100 * end_s / self.length_s, 2)
        return "" if moments == (0, 100) else self.names.setdefault(moments, f"k{len(self.names)}")

    def rules(self) -> Iterator[str]:
        for (start, end), name in self.names.items():
            steps = [(0.0, "hidden" if start else "visible"), (start, "visible"), (end, "hidden")]
            frames = "".join(f"{at:g}%{{visibility:{how}}}" for at, how in dict(steps).items() if at < 100)
            yield f"@keyframes {name}{{{frames}}}"


def _draw_span(span: Span, top: float, clock: _Clock) -> str:
    name = clock.name(span.start_s, span.end_s)
    classes = _classes(span.run.style)
    if name:
        classes += ["a"] if span.end_s >= clock.length_s else ["a", "past"]
    x = _MARGIN + span.run.column * _CHARACTER
    y = top + _HEAD + (span.row + 1) * _ROW - 5
    words = [f'<text x="{x:g}" y="{y:g}" textLength="{len(span.run.text) * _CHARACTER:g}"']
    words += [f'class="{" ".join(classes)}"'] if classes else []
    style = [f"animation-name:{name}"] if name else []
    style += [f"fill:{span.run.style.colour}"] if span.run.style.colour.startswith("#") else []
    words += [f'style="{";".join(style)}"'] if style else []
    return " ".join(words) + f">{escape(span.run.text)}</text>"


def _classes(style: Style) -> list[str]:
    classes = ["bold"] if style.bold else []
    classes += ["faint"] if style.faint else []
    named = style.colour if not style.colour.isdigit() or int(style.colour) < 8 else str(int(style.colour) - 8)
    return [*classes, f"c{named}"] if named in _PALETTE else classes


def _style(clock: _Clock) -> str:
    rules = [
        f"text{{font:13.3px {_FONT};white-space:pre}}",
        ".title{font-weight:600}.bold{font-weight:700}.faint{opacity:.6}.past{visibility:hidden}",
        f".a{{animation:{clock.length_s:g}s step-end infinite}}",
        "@media (prefers-reduced-motion:reduce){.a{animation:none}}",
        _colours(0),
        f"@media (prefers-color-scheme:dark){{{_colours(1)}}}",
        *clock.rules(),
    ]
    return "\n".join(["<style>", *rules, "</style>"])


def _colours(which: int) -> str:
    named = {name: pair[which] for name, pair in _PALETTE.items()}
    rules = [
        f".panel{{fill:{named['panel']};stroke:{named['edge']}}}",
        f"text{{fill:{named['text']}}}.title{{fill:{named['title']}}}",
        *(f".c{name}{{fill:{colour}}}" for name, colour in named.items() if name.isdigit()),
    ]
    return "".join(rules)
