"""What is drawn of a pipeline: boxes, lines between them, and the words in each. How it looks is not decided here."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.pipelines.drawing.quantity import format_count, format_rate, format_seconds, plural
from penstock.pipelines.model import Action, Expectation

if TYPE_CHECKING:
    from penstock.pipelines.home.status import Status
    from penstock.pipelines.model import SinkSpec, Source, Spec, Step

LETTERS: Final = "dead letters"
"""The key of the box for rows that were taken aside."""


class Role(StrEnum):
    SOURCE = "source"
    STEP = "step"
    SINK = "sink"
    LETTERS = "dead letters"


class Mood(StrEnum):
    """How something is doing, for its colour."""

    PLAIN = "plain"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


class Fact(NamedTuple):
    """A few words, and whether they are good news."""

    text: str
    mood: Mood = Mood.PLAIN


@dataclass(frozen=True, slots=True)
class Node:
    """A box.

    Attributes:
        key: unlike that of any other box.
        kind: what it is made of: `topic orders`, `SQL`, `delta ./lake`.
        facts: a line each.
    """

    key: str
    role: Role
    name: str
    kind: str
    facts: tuple[Fact, ...] = ()
    mood: Mood = Mood.PLAIN


@dataclass(frozen=True, slots=True)
class Edge:
    """Rows go from the box `start` to the box `end`; `aside` where only those that something is wrong with."""

    start: str
    end: str
    aside: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """
    Attributes:
        state: what the pipeline is doing; "" where nothing is known.
        facts: about the whole of it.
        nodes: each behind those it gets rows from.
    """

    title: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    description: str = ""
    state: str = ""
    mood: Mood = Mood.PLAIN
    facts: tuple[Fact, ...] = ()

    def feeders(self, key: str) -> list[str]:
        """Names of the boxes that `key` gets rows from."""
        names = {node.key: node.name for node in self.nodes}
        return [names[edge.start] for edge in self.edges if edge.end == key]


STATE_MOODS: Final[Mapping[str, Mood]] = {
    "starting": Mood.PLAIN,
    "running": Mood.GOOD,
    "waiting": Mood.WARN,
    "stopping": Mood.PLAIN,
    "stopped": Mood.PLAIN,
    "finished": Mood.GOOD,
    "failed": Mood.BAD,
    "died": Mood.BAD,
}
_AT_WORK: Final = frozenset({"starting", "running", "waiting", "stopping"})


def make_figure(spec: "Spec", status: "Status | None" = None, *, state: str = "") -> Figure:
    """The boxes and lines of a pipeline, with the numbers of its status where there is one.

    Args:
        state: what it is doing, where that is known better than by its last status. Rates are shown of one at work.
    """
    state = (state or str(status.state)) if status else ""
    live = state in _AT_WORK
    nodes = [_draw_source(each, status, live) for each in spec.sources]
    nodes += [_draw_step(each, status) for each in spec.steps]
    nodes += [_draw_sink(each, spec, status, live) for each in spec.sinks]
    edges = list(_find_edges(spec))
    aside = [Edge(key, LETTERS, aside=True) for key in _find_aside(spec)]
    lost = status.dead_letters if status else 0
    if spec.dead_letters.kind != "drop" and (aside or lost):
        nodes.append(_draw_letters(spec, status))
        edges += aside
    return Figure(
        title=spec.name,
        nodes=tuple(nodes),
        edges=tuple(edges),
        description=_clean(spec.description),
        state=state,
        mood=STATE_MOODS.get(state, Mood.PLAIN),
        facts=_clean_all(_tell_whole(status, live)) if status else (),
    )


def _find_edges(spec: "Spec") -> Iterator[Edge]:
    keys = {each.name: f"source {each.name}" for each in spec.sources}
    keys |= {each.name: f"step {each.name}" for each in spec.steps}
    for step in spec.steps:
        yield from (Edge(keys[name], f"step {step.name}") for name in dict.fromkeys(step.inputs) if name in keys)
    yield from (Edge(keys[sink.source], f"sink {sink.name}") for sink in spec.sinks if sink.source in keys)


def _find_aside(spec: "Spec") -> Iterator[str]:
    """Boxes some of whose rows may become dead letters: those that decode, and those that put rows into quarantine."""
    for source in spec.sources:
        if _decodes(source) or _quarantines(source.expect):
            yield f"source {source.name}"
    yield from (f"step {step.name}" for step in spec.steps if _quarantines(step.expect))


def _decodes(source: "Source") -> bool:
    """Whether there may be records that are not what the source says."""
    given = source.options
    if source.kind == "topic":
        return bool(given.get("format"))
    return given.get("format") in ("csv", "json") and bool(given.get("schema")) and not source.is_static


def _quarantines(expectations: Iterable[Expectation]) -> bool:
    return any(each.otherwise is Action.QUARANTINE for each in expectations)


def _draw_source(source: "Source", status: "Status | None", live: bool) -> Node:
    facts: list[Fact] = []
    mood = Mood.PLAIN
    now = status.sources.get(source.name) if status else None
    if now is not None and not source.is_static:
        facts += _tell_rows(now.rows, now.rows_per_s, live)
        if now.lag is not None:
            facts += [Fact(f"lag {format_count(now.lag)}")]
        if now.trouble:
            facts += [Fact("lag unknown", Mood.WARN), Fact(now.trouble, Mood.BAD)]
            mood = Mood.BAD
    facts += _tell_expectations(source.name, source.expect, status)
    return _node(Role.SOURCE, source.name, describe_source(source), facts, mood)


def _draw_step(step: "Step", status: "Status | None") -> Node:
    facts: list[Fact] = []
    now = status.steps.get(step.name) if status else None
    if now is not None and now.rows:
        facts += [Fact(plural(now.rows, "row"))]
    facts += _tell_expectations(step.name, step.expect, status)
    return _node(Role.STEP, step.name, describe_step(step), facts)


def _draw_sink(sink: "SinkSpec", spec: "Spec", status: "Status | None", live: bool) -> Node:
    facts: list[Fact] = []
    mood = Mood.PLAIN
    now = status.sinks.get(sink.name) if status else None
    if now is not None:
        facts += _tell_rows(now.rows, now.rows_per_s, live)
        if now.rejected:
            facts += [Fact(f"{format_count(now.rejected)} rejected", Mood.WARN)]
        if now.trouble:
            facts += [Fact(now.trouble, Mood.BAD)]
            mood = Mood.BAD
    return _node(Role.SINK, sink.name, describe_sink(sink, spec.directory), facts, mood)


def _node(role: Role, name: str, kind: str, facts: Iterable[Fact], mood: Mood = Mood.PLAIN) -> Node:
    return Node(f"{role} {name}", role, _clean(name), _clean(kind), _clean_all(facts), mood)


def _draw_letters(spec: "Spec", status: "Status | None") -> Node:
    count = status.dead_letters if status else 0
    facts = (Fact(plural(count, "row"), Mood.WARN if count else Mood.PLAIN),) if status else ()
    return Node(LETTERS, Role.LETTERS, LETTERS, _clean(describe_letters(spec)), facts)


def _tell_expectations(name: str, expectations: tuple[Expectation, ...], status: "Status | None") -> Iterator[Fact]:
    """How many rows broke each expectation; without a status, how many expectations there are."""
    # A source's are counted as a step's, and under no name what could not be decoded.
    counted = status.steps.get(name) if status else None
    if counted is None:
        if expectations:
            yield Fact(plural(len(expectations), "expectation"))
        return
    if undecoded := counted.failed.get("", 0):
        yield Fact(f"{format_count(undecoded)} not decoded", Mood.WARN)
    broken = [(each, counted.failed.get(each.name, 0)) for each in expectations]
    for each, number in broken:
        if number:
            mood = Mood.BAD if each.otherwise is Action.FAIL else Mood.WARN
            yield Fact(f"{format_count(number)} not: {each.name}", mood)
    if broken and not any(number for _, number in broken):
        yield Fact(f"{plural(len(expectations), 'expectation')} held", Mood.GOOD)


def _tell_rows(rows: int, rows_per_s: float, live: bool) -> Iterator[Fact]:
    """The rate is that of the last seconds, so only of what is at work."""
    if live:
        yield Fact(format_rate(rows_per_s))
    yield Fact(plural(rows, "row"))


def _tell_whole(status: "Status", live: bool) -> Iterator[Fact]:
    if status.reason:
        yield Fact(status.reason, STATE_MOODS.get(str(status.state), Mood.PLAIN))
    yield from _tell_rows(status.rows, status.rows_per_s, live)
    if status.lag is not None:
        yield Fact(f"lag {format_count(status.lag)}")
    if status.batch_s:
        yield Fact(f"batch {status.batch} in {format_seconds(status.batch_s)}")
    if status.watermark:
        yield Fact(f"watermark {status.watermark}")


def describe_source(source: "Source") -> str:
    """`topic orders`, `topics a, b`, `topics like ^a`, `csv data/*.csv (static)`."""
    options = source.options
    if source.kind == "topic":
        if options.get("pattern"):
            return f"topics like {options['pattern']}"
        names = read_texts(options.get("topic"))
        return f"{'topic' if len(names) == 1 else 'topics'} {', '.join(names)}"
    patterns = ", ".join(read_texts(options.get("files")))
    return f"{options.get('format') or 'files'} {patterns}" + (" (static)" if source.is_static else "")


def describe_step(step: "Step") -> str:
    """`SQL`, `Python revenue.py:hourly`."""
    if step.sql:
        return "SQL"
    return f"Python {step.python or getattr(step.function, '__name__', '')}".rstrip()


def describe_sink(sink: "SinkSpec", directory: Path) -> str:
    """Its kind and where rows go, without passwords and without what every path of the pipeline begins with."""
    where = _hide_secrets(str(sink.options.get(sink.kind, "")).removeprefix(f"{sink.kind}:"))
    if where.startswith(f"{directory}/") and directory.is_absolute():
        where = f"./{where.removeprefix(f'{directory}/')}"
    table = str(sink.options.get("table") or "")
    return " ".join(filter(None, (sink.kind, where, table if table != where else "")))


def describe_letters(spec: "Spec") -> str:
    letters = spec.dead_letters
    return f"{'files' if letters.kind == 'file' else letters.kind} {letters.target}".rstrip()


def read_texts(value: Any) -> list[str]:
    """A key of the kind `texts`: a list of them, or one."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else [str(each) for each in value]


def _hide_secrets(where: str) -> str:
    if "://" not in where:
        return where
    return re.sub(r"://[^/@]*@", "://", where).partition("?")[0].partition(";")[0]


def _clean_all(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    return tuple(Fact(_clean(each.text), each.mood) for each in facts)


def _clean(text: str) -> str:
    """On one line, and nothing in it that drives a terminal."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in " ".join(text.split()))
