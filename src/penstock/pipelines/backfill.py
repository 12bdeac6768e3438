"""A backfill: an older part of a topic through the same steps into the same sinks, beside the pipeline or without it.

Which offsets those are is settled once and written down, so a backfill that was interrupted goes on where it was. What
the pipeline itself reads (from where it began, on) and what other backfills have is left out: no row is written twice,
and none between is forgotten. `again` takes the whole range, for sinks that upsert.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.pipelines.errors import Busy, PipelineError
from penstock.pipelines.home import sealed
from penstock.pipelines.home.directory import Lock, PipelineDirectory
from penstock.pipelines.home.status import State, Status
from penstock.pipelines.model import Source, Spec
from penstock.pipelines.run import beginning
from penstock.pipelines.run.failures import translate
from penstock.pipelines.run.graph import build
from penstock.pipelines.run.run import Run, check_unchanged, with_functions
from penstock.pipelines.run.sessions import new_session
from penstock.pipelines.run.sources import Bounds, Offsets
from penstock.spark.options.positions import Positions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER: Final = "backfills"
PLAN: Final = "plan.json"
_WAY_OUT: Final = "Restore it from a backup; or remove the backfill's directory, if its rows may be written again"

_ENDLESS: Final = 1 << 62

Place = tuple[str, str]
Span = tuple[int, int]
"""From an offset to the one behind the last."""


@dataclass(frozen=True, slots=True)
class Plan:
    """
    Attributes:
        rounds: what is read, one after the other: of each partition one stretch.
        done: how many rounds are over.
    """

    name: str
    source: str
    from_ms: int
    to_ms: int | None
    rounds: tuple[tuple[Offsets, Offsets], ...]
    again: bool = False
    done: int = 0

    @property
    def rows(self) -> int:
        return sum(
            end[topic][partition] - offset
            for start, end in self.rounds
            for topic, offsets in start.items()
            for partition, offset in offsets.items()
        )


def plan_backfill(
    spec: Spec,
    directory: PipelineDirectory,
    *,
    from_ms: int,
    to_ms: int | None,
    again: bool = False,
    reserve: bool = True,
) -> Plan:
    """Settle what a backfill reads, or take up the plan that was made for the same range.

    Args:
        reserve: write the plan down, so that it is nobody else's; without, it is only an answer.

    Raises:
        Changed: the file is not what the pipeline was made by.
        PipelineError: the pipeline has never begun, or it has no one topic to read.
    """
    check_unchanged(spec, directory)
    folder = directory.path / FOLDER
    if not reserve:
        return _find_plan(spec, directory, from_ms, to_ms, again=again)
    folder.mkdir(parents=True, exist_ok=True)
    with Lock(folder / "lock").held("penstock pipeline backfill") as holder:
        if holder is not None:
            raise Busy(f"pipeline {spec.name}: process {holder.pid} plans a backfill just now; try again")
        plan = _find_plan(spec, directory, from_ms, to_ms, again=again)
        save_plan(directory, plan)
    return plan


def _find_plan(spec: Spec, directory: PipelineDirectory, from_ms: int, to_ms: int | None, *, again: bool) -> Plan:
    chosen = _choose_source(spec)
    name = _name(from_ms, to_ms, again=again)
    known = load_plan(directory, name)
    if known is not None:
        return known
    began = (beginning.load(directory.path) or {}).get(chosen.name)
    if began is None and not again:
        raise PipelineError(
            f"pipeline {spec.name} has not begun yet, so nobody knows where a backfill must end. Start it first, or "
            f"run it with 'from: {_format(from_ms)}' in source {chosen.name}"
        )
    options = beginning.read_options(spec, chosen)

    def find(moment_ms: int | None) -> Offsets:
        everywhere = Positions(
            "backfill", everywhere=-1 if moment_ms is None else moment_ms, by_time=moment_ms is not None
        )
        return beginning.find_offsets(chosen, options, everywhere)

    wanted = _spans(find(from_ms), find(to_ms))
    taken = [] if again else [_live(began or {}, wanted), *_taken(directory)]
    return Plan(name, chosen.name, from_ms, to_ms, split_rounds(subtract(wanted, taken), wanted), again)


class Backfill:
    """Runs a plan's rounds, in a thread: `start`, then `wait`, or `stop` and `wait`."""

    def __init__(
        self,
        spec: Spec,
        directory: PipelineDirectory,
        plan: Plan,
        spark: "SparkSession",
        on_status: "Callable[[Status], None] | None" = None,
    ) -> None:
        self._spec = spec
        self._directory = directory
        self._plan = plan
        self._spark = spark
        self._on_status = on_status
        self._run: Run | None = None
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self.error: PipelineError | None = None

    @property
    def status(self) -> Status:
        return self._run.status if self._run is not None else Status(self._spec.name, State.STARTING)

    def start(self) -> None:
        """Raises `PipelineError`: it cannot begin."""
        self._refuse_state()
        threading.Thread(target=self._work, name=f"backfill {self._plan.name}", daemon=True).start()

    def stop(self) -> None:
        """Ask it to end; the micro-batch at work is finished, and the next try goes on behind it."""
        self._stopping.set()
        if self._run is not None:
            self._run.stop()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._ended.wait(timeout_s)

    def _work(self) -> None:
        try:
            while self._plan.done < len(self._plan.rounds) and not self._stopping.is_set():
                self._run_round()
        except Exception as error:  # noqa: BLE001 - the end of a thread: whoever waits is told
            self.error = translate(error)
        finally:
            self._ended.set()

    def _run_round(self) -> None:
        number = self._plan.done
        start, end = self._plan.rounds[number]
        folder = self._directory.path / FOLDER / self._plan.name / f"round-{number}"
        run = self._run = Run(
            self._spec,
            PipelineDirectory(self._directory.name, folder),
            self._spark,
            once=True,
            name=f"{self._spec.name}-backfill-{self._plan.name}-{number}",
            bounds={self._plan.source: Bounds(start, end)},
            on_status=self._on_status,
        )
        run.start()
        if self._stopping.is_set():
            run.stop()
        run.wait()
        if run.error is not None:
            raise run.error
        if run.status.state is State.FINISHED:
            self._plan = replace(self._plan, done=number + 1)
            save_plan(self._directory, self._plan)

    def _refuse_state(self) -> None:
        graph = build(with_functions(self._spec), new_session(self._spark))
        held = [name for name, node in graph.nodes.items() if node.own_state]
        if held:
            raise PipelineError(
                f"pipeline {self._spec.name}: step {held[0]} keeps state (windows, joins or duplicates). A backfill "
                "beside it would have its own, and results would be split at the border. Reset the pipeline and start "
                "it with an earlier 'from' instead"
            )


def load_plan(directory: PipelineDirectory, name: str) -> Plan | None:
    body = sealed.load(directory.path / FOLDER / name / PLAN, _WAY_OUT)
    return None if body is None else _decode(body)


def load_plans(directory: PipelineDirectory) -> list[Plan]:
    folders = sorted((directory.path / FOLDER).glob(f"*/{PLAN}"))
    return [plan for each in folders if (plan := load_plan(directory, each.parent.name)) is not None]


def save_plan(directory: PipelineDirectory, plan: Plan) -> None:
    folder: Path = directory.path / FOLDER / plan.name
    folder.mkdir(parents=True, exist_ok=True)
    body: dict[str, Any] = {
        "name": plan.name,
        "source": plan.source,
        "from_ms": plan.from_ms,
        "to_ms": plan.to_ms,
        "rounds": [list(each) for each in plan.rounds],
        "again": plan.again,
        "done": plan.done,
    }
    sealed.save(folder / PLAN, body)


def _decode(body: Mapping[str, Any]) -> Plan:
    rounds = tuple((start, end) for start, end in body["rounds"])
    return Plan(body["name"], body["source"], body["from_ms"], body["to_ms"], rounds, body["again"], body["done"])


# --- offsets


def subtract(wanted: Mapping[Place, Span], taken: Sequence[Mapping[Place, Span]]) -> dict[Place, list[Span]]:
    """What is left of each partition's stretch, in order."""
    left: dict[Place, list[Span]] = {}
    for place, span in wanted.items():
        pieces = [span] if span[0] < span[1] else []
        for other in taken:
            if place in other:
                pieces = [rest for piece in pieces for rest in _cut(piece, other[place])]
        left[place] = sorted(pieces)
    return left


def _cut(piece: Span, hole: Span) -> list[Span]:
    parts = [(piece[0], min(piece[1], hole[0])), (max(piece[0], hole[1]), piece[1])]
    return [part for part in parts if part[0] < part[1]] if hole[0] < hole[1] else [piece]


def split_rounds(left: Mapping[Place, list[Span]], wanted: Mapping[Place, Span]) -> tuple[tuple[Offsets, Offsets], ...]:
    """One stretch of each partition a round; a partition that has none is read from an offset to the same."""
    rounds = []
    for number in range(max(map(len, left.values()), default=0)):
        start: dict[str, dict[str, int]] = {}
        end: dict[str, dict[str, int]] = {}
        for (topic, partition), pieces in sorted(left.items()):
            nothing = wanted[topic, partition][0]
            low, high = pieces[number] if number < len(pieces) else (nothing, nothing)
            start.setdefault(topic, {})[partition] = low
            end.setdefault(topic, {})[partition] = high
        rounds.append((start, end))
    return tuple(rounds)


def _spans(start: Offsets, end: Offsets) -> dict[Place, Span]:
    return {
        (topic, partition): (offset, end.get(topic, {}).get(partition, offset))
        for topic, offsets in start.items()
        for partition, offset in offsets.items()
    }


def _live(began: Offsets, wanted: Mapping[Place, Span]) -> dict[Place, Span]:
    """What the pipeline itself reads: from where it began, and partitions that came later from their beginning."""
    return {place: (began.get(place[0], {}).get(place[1], 0), _ENDLESS) for place in wanted}


def _taken(directory: PipelineDirectory) -> list[dict[Place, Span]]:
    """What other backfills have, whether or not they are done."""
    return [_spans(start, end) for plan in load_plans(directory) if not plan.again for start, end in plan.rounds]


# --- names


def _choose_source(spec: Spec) -> Source:
    topics = [source for source in spec.sources if beginning.is_fixed(source)]
    if len(topics) == 1 and sum(not source.is_static for source in spec.sources) == 1:
        return topics[0]
    streamed = ", ".join(source.name for source in spec.sources if not source.is_static)
    raise PipelineError(
        f"pipeline {spec.name}: a backfill reads one topic (named, not by a pattern) and nothing else that streams; "
        f"this one has {streamed or 'none'}"
    )


def _name(from_ms: int, to_ms: int | None, *, again: bool) -> str:
    name = f"{_stamp(from_ms)}-{_stamp(to_ms) if to_ms is not None else 'now'}"
    return f"{name}-again-{_stamp(int(datetime.now(UTC).timestamp() * 1000))}" if again else name


def _stamp(moment_ms: int) -> str:
    return f"{datetime.fromtimestamp(moment_ms // 1000, UTC):%Y%m%dT%H%M%S}.{moment_ms % 1000:03d}Z"


def _format(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat()
