"""Which steps keep state, as Spark sees it: an operator over streaming rows that remembers some of them.

Read off the text of the analysed plan, which sessions of both kinds can give.
"""

import re
from typing import TYPE_CHECKING, Final, NamedTuple

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


class Line(NamedTuple):
    depth: int
    name: str
    streaming: bool
    """Whether it is, or lies over, a source that streams."""


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
    found = []
    for line in lines[at + 1 :]:
        if line.depth <= lines[at].depth:
            break
        if line.depth == lines[at].depth + 1:
            found.append(line.streaming)
    return found
