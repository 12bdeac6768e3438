"""The Spark session that pipelines run in, on whichever master."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from penstock.extras import tell_missing
from penstock.pipelines.errors import NotInstalled, PipelineError
from penstock.spark.setup.installation import SetupError
from penstock.spark.setup.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT: Final = "sc://"
_NEEDED: Final = ("pyspark", "pyarrow", "pandas", "numpy")
_NEEDED_TO_CONNECT: Final = ("grpc", "grpc_status")
_CHOSEN: Final = {
    # Pipelines share the driver: a large micro-batch of one must not hold up all others.
    "spark.scheduler.mode": "FAIR",
    # Progress is polled; more than the last few is never asked for.
    "spark.sql.streaming.numRecentProgressUpdates": "10",
}


def open_session(master: str, conf: Mapping[str, str]) -> "SparkSession":
    """
    Args:
        master: `local[*]`, `spark://host:port`, `sc://host:port` (Spark Connect), or any other that Spark knows.
        conf: Spark's settings; they win over what is chosen here.

    Raises:
        NotInstalled: pyspark or Java is missing, or what Spark Connect needs.
        PipelineError: Spark cannot be started or reached.
    """
    check_installed(master)
    _hush()
    try:
        if master.startswith(CONNECT):
            return _connect(master, conf)
        return session("penstock pipelines", master, **{**_CHOSEN, **conf})
    except SetupError as error:
        raise NotInstalled(str(error)) from error
    except Exception as error:
        raise PipelineError(f"Spark at {master!r} does not start: {_first_line(error)}") from error


def check_installed(master: str) -> None:
    """Raises `NotInstalled`: packages that a session needs are not there. Loads none of them."""
    needed = _NEEDED + (_NEEDED_TO_CONNECT if master.startswith(CONNECT) else ())
    if missing := next((name for name in needed if find_spec(name) is None), None):
        raise NotInstalled(tell_missing(missing))


def _connect(master: str, conf: Mapping[str, str]) -> "SparkSession":
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(master).config("spark.sql.session.timeZone", "UTC")
    for name, value in conf.items():
        builder = builder.config(name, value)
    opened: SparkSession = builder.getOrCreate()
    opened.range(1).count()  # a session is made without asking the server
    return opened


def new_session(spark: "SparkSession") -> "SparkSession":
    """A session with views and settings of its own, in the same driver."""
    made = spark.newSession()
    if is_connect(spark):
        made.conf.set("spark.sql.session.timeZone", "UTC")
    return made


def is_connect(spark: "SparkSession") -> bool:
    """Whether the session's driver is another process, elsewhere."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _hush() -> None:
    """pyspark writes every mistake in a query to standard error as well, as a page of JSON; we say it in a line."""
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
