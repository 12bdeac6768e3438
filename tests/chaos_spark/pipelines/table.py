"""What became of every sink, as a table for people."""

from collections.abc import Sequence

from .run import Line

_HEAD = ("sink", "kills", "fed", "found", "lost", "doubled", "repeats recognised")


def format_lines(lines: Sequence[Line]) -> str:
    cells = [_HEAD, *map(_cells, lines)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)


def _cells(line: Line) -> tuple[str, ...]:
    verdict = line.verdict
    kills = ", ".join(f"{count} {kind}" for kind, count in line.kills.items())
    counts = (verdict.fed, verdict.found, len(verdict.lost), len(verdict.doubled), line.repeats)
    return verdict.name, kills or "-", *map(str, counts)
