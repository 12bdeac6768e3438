"""One micro-batch: its issues are counted and written, then every sink gets its rows, then the totals are saved.

Each of these knows (query, batch), so all of it may be done again after a crash at any place. A sink or broker that is
away is waited for here, with the batch in hand.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from penstock.pipelines.errors import ExpectationFailed, PipelineError
from penstock.pipelines.home import sealed
from penstock.pipelines.home.events import EventLog
from penstock.pipelines.model import Action, Source, Spec, Step
from penstock.pipelines.run import counters as totals
from penstock.pipelines.run.evaluation import Evaluation
from penstock.pipelines.run.failures import translate
from penstock.pipelines.run.graph import Carried, Graph, can_evaluate
from penstock.pipelines.run.letters import Letters
from penstock.pipelines.run.quality import ORIGIN_PARTS, UNDECODED
from penstock.pipelines.sinks import open_sink
from penstock.pipelines.sinks.contract import BatchId, Context, Rejected, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 30.0
_REFUSED: Final = "refused.json"
"""How many rows of the last micro-batch with such rows the sink refused."""


class Stopped(Exception):
    """The pipeline is to stop; nothing of the micro-batch was begun, or what was is done again at the next start."""


class Observer(Protocol):
    """Who wants to know how a micro-batch goes."""

    def trouble(self, sink: str, text: str) -> None: ...

    def counted(self, counters: totals.Counters) -> None: ...


class BatchWriter:
    """What Spark calls for each micro-batch. May be pickled: with Spark Connect it runs in the server's process."""

    def __init__(self, graph: Graph, name: str, directory: Path, checkpoint: str, events: EventLog) -> None:
        """
        Args:
            name: the pipeline's, as sinks know it.
            directory: where counters and the sinks' own state are.
        """
        self._spec: Spec = graph.spec
        self._carried: tuple[Carried, ...] = graph.carried
        rows = [each.node for each in graph.carried if each.kind == "rows"]
        self._inspected = tuple(
            node
            for node, each in graph.nodes.items()
            if each.is_streaming and each.checked.issues is not None and can_evaluate(graph.nodes, rows, node)
        )
        self._has_issues = bool(self._inspected) or any(each.kind == "issues" for each in graph.carried)
        self._has_state = graph.is_stateful
        self._directory = directory
        self._checkpoint = checkpoint
        self._events = events
        self._letters = Letters(graph.spec, name, events)
        self._contexts = {
            sink.name: Context(
                name, graph.spec.server, graph.spec.client, graph.spec.directory, directory / "sinks" / sink.name
            )
            for sink in graph.spec.sinks
        }
        self._schemas = {sink.name: graph.schema_of(sink.source) for sink in graph.spec.sinks}
        self._query = ""
        self._begin()

    def _begin(self) -> None:
        self._sinks: dict[str, Sink] = {}
        self._gate = threading.Lock()
        self._stopping = threading.Event()
        self.observer: Observer | None = None
        self.failure: Exception | None = None
        """What the last micro-batch ended with; Spark tells only its text."""

    def __getstate__(self) -> dict[str, Any]:
        left = ("_sinks", "_gate", "_stopping", "observer", "failure")
        return {name: value for name, value in self.__dict__.items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def prepare(self) -> None:
        """Before the first row: every sink looks at its columns."""
        self._letters.prepare()
        for spec in self._spec.sinks:
            self._sink(spec.name)

    def stop(self, stop_query: Callable[[], None]) -> None:
        """Let the micro-batch at work end, then stop the query before the next one begins."""
        self._stopping.set()
        with self._gate:
            stop_query()

    def close(self) -> None:
        for sink in self._sinks.values():
            sink.close()
        self._sinks.clear()

    def __call__(self, batch: "DataFrame", number: int) -> None:
        # Whoever has the gate is stopping the query, which waits for this call to return.
        if not self._gate.acquire(blocking=False):
            self.failure = Stopped()
            raise self.failure
        try:
            if self._stopping.is_set():
                raise Stopped
            self._write(batch, number)
            self.failure = None
        except Exception as error:
            self.failure = error
            raise
        finally:
            self._gate.release()

    def _write(self, batch: "DataFrame", number: int) -> None:
        identity = BatchId(self._query_of(batch.sparkSession), number)
        counters = totals.load(self._directory)
        counted = counters.includes(*identity)
        # With state the batch has to run in any case: it moves the watermark.
        if counted and not self._has_state and self._is_done(identity):
            return
        several = len(self._spec.sinks) + self._has_issues > 1 or len(self._carried) > 1
        if several:
            batch = batch.persist()
        try:
            evaluation = Evaluation(self._spec, batch, self._carried)
            if not counted:
                counters.query, counters.batch = identity
                counters.batches += 1
            if self._has_issues:
                self._write_issues(evaluation, identity, counters if not counted else totals.Counters())
            for spec in self._spec.sinks:
                rows, rejected = self._write_sink(spec.name, evaluation.rows_for(spec.source), identity)
                if not counted:
                    counters.sinks[spec.name] += rows
                    counters.rejected[spec.name] += rejected
                    counters.dead_letters += rejected
            if not counted:
                totals.save(self._directory, counters)
                if self.observer is not None:
                    self.observer.counted(counters)
        finally:
            if several:
                batch.unpersist()

    def _is_done(self, identity: BatchId) -> bool:
        return all(
            self._patiently(name, lambda name=name: self._sink(name).is_written(identity)) for name in self._contexts
        )

    # --- issues

    def _write_issues(self, evaluation: Evaluation, identity: BatchId, counters: totals.Counters) -> None:
        issues = evaluation.issues(self._inspected)
        assert issues is not None
        # A frame made anew for each try: one whose shuffle has failed fails again without being run.
        found = self._patiently("", lambda: issues.groupBy("node", "broken").count().collect())
        failed: Counter[tuple[str, str]] = Counter()
        dead = 0
        for row in found:
            node, broken, count = row["node"], row["broken"], row["count"]
            for bit, each in enumerate(self._node(node).expect):
                if broken >> bit & 1:
                    counters.fail(node, each.name, count)
                    if each.otherwise is Action.FAIL:
                        failed[node, each.name] += count
            if broken >> UNDECODED & 1:
                counters.fail(node, "", count)
            dead += count if broken & self._mask(node) else 0
        if failed:
            raise self._expectation_failed(issues, failed, identity)
        if dead:
            letters = issues.where(self._dead_rows())
            self._patiently("", self._letters.write, letters, identity)
        counters.dead_letters += dead

    def _node(self, name: str) -> Source | Step:
        made = self._spec.source(name) or self._spec.step(name)
        assert made is not None
        return made

    def _mask(self, node: str) -> int:
        """The bits of a row that goes to the dead letters."""
        expect = self._node(node).expect
        return sum(1 << bit for bit, each in enumerate(expect) if each.otherwise is Action.QUARANTINE) | 1 << UNDECODED

    def _dead_rows(self) -> str:
        nodes = [*self._inspected, *(each.node for each in self._carried if each.kind == "issues")]
        return " OR ".join(f"(node = '{node}' AND (broken & {self._mask(node)}L) != 0)" for node in nodes)

    def _expectation_failed(
        self, issues: "DataFrame", failed: Mapping[tuple[str, str], int], identity: BatchId
    ) -> ExpectationFailed:
        (node, name), count = next(iter(failed.items()))
        bit = next(bit for bit, each in enumerate(self._node(node).expect) if each.name == name)
        first = issues.where(f"node = '{node}' AND (broken & {1 << bit}L) != 0").first()
        told = ""
        if first is not None:
            known = first["origin"] or {}
            origin = ", ".join(f"{part} {known[part]}" for part in ORIGIN_PARTS if part in known)
            told = f", among them {origin}" if origin else ""
            # Rows are for those who may read the pipeline's directory; a status is shown to others too.
            value = bytes(first["value"] or b"").decode("utf-8", "replace")[:1000]
            self._events.write("error", "expectation", f"{name!r} of {node} does not hold", row=value, **known)
        return ExpectationFailed(
            f"expectation {name!r} of {node} does not hold for {count} rows of batch {identity.batch}{told}. Nothing "
            "of the batch was written. Mend the data or the expectation and start again"
        )

    # --- sinks

    def _write_sink(self, name: str, rows: "DataFrame", identity: BatchId) -> tuple[int, int]:
        """Returns how many rows it took and how many it refused."""
        sink, note = self._patiently(name, self._sink, name), self._contexts[name].state / _REFUSED

        def reject(rejected: Sequence[Rejected]) -> None:
            if rejected:
                self._letters.write_rejected(rows.sparkSession, rejected, identity, sink=name)
                sealed.save(note, {"query": identity.query, "batch": identity.batch, "rows": len(rejected)})

        def once() -> int | None:
            if sink.is_written(identity):
                return None
            note.unlink(missing_ok=True)
            return sink.write(rows, identity, reject)

        written = self._patiently(name, once)
        refused = self._count_refused(note, identity)
        if written is None:  # before a crash
            written = self._patiently(name, rows.count) - refused
        return written, refused

    def _count_refused(self, note: Path, identity: BatchId) -> int:
        body = sealed.load(note, "Remove it; it holds a count only")
        same = body is not None and (body["query"], body["batch"]) == identity
        return body["rows"] if body is not None and same else 0

    def _sink(self, name: str) -> Sink:
        if name not in self._sinks:
            spec = next(each for each in self._spec.sinks if each.name == name)
            self._contexts[name].state.mkdir(parents=True, exist_ok=True)
            sink = open_sink(spec, self._contexts[name])
            sink.prepare(self._schemas[name])
            self._sinks[name] = sink
        return self._sinks[name]

    def _patiently(self, name: str, call: Callable[..., T], *arguments: Any) -> T:
        """Try until it works, the pipeline's patience is over, or it is to stop."""
        until = time.monotonic() + self._spec.patience_s
        wait_s = _FIRST_WAIT_S
        troubled = False
        while True:
            try:
                done = call(*arguments)
            except Exception as error:
                told = translate(error, f"sink {name}" if name else "")
                if not told.retriable or time.monotonic() + wait_s > until:
                    raise told from error
                troubled = True
                self._tell(name, str(told))
                if self._stopping.wait(wait_s):
                    raise Stopped(str(told)) from error
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            else:
                if troubled:
                    self._tell(name, "")
                return done

    def _tell(self, name: str, trouble: str) -> None:
        if trouble:
            self._events.write("warning", "waiting", trouble, sink=name)
        else:
            self._events.write("info", "goes-on", f"sink {name} works again" if name else "works again", sink=name)
        if self.observer is not None:
            self.observer.trouble(name, trouble)

    def _query_of(self, spark: "SparkSession") -> str:
        """Spark's id of the query. It is the checkpoint's: a new checkpoint has a new one."""
        if not self._query:
            told = None
            if hasattr(spark, "sparkContext") and not type(spark).__module__.startswith("pyspark.sql.connect"):
                told = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
            self._query = told or read_query_id(spark, self._checkpoint)
        return self._query


def read_query_id(spark: "SparkSession", checkpoint: str) -> str:
    """From the checkpoint, wherever it is."""
    import json

    row = spark.read.text(f"{checkpoint}/metadata").first()
    if row is None:
        raise PipelineError(f"checkpoint {checkpoint} has no metadata; reset the pipeline")
    found: str = json.loads(row[0])["id"]
    return found
