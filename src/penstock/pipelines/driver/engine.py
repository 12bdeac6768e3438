"""What runs are made of: one Spark session for all pipelines of a driver."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from penstock.pipelines.errors import PipelineError
from penstock.pipelines.home import PipelineDirectory, Status, Wanted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Run(Protocol):
    """A pipeline at work; `penstock.pipelines.run.run.Run` is the real one."""

    @property
    def status(self) -> Status: ...

    @property
    def error(self) -> PipelineError | None: ...

    def start(self) -> None:
        """Prepares everything, then runs in a thread of its own. Raises `PipelineError`."""

    def stop(self) -> None:
        """Asks: the micro-batch at work is finished first."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended."""
        ...


class Engine(Protocol):
    """Opened once in a driver's life."""

    def make_run(self, wanted: Wanted, directory: PipelineDirectory) -> Run:
        """Raises `PipelineError`: the pipeline's file is gone or wrong. Called from threads, several at a time."""
        ...

    def is_alive(self) -> bool: ...

    def close(self) -> None: ...


class SparkEngine:
    """Spark, started when it is made, so that it is warm when the first pipeline comes."""

    def __init__(self, master: str) -> None:
        from penstock.pipelines.run.sessions import open_session

        self._spark: SparkSession = open_session(master, {})

    def make_run(self, wanted: Wanted, directory: PipelineDirectory) -> Run:
        from penstock.pipelines.run.run import Run as SparkRun
        from penstock.pipelines.spec import load

        spec = load(Path(wanted.file))
        if spec.name != directory.name:
            raise PipelineError(
                f"{wanted.file} is the pipeline {spec.name} now; it was {directory.name} when it was started. Start it "
                f"under its new name (penstock pipeline start {wanted.file}), or name it {directory.name} again"
            )
        run: Run = SparkRun(spec, directory, self._spark, once=wanted.once, command="the background driver")
        return run

    def is_alive(self) -> bool:
        """Whether the JVM is there that this process has started; over Spark Connect it is somebody else's to watch."""
        from pyspark import SparkContext

        # pyspark keeps the process it launched under `proc`; a gateway that somebody else launched has none.
        jvm = getattr(getattr(SparkContext, "_gateway", None), "proc", None)
        return jvm is None or jvm.poll() is None

    def close(self) -> None:
        self._spark.stop()
