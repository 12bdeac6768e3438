"""One pipeline from its start to its end: prepares sinks, starts the query, watches it, and begins it again after
trouble that may pass."""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.pipelines.errors import Changed, Finding, PipelineError, SpecError
from penstock.pipelines.home.directory import Identity, PipelineDirectory
from penstock.pipelines.home.status import SourceStatus, State, Status, now_ms
from penstock.pipelines.model import Spec
from penstock.pipelines.run import beginning
from penstock.pipelines.run import counters as totals
from penstock.pipelines.run.batch import BatchWriter, Stopped
from penstock.pipelines.run.brokers import asking
from penstock.pipelines.run.failures import TaskFailed, translate
from penstock.pipelines.run.graph import Graph, build
from penstock.pipelines.run.sessions import is_connect, new_session
from penstock.pipelines.run.sources import Bounds
from penstock.pipelines.run.watching import Watch, read_query
from penstock.pipelines.spec.fingerprint import changes, fingerprint
from penstock.pipelines.spec.functions import load_function

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_EVERY_S: Final = 0.2
_SAVE_EVERY_S: Final = 0.5
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 30.0


class Run:
    """A run of a pipeline. `start` once; then `wait`, or `stop` and `wait`.

    Args:
        directory: the pipeline's, in a home.
        once: read what is there now, then end.
        name: what sinks know the pipeline as; its own name.
        command: who runs it, for others that would like to.
        bounds: which part of topic sources is read, by the source's name.
        on_status: called with each new status, from a thread of the run's own.
    """

    def __init__(
        self,
        spec: Spec,
        directory: PipelineDirectory,
        spark: "SparkSession",
        *,
        once: bool = False,
        name: str = "",
        command: str = "penstock pipeline run",
        bounds: Mapping[str, Bounds] | None = None,
        on_status: Callable[[Status], None] | None = None,
    ) -> None:
        self._spec = spec
        self._directory = directory
        self._spark = new_session(spark)
        self._once = once
        self._name = name or spec.name
        self._command = command
        self._bounds = bounds
        self._on_status = on_status
        self._held = ExitStack()
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._saved_s = 0.0
        self._shown: tuple[State, str] | None = None
        self._writer: BatchWriter | None = None
        self._graph: Graph | None = None
        self.error: PipelineError | None = None
        self._watch = Watch(spec, self._first_status(), totals.Counters())

    @property
    def status(self) -> Status:
        return self._watch.status

    def start(self) -> None:
        """Check and prepare everything, then run in a thread.

        Raises:
            PipelineError: it cannot begin; nothing was read or written.
        """
        self._held.enter_context(self._directory.locked(self._command))
        try:
            self._prepare_or_wait()
        except BaseException as error:
            self._fail(error)
            self._held.close()
            self._ended.set()
            raise
        self._thread = threading.Thread(target=self._work, name=f"pipeline {self._spec.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end; the micro-batch at work is finished."""
        self._stop.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended."""
        return self._ended.wait(timeout_s)

    # --- before the first row

    def _prepare_or_wait(self) -> None:
        """A pipeline that has run before waits for brokers and sinks that are away; a new one says so at once."""
        try:
            self._prepare()
        except PipelineError as error:
            if not error.retriable or self._directory.load_identity() is None:
                raise
            self._show(State.WAITING, str(error))

    def _prepare_patiently(self) -> None:
        until, wait_s = time.monotonic() + self._spec.patience_s, _FIRST_WAIT_S
        while not self._stop.wait(wait_s):
            try:
                return self._prepare()
            except PipelineError as error:
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                if not error.retriable or time.monotonic() + wait_s > until:
                    raise
                self._show(State.WAITING, str(error))

    def _prepare(self) -> None:
        self._watch.counted(totals.load(self._directory.path))
        self._show(State.STARTING, "checking")
        self._spec = with_functions(self._spec)
        apply_settings(self._spec, self._spark)
        check_unchanged(self._spec, self._directory)
        self._check_checkpoint()
        new = self._directory.load_identity() is None
        bounds = self._bounds or beginning.settle(
            self._spec, self._directory.path, begun=self._has_begun(), new=new and not self._has_begun()
        )
        self._watch.began = {name: each.start for name, each in bounds.items()}
        self._watch.settle(self._directory.checkpoint)
        self._graph = build(self._spec, self._spark, bounds)
        writer = BatchWriter(
            self._graph, self._name, self._directory.path, str(self._directory.checkpoint), self._directory.events
        )
        self._show(State.STARTING, "preparing sinks")
        writer.prepare()
        self._note_identity()
        self._watch.status = replace(self._watch.status, stateful=self._graph.is_stateful)
        self._writer = writer

    def _note_identity(self) -> None:
        file = os.path.abspath(self._spec.file) if self._spec.file else ""
        known = self._directory.load_identity()
        if known is None:
            self._directory.save_identity(Identity(fingerprint(self._spec), file, now_ms()))
        elif known.spec_file != file:
            self._directory.save_identity(replace(known, spec_file=file))

    def _has_begun(self) -> bool:
        return any((self._directory.checkpoint / "offsets").glob("[0-9]*"))

    def _check_checkpoint(self) -> None:
        """A checkpoint that is gone, or another one, would have all rows written again under a new name."""
        known = totals.load(self._directory.path).query
        if not known:
            return
        found = read_query(self._directory.checkpoint)
        if found != known:
            raise PipelineError(
                f"pipeline {self._spec.name}: its checkpoint {self._directory.checkpoint} is "
                f"{'gone' if found is None else 'not the one it wrote with'} (query {known}). Restore it, or begin "
                f"anew with: penstock pipeline reset {self._spec.name}"
            )

    # --- at work

    def _work(self) -> None:
        try:
            self._run()
            self._show(State.STOPPED if self._stop.is_set() else State.FINISHED)
        except BaseException as error:  # noqa: BLE001 - the end of a thread: whoever waits is told
            self._fail(error)
        finally:
            if self._writer is not None:
                self._writer.close()
            self._held.close()
            self._ended.set()

    def _run(self) -> None:
        if self._writer is None:
            self._prepare_patiently()
        with asking(self._spec, self._watch):
            self._run_queries()

    def _run_queries(self) -> None:
        wait_s, since = _FIRST_WAIT_S, time.monotonic()
        while not self._stop.is_set():
            before = self._watch.status.batch
            failure = self._run_query()
            if failure is None:
                return
            if self._watch.status.batch > before:
                wait_s, since = _FIRST_WAIT_S, time.monotonic()  # it got on: this is new trouble
            since = max(since, self._watch.missed_s)  # there was nothing to read, so nothing else tells that it got on
            told = translate(failure)
            if not told.retriable or time.monotonic() + wait_s - since > self._spec.patience_s:
                raise told from failure
            self._watch.status = replace(self._watch.status, restarts=self._watch.status.restarts + 1)
            self._directory.events.write("warning", "restart", str(told), wait_s=wait_s)
            self._show(State.WAITING, str(told))
            self._stop.wait(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _run_query(self) -> Exception | None:
        """Until it ends or is stopped; returns what it failed with."""
        writer = self._writer
        assert writer is not None and self._graph is not None
        writer.observer, writer.failure = self._watch, None
        query = self._start_query(self._graph, writer)
        self._directory.events.write("info", "started", "the query runs", query=str(query.id), pid=os.getpid())
        while query.isActive and not self._stop.is_set():
            self._look(query)
            self._show(State.RUNNING)
            self._stop.wait(_LOOK_EVERY_S)
        if self._stop.is_set():
            self._show(State.STOPPING)
            writer.stop(query.stop)
        self._look(query)
        self._watch.settle(self._directory.checkpoint)
        failure = query.exception()
        if failure is None or isinstance(writer.failure, Stopped) or (self._stop.is_set() and writer.failure is None):
            return None
        return writer.failure or failure

    def _start_query(self, graph: Graph, writer: BatchWriter) -> "StreamingQuery":
        if not is_connect(self._spark):
            # The stream's thread inherits it: pipelines take turns, micro-batches of one do not.
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._spec.name)
        sink = graph.stream().writeStream.outputMode(self._spec.mode).queryName(self._name)
        sink = sink.option("checkpointLocation", str(self._directory.checkpoint)).foreachBatch(writer)
        if self._once:
            sink = sink.trigger(availableNow=True)
        elif self._spec.every_s > 0:
            sink = sink.trigger(processingTime=f"{self._spec.every_s * 1000:.0f} milliseconds")
        from pyspark.errors import PySparkException

        from penstock.pipelines.run.mistakes import explain

        try:
            return sink.start()
        except PySparkException as error:
            told = translate(error)
            if isinstance(told, TaskFailed):
                raise PipelineError(f"pipeline {self._spec.name}: Spark does not start it: {explain(error)}") from error
            raise told from error

    def _look(self, query: "StreamingQuery") -> None:
        for progress in query.recentProgress:
            self._watch.progress(json.loads(progress.json))

    # --- what others see

    def _first_status(self) -> Status:
        """Rows read are counted on from the last run."""
        last: Status | None = None
        with suppress(PipelineError):
            last = self._directory.load_status()
        spec = self._spec
        master = "" if is_connect(self._spark) else self._spark.sparkContext.master
        return Status(
            pipeline=spec.name,
            state=State.STARTING,
            pid=os.getpid(),
            master=master or "sc://",
            file=os.path.abspath(spec.file) if spec.file else "",
            started_ms=now_ms(),
            query=last.query if last else "",
            sources={
                name: SourceStatus(each.rows)
                for name, each in (last.sources if last else {}).items()
                if spec.source(name) is not None
            },
        )

    def _show(self, state: State, reason: str = "") -> None:
        status = self._watch.now(state, reason)
        changed = (status.state, status.reason) != self._shown
        self._shown = status.state, status.reason
        state, reason = self._shown
        if changed or time.monotonic() - self._saved_s > _SAVE_EVERY_S:
            self._directory.save_status(status)
            self._saved_s = time.monotonic()
        if changed and state is not State.FAILED:
            self._directory.events.write("info", "state", reason or state, state=state)
        if self._on_status is not None:
            self._on_status(status)

    def _fail(self, error: BaseException) -> None:
        self.error = translate(error) if isinstance(error, Exception) else PipelineError(f"interrupted: {error!r}")
        self._directory.events.write("error", "failed", str(self.error))
        self._show(State.FAILED, str(self.error))


def check_unchanged(spec: Spec, directory: PipelineDirectory) -> None:
    """Raise `Changed` if the steps are not those that the pipeline's state was made by."""
    known = directory.load_identity()
    different = changes(known.nodes, fingerprint(spec)) if known is not None else []
    if known is not None and different:
        moved = spec.file is not None and os.path.abspath(spec.file) != known.spec_file
        made = f"made by {known.spec_file}" if moved and known.spec_file else "made"
        raise Changed(
            f"pipeline {spec.name}: {', '.join(different)} since its state was {made}, so what it has read and kept "
            f"may not fit. Undo the change, or begin anew with: penstock pipeline reset {spec.name}"
        )


def apply_settings(spec: Spec, spark: "SparkSession") -> None:
    """The Spark settings of a pipeline's file, in a session of its own.

    Raises:
        SpecError: one cannot be changed any more, and is not what the session has.
    """
    for name, value in spec.spark.items():
        if spark.conf.isModifiable(name):
            spark.conf.set(name, str(value))
        elif spark.conf.get(name, None) != str(value):
            told = f"{name} must be set when Spark starts; it is {spark.conf.get(name, None)!r} in this session"
            raise SpecError([Finding(spec.place, f"spark: {told}. Give it with --conf, or end the background driver")])


def with_functions(spec: Spec) -> Spec:
    """The pipeline with the functions of its Python steps loaded. Raises `SpecError`."""
    steps = [
        replace(step, function=load_function(step, spec.directory)) if step.python else step for step in spec.steps
    ]
    return replace(spec, steps=tuple(steps))
