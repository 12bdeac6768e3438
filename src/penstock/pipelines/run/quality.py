"""Which rows of a node are good, and what is the matter with the others.

Every row gets one number, in which each expectation that does not hold has a bit, and the last bit says that it could
not be decoded. Rows that end here become issues, one a row, with the reasons, where the row comes from and what it was.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.pipelines.errors import Finding, SpecError
from penstock.pipelines.model import Action, Expectation, Source, Step
from penstock.pipelines.run.sources import ERROR, ORIGIN, RAW

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_BROKEN: Final = "_broken"
_MOST: Final = 60
UNDECODED: Final = 62
"""The bit of a row that could not be decoded."""
ORIGIN_PARTS: Final = ("topic", "partition", "offset", "file")
ISSUE_SCHEMA: Final = "node STRING, broken BIGINT, reason STRING, origin MAP<STRING, STRING>, key BINARY, value BINARY"


@dataclass(frozen=True, slots=True)
class Checked:
    """A node's rows, looked at.

    Attributes:
        good: those that go on.
        issues: the others and those that are only counted, in the columns of `ISSUE_SCHEMA`; None if there are none to
            expect.
    """

    good: "DataFrame"
    issues: "DataFrame | None"


def inspect(node: Source | Step, frame: "DataFrame", *, tried: bool = False) -> Checked:
    """Split a node's rows.

    Args:
        tried: the predicates were looked at before, on other rows of the same columns.

    Raises:
        SpecError: a predicate cannot be understood.
    """
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    decoded = ERROR in frame.columns and isinstance(node, Source)
    if not decoded and not node.expect:
        return Checked(frame, None)
    if len(node.expect) > _MOST:
        raise SpecError([Finding(node.place, f"{node.name} has {len(node.expect)} expectations; {_MOST} are allowed")])
    if not tried:
        for each in node.expect:
            _try(frame, node, each)
    judged = frame.withColumn(_BROKEN, _broken(node, decoded=decoded))
    ends = sum(1 << bit for bit, each in enumerate(node.expect) if each.otherwise is not Action.WARN)
    ends |= 1 << UNDECODED
    hidden = [name for name in (_BROKEN, ERROR, RAW) if name in judged.columns and (decoded or name == _BROKEN)]
    good = judged.where(F.col(_BROKEN).bitwiseAND(F.lit(ends).cast("bigint")) == 0).drop(*hidden)
    return Checked(good, _issues(node, judged.where(F.col(_BROKEN) != 0), decoded=decoded))


def _broken(node: Source | Step, *, decoded: bool) -> "Column":
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    total = F.lit(0).cast("bigint")
    for bit, each in enumerate(node.expect):
        total = total + F.when(F.expr(f"({each.that})"), F.lit(0)).otherwise(F.lit(1 << bit)).cast("bigint")
    if not decoded:
        return total
    # What holds for rows that are none is nobody's question.
    return F.when(F.col(ERROR).isNotNull(), F.lit(1 << UNDECODED).cast("bigint")).otherwise(total)


def _try(frame: "DataFrame", node: Source | Step, expectation: Expectation) -> None:
    """Let Spark look at a predicate alone, so that the mistake can be told where it stands."""
    from pyspark.errors import PySparkException

    from penstock.pipelines.run.mistakes import explain

    try:
        kind = frame.selectExpr(f"({expectation.that}) AS held").schema["held"].dataType.simpleString()
    except PySparkException as error:
        told = explain(error)
        raise SpecError(
            [Finding(expectation.place, f"expectation {expectation.name!r} of {node.name}: {told}")]
        ) from None
    if kind != "boolean":
        raise SpecError(
            [
                Finding(
                    expectation.place,
                    f"expectation {expectation.name!r} of {node.name} is {kind}, but must be true or false",
                )
            ]
        )


def _issues(node: Source | Step, rows: "DataFrame", *, decoded: bool) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    names = F.array(
        *[
            F.when(F.col(_BROKEN).bitwiseAND(F.lit(1 << bit).cast("bigint")) != 0, F.lit(each.name))
            for bit, each in enumerate(node.expect)
        ]
    )
    told = F.concat(F.lit("does not hold: "), F.array_join(names, ", "))
    columns = set(rows.columns)
    value = F.to_json(
        F.struct(*[F.col(f"`{name}`") for name in rows.columns if name not in (_BROKEN, ERROR, RAW, ORIGIN)])
    )
    as_bytes = value.cast("binary")
    return rows.select(
        F.lit(node.name).alias("node"),
        F.col(_BROKEN).alias("broken"),
        (F.coalesce(F.concat(F.lit("not decoded: "), F.col(ERROR)), told) if decoded else told).alias("reason"),
        _origin_map(rows).alias("origin"),
        _key(rows).alias("key"),
        (F.coalesce(F.col(RAW), as_bytes) if decoded and RAW in columns else as_bytes).alias("value"),
    )


def _origin_map(rows: "DataFrame") -> "Column":
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    fields = _origin_fields(rows)
    parts = [name for name in ORIGIN_PARTS if name in fields]
    if not parts:
        return F.create_map().cast("map<string,string>")
    pairs = [each for name in parts for each in (F.lit(name), F.col(f"{ORIGIN}.{name}").cast("string"))]
    return F.create_map(*pairs)


def _key(rows: "DataFrame") -> "Column":
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    return (F.col(f"{ORIGIN}.key") if "key" in _origin_fields(rows) else F.lit(None)).cast("binary")


def _origin_fields(rows: "DataFrame") -> list[str]:
    from pyspark.sql.types import StructType

    if ORIGIN not in rows.columns:
        return []
    kind = rows.schema[ORIGIN].dataType
    return kind.fieldNames() if isinstance(kind, StructType) else []
