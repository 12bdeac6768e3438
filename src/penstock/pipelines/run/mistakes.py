"""What Spark says about a wrong query, for people: one line, and the line of the query it is about."""

import re
from typing import TYPE_CHECKING, Final

from penstock.pipelines.errors import Finding
from penstock.pipelines.model import Place, Step
from penstock.pipelines.run.failures import last_raised

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

_CLASS: Final = re.compile(r"^\[([A-Z0-9_.]+)\]\s*")
_TAIL: Final = re.compile(r"\s*(SQLSTATE: \w+)?\s*(;.*)?$", re.DOTALL)
_TRACEBACK: Final = "Traceback (most recent call last)"
_MOST: Final = 600


def explain(error: "PySparkException") -> str:
    """The message without plans, stack traces and codes. Of an error in Python, as the data source's, the last line."""
    text = str(error.getMessage() if hasattr(error, "getMessage") else error) or str(error)
    if _TRACEBACK in text:
        return last_raised(text)[1]
    first = text.strip().partition("\n")[0]
    return _TAIL.sub("", _CLASS.sub("", first))[:_MOST]


def locate(step: Step, error: "PySparkException") -> Finding:
    """The message and the line of the step's query that it is about."""
    told = f"step {step.name}: {explain(error)}"
    return Finding(_line(step, error) or step.place, told)


def _line(step: Step, error: "PySparkException") -> Place | None:
    if step.sql_place is None:
        return None
    for context in error.getQueryContext() or ():
        if context.contextType().name != "SQL":
            continue  # a call on a DataFrame has no place in a text
        start = context.startIndex()
        return Place(step.sql_place.file, step.sql_place.line + step.sql[: max(0, start)].count("\n"))
    parsed = re.search(r"\(line (\d+), pos \d+\)", str(error))
    line = int(parsed[1]) - 1 if parsed else 0
    return Place(step.sql_place.file, step.sql_place.line + line)
