"""What Spark tells of a query's progress, and the totals of its micro-batches, as one status.

How many rows of a topic were read is the way from where the pipeline began to where it is, by offsets: nothing that is
added up could be missed or counted twice in a crash.
"""

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from penstock.pipelines.home.status import SinkStatus, SourceStatus, State, Status, StepStatus, now_ms
from penstock.pipelines.model import Spec
from penstock.pipelines.run.counters import Counters
from penstock.pipelines.run.sources import Offsets

_WINDOW_S: Final = 15.0
_IDS: Final = "#ids"

Places = dict[tuple[str, str], int]
"""Offsets by topic and partition."""


class Rate:
    """How much a total grew a second, over the last seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, total: int, now_s: float) -> float:
        points = self._points
        points.append((now_s, total))
        while len(points) > 2 and points[1][0] < now_s - _WINDOW_S:
            points.popleft()
        passed = now_s - points[0][0]
        return (total - points[0][1]) / passed if passed > 0 else 0.0


class Watch:
    """Turns progress into a `Status`."""

    def __init__(self, spec: Spec, status: Status, counters: Counters) -> None:
        """`status`: the pipeline's last one; its totals of rows from files go on."""
        self._spec = spec
        self.began: Mapping[str, Offsets] = {}
        """Where each topic source began."""
        self._taken = ""
        self._rates: dict[str, Rate] = {}
        self._counters = counters
        self._troubles: dict[str, str] = {}
        self.status = status

    # --- told by the micro-batch at work

    def counted(self, counters: Counters) -> None:
        self._counters = counters

    def trouble(self, sink: str, text: str) -> None:
        self._troubles = {name: old for name, old in self._troubles.items() if name != sink} | (
            {sink: text} if text else {}
        )

    # --- told by Spark

    def progress(self, told: Mapping[str, Any]) -> None:
        """One event of the query's progress; the same one may come again."""
        if told["timestamp"] <= self._taken:
            return
        self._taken = told["timestamp"]
        fresh = any(each.get("numInputRows") for each in told["sources"])
        sources = dict(self.status.sources)
        ends = [_offsets(each.get("endOffset")) for each in told["sources"]]
        for source, each in zip(self._match(ends), told["sources"], strict=True):
            if source is None:
                continue
            rows, lag = read_source(each)
            before = sources.get(source, SourceStatus())
            total = self._way(source, _offsets(each.get("endOffset")))
            if total is None:
                total = before.rows + (rows if fresh else 0)
            sources[source] = replace(before, rows=total, lag=lag)
        lags = [each.lag for each in sources.values() if each.lag is not None]
        took = told.get("durationMs", {}).get("triggerExecution", 0) / 1000 if fresh else self.status.batch_s
        self.status = replace(
            self.status,
            query=told["id"],
            batch=told["batchId"] if fresh else self.status.batch,
            batch_s=took,
            lag=sum(lags) if lags else None,
            sources=sources,
            watermark=told.get("eventTime", {}).get("watermark", "") or self.status.watermark,
        )

    def settle(self, checkpoint: Path) -> None:
        """Take the rows read from the checkpoint: those of the last micro-batch that is in the sinks."""
        ends = read_ends(checkpoint, self._counters.batch)
        sources = dict(self.status.sources)
        for source, end in zip(self._match(ends), ends, strict=True):
            total = None if source is None else self._way(source, end)
            if source is not None and total is not None:
                sources[source] = replace(sources.get(source, SourceStatus()), rows=total)
        self.status = replace(self.status, sources=sources, batch=self._counters.batch)

    def _match(self, ends: Sequence[Places | None]) -> list[str | None]:
        """Whose offsets these are: Spark's sources have no names, and come in the plan's order."""
        left = [source for source in self._spec.sources if not source.is_static]
        found: list[str | None] = []
        for end in ends:
            topics = {topic for topic, _ in end or ()}
            fits = [each for each in left if topics and topics <= set(each.options.get("topic") or ())] or left
            found.append(fits[0].name if fits else None)
            left = [each for each in left if not fits or each is not fits[0]]
        return found

    def _way(self, source: str, end: Places | None) -> int | None:
        """Rows between the beginning and an end; None where it is not known where the source began."""
        if end is None or source not in self.began:
            return None
        began = self.began[source]
        return sum(
            max(0, offset - began.get(topic, {}).get(partition, 0)) for (topic, partition), offset in end.items()
        )

    def now(self, state: State, reason: str = "") -> Status:
        """The status at this moment."""
        moment = time.monotonic()
        counters = self._counters
        sources = {
            name: replace(each, rows_per_s=self._rate(f"source {name}", each.rows, moment))
            for name, each in self.status.sources.items()
        }
        sinks = {
            sink.name: SinkStatus(
                sink.kind,
                counters.sinks[sink.name],
                self._rate(f"sink {sink.name}", counters.sinks[sink.name], moment),
                counters.rejected[sink.name],
                self._troubles.get(sink.name, ""),
            )
            for sink in self._spec.sinks
        }
        if state is State.RUNNING and self._troubles:
            state, reason = State.WAITING, next(iter(self._troubles.values()))
        rows = sum(each.rows for each in sources.values())
        names = [source.name for source in self._spec.sources] + [step.name for step in self._spec.steps]
        out = {sink.source: sinks[sink.name].rows + sinks[sink.name].rejected for sink in self._spec.sinks}
        self.status = replace(
            self.status,
            state=state,
            reason=reason,
            updated_ms=now_ms(),
            batches=counters.batches,
            dead_letters=counters.dead_letters,
            rows=rows,
            rows_per_s=self._rate("", rows, moment),
            sources=sources,
            steps={name: StepStatus(out.get(name, 0), dict(counters.failed.get(name, {}))) for name in names},
            sinks=sinks,
        )
        return self.status

    def _rate(self, name: str, total: int, moment: float) -> float:
        return round(self._rates.setdefault(name, Rate()).add(total, moment), 1)


def read_source(told: Mapping[str, Any]) -> tuple[int, int | None]:
    """Rows of a micro-batch and the lag behind it: of topics by their offsets, else what Spark counted."""
    start, end, latest = (_offsets(told.get(name)) for name in ("startOffset", "endOffset", "latestOffset"))
    if end is None:
        return int(told.get("numInputRows", 0)), None
    rows = sum(offset - (start or {}).get(place, 0) for place, offset in end.items() if _known(start, place))
    lag = None if latest is None else sum(max(0, offset - end.get(place, 0)) for place, offset in latest.items())
    return max(0, rows), lag


def _known(start: Mapping[tuple[str, str], int] | None, place: tuple[str, str]) -> bool:
    """A start of -1 is "from the end": nothing was read."""
    return start is None or start.get(place, 0) >= 0


def read_query(checkpoint: Path) -> str | None:
    """The id that Spark gave the checkpoint's query; None where there is none."""
    try:
        found: str = json.loads((checkpoint / "metadata").read_text())["id"]
    except (OSError, ValueError, KeyError):
        return None
    return found


def read_ends(checkpoint: Path, batch: int) -> list[Places | None]:
    """Where each of a micro-batch's sources ended, by Spark's log of offsets."""
    try:
        lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    except OSError:
        return []
    return [_offsets(line) for line in lines[2:]]  # a version and the batch's settings stand above


def _offsets(told: Any) -> Places | None:
    if isinstance(told, str):
        try:
            told = json.loads(told)
        except ValueError:
            return None
    if not isinstance(told, Mapping) or not all(isinstance(each, Mapping) for each in told.values()):
        return None
    return {
        (topic, partition): int(offset)
        for topic, offsets in told.items()
        if topic != _IDS
        for partition, offset in offsets.items()
    }
