"""A Spark session that is set up well on one machine.

Not named like its one function: a module `penstock.spark.session` would take the function's place in the package as
soon as anybody imported it.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark.setup.gateway import launch
from penstock.spark.setup.installation import GET_PYSPARK, Java, SetupError, find_java, find_pyspark
from penstock.spark.setup.warm import Warmth, find_warmth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GIB = 1 << 30
_LOGGING = Path(__file__).with_name("log4j2.properties")
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_JVM_OPTIONS = "spark.driver.extraJavaOptions"


def session(app_name: str = "penstock", master: str = "local[*]", **conf: object) -> "SparkSession":
    """The Spark session of this process, started if there is none.

    A process has one JVM. When it runs already, only settings that may change later (`spark.sql...`) take effect.

    Args:
        app_name: what Spark calls the application.
        master: where Spark runs; `local[*]` is this machine with a thread for each core.
        conf: Spark's settings, as `**{"spark.driver.memory": "4g"}`; they win over what is chosen here.

    Raises:
        SetupError: pyspark is not installed, or no Java that it can use.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SetupError(f"pyspark cannot be imported ({error}); {GET_PYSPARK}") from error

    java = find_java()
    # A copy in this machine's cache means nothing to executors elsewhere.
    warmth = find_warmth(find_pyspark(), java) if _is_local(master) else None
    wanted = {"spark.app.name": app_name, "spark.master": master, **settings(master, conf, warmth)}
    _choose_python(master)
    with _launching(java, warmth):
        launch(wanted)
        builder = SparkSession.builder
        for name, value in wanted.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()


def settings(master: str, conf: Mapping[str, object], warmth: Warmth | None = None) -> dict[str, str]:
    """Spark's settings for a session: those chosen here, and over them those in `conf`."""
    # A query that is stopped within foreachBatch has Spark match a long message, which takes more than the usual stack.
    jvm = [f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", "-Xss4m"]
    if warmth is not None:
        jvm += warmth.jvm_options()
    chosen = {
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        # Rows on their way to Python. Twice Spark's number: 2 MB at 100 bytes a row, where the round trip counts.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{_driver_memory_bytes() >> 20}m",
    }
    if _is_local(master):
        chosen |= {
            "spark.sql.shuffle.partitions": str(_threads(master)),
            # Nobody outside has any business with it, and the machine's name need not resolve.
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in conf.items()}
    # Of an option given twice the JVM takes the last.
    jvm += [given.pop(_JVM_OPTIONS)] if _JVM_OPTIONS in given else []
    return chosen | given | {_JVM_OPTIONS: " ".join(jvm)}


def _choose_python(master: str) -> None:
    """Python workers run what this process runs, not whichever python3 is on the PATH, unless somebody chose."""
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if _is_local(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@contextmanager
def _launching(java: Java, warmth: Warmth | None) -> Iterator[None]:
    """The environment in which Spark's scripts start the JVM; what this process starts otherwise does not get it."""
    wanted = {"JAVA_HOME": str(java.home)} | ({} if warmth is None else {"SPARK_HOME": str(warmth.home)})
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _threads(master: str) -> int:
    """How many threads `local`, `local[4]`, `local[4, 2]` (the second: failures) or `local[*]` has."""
    given = re.match(r"local\[\s*(\d+|\*)", master)
    if given is None:
        return 1
    return len(os.sched_getaffinity(0)) if given[1] == "*" else int(given[1])


def _driver_memory_bytes() -> int:
    """A quarter of what there is: Python workers, the page cache and perhaps a broker want memory too."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no limit, or none that can be seen
        there = min(there, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return max(_GIB, min(8 * _GIB, there // 4))
