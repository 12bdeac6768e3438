"""What Spark ends a query or a job with, as one of our errors: something to wait for, or something for a person.

Errors of Python workers and of the data source reach the driver as text with a traceback in it; the last line names the
class.
"""

import re
from typing import Final

from penstock.pipelines.errors import PipelineError, SinkError, SinkUnavailable

_RAISED: Final = re.compile(
    r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Unavailable|Unreachable|Refused|Failed))(?:: (.*))?$"
)
_JAVA: Final = re.compile(r"^:? ?[\w.$]+(?:Exception|Error): (.*)")
_DIED: Final = re.compile(r"Python worker exited unexpectedly[^\n]*|Python worker failed to connect back[^\n]*")
_MOST: Final = 500

_JVM_IS_GONE: Final = frozenset({"Py4JNetworkError", "ConnectionRefusedError", "ConnectionResetError"})
_UNAVAILABLE: Final = frozenset({"SinkUnavailable", "Unreachable"})
_TERMINAL: Final = frozenset(
    {
        "PipelineError",
        "SpecError",
        "ExpectationFailed",
        "SinkError",
        "OptionError",
        "FormatError",
        "UnknownTypeError",
        "DataLossError",
        "AnalysisException",
        "ParseException",
        "Unsupported",
    }
)
_TERMINAL_CONDITIONS: Final = re.compile(
    r"\[(UNRESOLVED_|TABLE_OR_VIEW_NOT_FOUND|STREAMING_STATEFUL|STATE_STORE_\w*SCHEMA|CAST_|DIVIDE_BY_ZERO|"
    r"ARITHMETIC_OVERFLOW|INVALID_|DATATYPE_MISMATCH|UNSUPPORTED_|NUMERIC_VALUE_OUT_OF_RANGE|_LEGACY_ERROR_TEMP_3102)"
)

_TAKEN_OVER: Final = "another run of this query has begun"  # going on would shut out the other in turn


class TaskFailed(PipelineError):
    """A task or a worker died, for a reason that may not come again."""

    retriable = True


def translate(error: Exception, where: str = "") -> PipelineError:
    """An error of a job as ours; `where` is said before it."""
    if isinstance(error, PipelineError):
        return error
    if type(error).__name__ in _JVM_IS_GONE:
        return PipelineError("Spark's JVM has ended. Start the pipeline again; it goes on behind its last micro-batch")
    text = str(error)
    name, reason = last_raised(text)
    told = f"{where}: {reason}" if where else reason
    if name in _UNAVAILABLE:
        return SinkUnavailable(told)
    if name in _TERMINAL or _TERMINAL_CONDITIONS.search(text) or _TAKEN_OVER in text:
        return SinkError(told) if where else PipelineError(told)
    return TaskFailed(told)


def last_raised(text: str) -> tuple[str, str]:
    """The class and the message of the innermost Python error in a text; else "" and the text's first line."""
    lines = [line.strip() for line in text.splitlines()]
    for line in reversed(lines):
        found = _RAISED.match(line)
        if found and found[1] not in ("PythonException", "Py4JJavaError", "StreamingQueryException"):
            return found[1], (found[2] or found[1])[:_MOST]
    if died := _DIED.search(text):
        return "", f"a task failed: {died[0]}"
    java = next((found[1] for line in lines if (found := _JAVA.match(line))), "")
    first = java or next((line for line in lines if line), "")
    return "", (re.sub(r"^\[[A-Z0-9_.]+\]\s*", "", first) or "failed without a word")[:_MOST]
