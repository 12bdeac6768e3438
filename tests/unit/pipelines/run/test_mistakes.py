"""What Spark says about a mistake, in one line."""

from pyspark.errors import PySparkException

from penstock.pipelines.run.mistakes import explain

FROM_PYTHON = """[PYTHON_DATA_SOURCE_ERROR] Failed to plan penstock: Traceback (most recent call last):
  File "planner.py", line 7, in main
    schema = source.schema()
formats.ddl.UnknownTypeError: value.schema: column 'id': there is no type BIGNIT in Spark; did you mean BIGINT?
SQLSTATE: 38000"""


class Said(PySparkException):
    """As it comes out of the JVM."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._text = text

    def getMessage(self) -> str:  # noqa: N802 - Spark's name
        return self._text


def test_an_error_in_python_is_told_by_its_cause() -> None:
    told = explain(Said(FROM_PYTHON))
    assert told == "value.schema: column 'id': there is no type BIGNIT in Spark; did you mean BIGINT?"


def test_codes_and_plans_are_left_out() -> None:
    text = "[UNRESOLVED_COLUMN] A column `a` cannot be resolved. SQLSTATE: 42703; line 1 pos 7;\n'Project ['a]"
    assert explain(Said(text)) == "A column `a` cannot be resolved."
