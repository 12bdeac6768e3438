"""Which steps keep state, as Spark sees it, and which keep it for ever: an operator over streaming rows that remembers
some of them.

Read off the text of the analysed plan, which sessions of both kinds can give.
"""

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STATEFUL: Final = re.compile(
    r"Aggregate|Deduplicate|Distinct|TransformWithState|FlatMapGroups\w*WithState|MapGroupsWithState|"
    # Spark refuses these on a stream, and says why better than anybody who ran them on each micro-batch could.
    r"Window\b|Sort\b|GlobalLimit|Offset\b|Intersect|Except|LateralJoin"
)
_OUTER: Final = re.compile(r"LeftOuter|LeftSemi|LeftAnti|ExistenceJoin|RightOuter|FullOuter")
# What a name of a WITH stands for is another part of the plan's text; taken for a stream, it is judged by Spark.
_STREAM: Final = re.compile(r"StreamingRelation|StreamingDataSourceV2|StreamingExecutionRelation|CTERelationRef")
_INDENT: Final = 3
_ALIAS: Final = re.compile(r"SubqueryAlias (?:\S+\.)?(\w+)")
_EVENT_TIME: Final = re.compile(r"[\w`.]+#\d+\w?-T\d+ms")
"""A column with a watermark, as a plan's text has it."""


class Line(NamedTuple):
    depth: int
    name: str
    streaming: bool
    """Whether it is, or lies over, a source that streams."""


class EndlessJoin(NamedTuple):
    """A join of two streams that never forgets a row.

    Attributes:
        line: the operator, as the plan says it.
        outer: whether it is a kind of which Spark must know when a row will find no partner any more.
        without: the sides that have no watermark; empty where only the condition lacks their times.
    """

    line: str
    outer: bool
    without: tuple[str, ...]


def find_state(plan: str) -> list[str]:
    """The operators of a plan's text that keep state of streaming rows, each as its line says it."""
    lines = _lines(plan)
    return [line.name for at, line in enumerate(lines) if line.streaming and _keeps_state(lines, at)]


def _keeps_state(lines: list[Line], at: int) -> bool:
    name = lines[at].name
    if not name.startswith("Join"):
        return bool(_STATEFUL.match(name))
    kind = name.removeprefix("Join").split(",")[0].strip()
    streaming = _children(lines, at)
    # A static side that is kept whole would be given out in every micro-batch; Spark refuses such joins on a stream.
    if all(streaming) or kind.startswith("FullOuter"):
        return True
    return bool(_OUTER.match(kind)) and (streaming[0] if kind.startswith("RightOuter") else streaming[-1])


def find_endless_joins(plan: str) -> list[EndlessJoin]:
    """Joins of two streams without a watermark on both sides, or without a condition on both times."""
    lines = _lines(plan)
    found = []
    for at, line in enumerate(lines):
        sides = _sides(lines, at) if line.name.startswith("Join") else []
        if len(sides) < 2 or not all(side[0].streaming for side in sides):
            continue
        without = tuple(_name_side(number, side) for number, side in enumerate(sides) if not _has_watermark(side))
        if without or len(set(_EVENT_TIME.findall(line.name))) < 2:
            kind = line.name.removeprefix("Join").split(",")[0].strip()
            found.append(EndlessJoin(line.name, bool(_OUTER.match(kind)), without))
    return found


def _has_watermark(side: list[Line]) -> bool:
    # What a name of a WITH stands for is elsewhere in the text; nothing is said against it.
    return any(line.name.startswith(("EventTimeWatermark", "CTERelationRef")) for line in side)


def _name_side(number: int, side: list[Line]) -> str:
    alias = next((found[1] for line in side if (found := _ALIAS.match(line.name))), "")
    return alias or ("the left side", "the right side")[number]


def explain_join(join: EndlessJoin) -> str:
    """What it does, and the way out."""
    what = (
        f"{' and '.join(join.without)} {'has' if len(join.without) == 1 else 'have'} no watermark"
        if join.without
        else "its condition does not compare their times"
    )
    then = "Spark refuses such an outer join" if join.outer else "Spark keeps all their rows for ever"
    return (
        f"it joins two streams, and {what}: {then}. Give both a watermark, as {{column: at, delay: 10 minutes}}, and a "
        "condition on their times, as AND b.at BETWEEN a.at AND a.at + INTERVAL 1 HOUR"
    )


def find_refusal(frame: "DataFrame", mode: str) -> str:
    """Why Spark would not start a query of this frame; "" where it would, or cannot be asked before.

    Args:
        mode: the output mode.
    """
    from pyspark.errors import PySparkException

    from penstock.pipelines.run.mistakes import explain

    java = getattr(frame, "_jdf", None)
    if java is None:
        return ""  # over Spark Connect it is told at the start
    jvm: Any = frame.sparkSession._jvm
    spark = jvm.org.apache.spark.sql
    modes = spark.streaming.OutputMode
    try:
        spark.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(
            java.queryExecution().analyzed(), modes.Update() if mode == "update" else modes.Append()
        )
    except PySparkException as error:
        return explain(error)
    return ""


def plan_of(frame: "DataFrame") -> str:
    """The analysed plan as text."""
    java = getattr(frame, "_jdf", None)
    if java is not None:
        return str(java.queryExecution().analyzed().toString())
    told = str(frame._explain_string(extended=True))  # type: ignore[operator]  # Spark Connect's
    analysed = told.partition("== Analyzed Logical Plan ==")[2].partition("\n==")[0]
    return "\n".join(analysed.strip("\n").splitlines()[1:])  # the first line is the schema


def _lines(plan: str) -> list[Line]:
    found: list[tuple[int, str]] = []
    for text in plan.splitlines():
        start = re.search(r"[^\s:+\-!~]", text)
        if start is not None:
            found.append((start.start() // _INDENT, text[start.start() :]))
    streaming = [bool(_STREAM.match(name)) for _, name in found]
    for at in range(len(found) - 1, -1, -1):
        below = at + 1
        while below < len(found) and found[below][0] > found[at][0]:
            streaming[at] = streaming[at] or streaming[below]
            below += 1
    return [Line(depth, name, flag) for (depth, name), flag in zip(found, streaming, strict=True)]


def _children(lines: list[Line], at: int) -> list[bool]:
    """Whether each input of an operator streams."""
    return [side[0].streaming for side in _sides(lines, at)]


def _sides(lines: list[Line], at: int) -> list[list[Line]]:
    """The inputs of an operator, each with all that lies under it."""
    found: list[list[Line]] = []
    for line in lines[at + 1 :]:
        if line.depth <= lines[at].depth:
            break
        if line.depth == lines[at].depth + 1:
            found.append([])
        found[-1].append(line)
    return found
