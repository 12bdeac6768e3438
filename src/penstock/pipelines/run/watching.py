"""What Spark tells of a query's progress, and the totals of its micro-batches, as one status.

How many rows of a topic were read is the way from where the pipeline began to where it is, by offsets: nothing that is
added up could be missed or counted twice in a crash. What is left to read is the way from there to the topic's end, as
long as somebody can tell where that is.
"""

import json
import threading
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
        self._ends: dict[str, Places] = {}
        self._latest: dict[str, Places] = {}
        self._away: dict[str, str] = {}
        self.missed_s = 0.0
        """When a source's brokers were last found to be away, having answered before; in monotonic time."""
        self._brokers = threading.Lock()
        self.status = status

    # --- told by the micro-batch at work

    def counted(self, counters: Counters) -> None:
        self._counters = counters

    def trouble(self, sink: str, text: str) -> None:
        self._troubles = {name: old for name, old in self._troubles.items() if name != sink} | (
            {sink: text} if text else {}
        )

    # --- told by brokers

    def heard(self, source: str, latest: Places) -> None:
        """Where a source's topics end now."""
        with self._brokers:
            self._latest[source] = latest
            self._away.pop(source, None)

    def missed(self, source: str, reason: str) -> None:
        """Nobody says where a source's topics end."""
        with self._brokers:
            if source not in self._away:
                self.missed_s = time.monotonic()
            self._latest.pop(source, None)
            self._away[source] = reason

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
            rows, _ = read_source(each)
            before = sources.get(source, SourceStatus())
            end = _offsets(each.get("endOffset"))
            total = self._way(source, end)
            if total is None:
                total = before.rows + (rows if fresh else 0)
            sources[source] = replace(before, rows=total)
            self._reach(source, end, _offsets(each.get("latestOffset")))
        took = told.get("durationMs", {}).get("triggerExecution", 0) / 1000 if fresh else self.status.batch_s
        self.status = replace(
            self.status,
            query=told["id"],
            batch=told["batchId"] if fresh else self.status.batch,
            batch_s=took,
            sources=sources,
            watermark=told.get("eventTime", {}).get("watermark", "") or self.status.watermark,
        )

    def settle(self, checkpoint: Path) -> None:
        """Take the rows read from the checkpoint: those of the last micro-batch that is in the sinks."""
        ends = read_ends(checkpoint, self._counters.batch)
        sources = dict(self.status.sources)
        for source, end in zip(self._match(ends), ends, strict=True):
            if source is None:
                continue
            self._reach(source, end, None)
            total = self._way(source, end)
            if total is not None:
                sources[source] = replace(sources.get(source, SourceStatus()), rows=total)
        self.status = replace(self.status, sources=sources, batch=self._counters.batch)

    def _reach(self, source: str, end: Places | None, latest: Places | None) -> None:
        with self._brokers:
            if end is not None:
                self._ends[source] = end
            if latest is not None and source not in self._away:
                self._latest[source] = latest

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
        sources = self._sources(moment)
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
        troubles = [each.trouble for each in sources.values() if each.trouble] + list(self._troubles.values())
        if state is State.RUNNING and troubles:
            state, reason = State.WAITING, troubles[0]
        rows = sum(each.rows for each in sources.values())
        self.status = replace(
            self.status,
            state=state,
            reason=reason,
            updated_ms=now_ms(),
            batches=counters.batches,
            dead_letters=counters.dead_letters,
            rows=rows,
            rows_per_s=self._rate("", rows, moment),
            lag=self._sum_lags(sources),
            sources=sources,
            steps=self._steps(sources, sinks),
            sinks=sinks,
        )
        return self.status

    def _steps(self, sources: Mapping[str, SourceStatus], sinks: Mapping[str, SinkStatus]) -> dict[str, StepStatus]:
        """Sources too, for they have expectations. Rows are those that were read, or that a sink was given."""
        names = [source.name for source in self._spec.sources] + [step.name for step in self._spec.steps]
        rows = {name: each.rows for name, each in sources.items()}
        for sink in self._spec.sinks:
            given = sinks[sink.name].rows + sinks[sink.name].rejected
            rows[sink.source] = given
        failed = self._counters.failed
        return {name: StepStatus(rows.get(name), dict(failed.get(name, {}))) for name in names}

    def _sources(self, moment: float) -> dict[str, SourceStatus]:
        with self._brokers:
            told = {**self.status.sources, **{name: SourceStatus() for name in (*self._latest, *self._away)}}
            return {
                name: SourceStatus(
                    rows := self.status.sources.get(name, SourceStatus()).rows,
                    self._rate(f"source {name}", rows, moment),
                    self._lag(name),
                    self._away.get(name, ""),
                )
                for name in told
            }

    def _lag(self, source: str) -> int | None:
        """What is left to read behind the last micro-batch, or before the first one behind the beginning."""
        latest, end = self._latest.get(source), self._ends.get(source)
        if end is None and source in self.began:
            end = {
                (topic, partition): offset
                for topic, offsets in self.began[source].items()
                for partition, offset in offsets.items()
            }
        return None if latest is None or end is None else _way_to(end, latest)

    def _sum_lags(self, sources: Mapping[str, SourceStatus]) -> int | None:
        """Of topics: a sum in which one is missing would look like less than there is."""
        topics = [each.name for each in self._spec.sources if each.kind == "topic"]
        lags = [sources[name].lag if name in sources else None for name in topics]
        known = [each for each in lags if each is not None]
        return sum(known) if known and len(known) == len(lags) else None

    def _rate(self, name: str, total: int, moment: float) -> float:
        return round(self._rates.setdefault(name, Rate()).add(total, moment), 1)


def read_source(told: Mapping[str, Any]) -> tuple[int, int | None]:
    """Rows of a micro-batch and the lag behind it: of topics by their offsets, else what Spark counted."""
    start, end, latest = (_offsets(told.get(name)) for name in ("startOffset", "endOffset", "latestOffset"))
    if end is None:
        return int(told.get("numInputRows", 0)), None
    rows = sum(offset - (start or {}).get(place, 0) for place, offset in end.items() if _known(start, place))
    return max(0, rows), None if latest is None else _way_to(end, latest)


def _way_to(end: Places, latest: Places) -> int:
    return sum(max(0, offset - end.get(place, 0)) for place, offset in latest.items())


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
