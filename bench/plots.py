"""The plots of the page: SVG with a transparent ground and colours that read on light and on dark."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.cells import CELLS, PACES, POINTS
from bench.figures import Result, figures

COLOURS = {"penstock": "#3b82c4", "kafka": "#d9822b", "floor": "#5a9e6f"}
NAMES = {"penstock": "Penstock", "kafka": "Apache Kafka", "floor": "C floor"}
_INK = "#808890"  # between black and white: text and lines show on both
_STYLE: Any = {
    "svg.hashsalt": "penstock",  # ids, otherwise random
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 8,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
_BAR_HEIGHT = 0.38
_INCHES_A_ROW = 0.34


def save_all(result: Result, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    drawings = {"throughput": draw_throughput, "latency": draw_latency, "cpu": draw_cpu}
    with matplotlib.rc_context(_STYLE):
        for name, draw in drawings.items():
            drawn = draw(result)
            drawn.savefig(
                directory / f"benchmarks-{name}.svg", transparent=True, bbox_inches="tight", metadata={"Date": None}
            )
            pyplot.close(drawn)


def draw_throughput(result: Result) -> Figure:
    names = [cell.name for cell in CELLS if middle(result, "penstock", f"{cell.name}-produce") is not None]
    titles = {cell.name: cell.title() for cell in CELLS}
    drawn, panels = pyplot.subplots(1, 2, figsize=(9, 1 + _INCHES_A_ROW * len(names)), sharey=True)
    for axes, figure in zip(panels, ("produce", "consume"), strict=True):
        _bars(axes, result, [f"{name}-{figure}" for name in names], ("penstock", "kafka"))
        axes.set_xlabel(f"{figure}, MB/s")
    _label(panels[0], [titles[name] for name in names])
    return drawn


def draw_cpu(result: Result) -> Figure:
    cells = [cell for cell in CELLS if middle(result, "penstock", f"{cell.name}-cpu") is not None]
    drawn, axes = pyplot.subplots(figsize=(6, 1 + _INCHES_A_ROW * len(cells)))
    _bars(axes, result, [f"{cell.name}-cpu" for cell in cells], ("penstock", "kafka"))
    floor = middle(result, "floor", "base-cpu")
    if floor is not None:
        axes.axvline(floor, color=COLOURS["floor"], linestyle="--", linewidth=1)
        axes.plot([], [], color=COLOURS["floor"], linestyle="--", linewidth=1, label=NAMES["floor"])
        axes.legend(loc="lower right")
    axes.set_xscale("log")
    axes.set_xlabel("broker CPU-s for 1 GB in and out")
    _label(axes, [cell.title() for cell in cells])
    return drawn


def draw_latency(result: Result) -> Figure:
    """A line from p50 over p99 to p99.9 for each broker and rate."""
    paces = [pace for pace in PACES if middle(result, "penstock", f"{pace.name}-p50") is not None]
    drawn, axes = pyplot.subplots(figsize=(6, 1 + _INCHES_A_ROW * len(paces)))
    for row, pace in enumerate(paces):
        for subject, shift in (("penstock", -_BAR_HEIGHT / 2), ("kafka", _BAR_HEIGHT / 2)):
            values = [middle(result, subject, f"{pace.name}-{point}") for point in POINTS]
            known = [value for value in values if value is not None]
            axes.plot(known, [row + shift] * len(known), color=COLOURS[subject], linewidth=1)
            for value, marker in zip(values, "o|d", strict=True):
                if value is not None:
                    axes.plot([value], [row + shift], marker, color=COLOURS[subject], markersize=5)
    for subject in ("penstock", "kafka"):
        axes.plot([], [], color=COLOURS[subject], label=NAMES[subject])
    for marker, point in zip("o|d", POINTS.values(), strict=True):
        axes.plot([], [], marker, color=_INK, markersize=5, label=point)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.set_xscale("log")
    axes.set_xlabel("ms")
    _label(axes, [pace.title("p50").replace(" p50", "") for pace in paces])
    return drawn


def middle(result: Result, subject: str, row: str) -> float | None:
    found = figures(result, subject, row)
    return statistics.median(found) if found else None


def _bars(axes: Axes, result: Result, rows: Sequence[str], subjects: Sequence[str]) -> None:
    for place, subject in enumerate(subjects):
        shift = (place - (len(subjects) - 1) / 2) * _BAR_HEIGHT
        values = [middle(result, subject, row) or 0.0 for row in rows]
        axes.barh(
            [row + shift for row in range(len(rows))],
            values,
            height=_BAR_HEIGHT,
            color=COLOURS[subject],
            label=NAMES[subject],
        )
    axes.legend(loc="lower right")


def _label(axes: Axes, titles: Sequence[str]) -> None:
    axes.set_yticks(range(len(titles)), titles)
    axes.invert_yaxis()
