"""Pipelines of a test: written as YAML, run in the shared session, against the shared broker."""

import string
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.pipelines.home.directory import Home, PipelineDirectory
from penstock.pipelines.home.status import Status
from penstock.pipelines.sinks import KINDS
from penstock.pipelines.spec import load
from tests.peers.broker import Broker
from tests.spark.observer import Observer, Received
from tests.spark.query import wait_for

from . import memory_sink
from .memory_sink import Memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipelines.run.run import Run

DEADLINE_S = 180.0
ORDERS = """\
sources:
  orders:
    topic: $orders
    format: json
    schema: "id BIGINT, shop STRING, amount BIGINT, at TIMESTAMP"\
"""


@dataclass
class Pipeline:
    """One pipeline in a folder of its own; may be run again and again, and its file changed in between."""

    folder: Path
    spark: "SparkSession"
    bootstrap: str
    seen: list[Status] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.folder / "pipeline.yaml"

    @property
    def directory(self) -> PipelineDirectory:
        return Home(self.folder / "home").pipeline(load(self.file).name)

    def write(self, text: str, **names: str) -> "Pipeline":
        """`text` without `server`, which is the test's broker; `$source` is a source of orders, `$name` a name."""
        source = string.Template(ORDERS).safe_substitute(names)
        text = string.Template(textwrap.dedent(text)).substitute(names, source=source)
        self.file.write_text(f"server: {self.bootstrap}\n{text}")
        return self

    def make_run(self, *, once: bool = True) -> "Run":
        from penstock.pipelines.run.run import Run

        return Run(load(self.file), self.directory, self.spark, once=once, on_status=self.seen.append)

    def run(self) -> Status:
        """What is there now; raises what it failed with."""
        run = self.make_run()
        run.start()
        assert run.wait(DEADLINE_S), run.status
        if run.error is not None:
            raise run.error
        return run.status

    @contextmanager
    def running(self) -> "Iterator[tuple[Run, Callable[[Callable[[], bool]], None]]]":
        """On and on until the block is left; hands out the run and a function that waits for a condition."""
        run = self.make_run(once=False)
        run.start()

        def wait(condition: Callable[[], bool]) -> None:
            def holds() -> bool:
                assert run.error is None, run.error
                return condition()

            wait_for(holds, lambda: run.status)

        try:
            yield run, wait
        finally:
            run.stop()
            assert run.wait(DEADLINE_S), run.status

    def records(self, topic: str) -> list[Received]:
        return [each for part in Observer(self.bootstrap).read(topic) for each in part]


@pytest.fixture
def pipeline(tmp_path: Path, spark: "SparkSession", broker: Broker) -> Pipeline:
    return Pipeline(tmp_path, spark, broker.bootstrap)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Memory:
    """The sink `memory: here` of a test."""
    monkeypatch.setitem(KINDS, "memory", memory_sink.__name__)
    monkeypatch.setitem(memory_sink.MEMORIES, "here", Memory())
    return memory_sink.MEMORIES["here"]
