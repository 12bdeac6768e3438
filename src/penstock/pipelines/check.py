"""What can be said against a pipeline before it runs: by its file and what it names, and by Spark's analysis.

Nothing is changed anywhere: no topic, table or directory is made.
"""

import difflib
import glob
import importlib.util
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError, Unreachable
from penstock.client.settings import Settings
from penstock.extras import install_line
from penstock.pipelines.errors import Finding, Missing, PipelineError, SpecError
from penstock.pipelines.model import Place, SinkSpec, Source, Spec
from penstock.pipelines.sinks import open_sink
from penstock.pipelines.sinks.contract import Context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipelines.run.graph import Graph
    from penstock.spark.options.subscription import Subscription

T = TypeVar("T")

DEADLINE_S: Final = 10.0
"""How long a broker or a sink may take to answer."""
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_COLUMN_KEYS: Final = ("partition_by", "cluster_by", "keys", "order_by", "without")
"""Keys of sinks that hold names of columns."""


class _Library(NamedTuple):
    module: str
    package: str
    extra: str


_PSYCOPG: Final = _Library("psycopg", "psycopg", "pipelines")
_LIBRARIES: Final[Mapping[str, tuple[_Library, ...]]] = {
    "parquet": (_Library("pyarrow", "pyarrow", "pipelines"),),
    "delta": (_Library("deltalake", "deltalake", "pipelines"),),
    "iceberg": (_Library("pyiceberg", "pyiceberg", "pipelines"),),
    "bigquery": (_Library("google.cloud.bigquery", "google-cloud-bigquery", "bigquery"),),
}


def check_static(spec: Spec, *, reach: bool) -> list[Finding]:
    """Everything that can be told without Spark, by the order of lines.

    Args:
        reach: whether brokers and sinks are asked, all at the same time; each has `DEADLINE_S`.
    """
    found = [*_check_functions(spec), *_check_files(spec), *_check_schemas(spec)]
    subscriptions, wrong = _read_subscriptions(spec)
    usable, missing = _find_libraries(spec)
    found += [*wrong, *missing]
    if reach:
        found += _check_reach(spec, subscriptions, usable)
    return sorted(found, key=_line)


def check_analysed(spec: Spec, spark: "SparkSession") -> list[Finding]:
    """What Spark says of sources, queries, functions, expectations, and columns that sinks name. No job runs."""
    from penstock.pipelines.run.graph import build
    from penstock.pipelines.run.run import apply_settings, with_functions
    from penstock.pipelines.run.sessions import new_session

    own = new_session(spark)
    try:
        apply_settings(spec, own)
        graph = build(with_functions(spec), own)
    except SpecError as error:
        return list(error.findings)
    found = [each for sink in spec.sinks for each in _check_columns(graph, sink)]
    return sorted([*found, *_check_state(graph)], key=_line)


def _check_state(graph: "Graph") -> Iterator[Finding]:
    """Steps whose state never ends, and those that Spark would refuse when the query starts."""
    from penstock.pipelines.run.plans import explain_join, find_endless_joins, find_refusal, plan_of

    known: set[str] = set()
    for name, node in graph.nodes.items():
        if not node.own_state:
            continue
        endless = [each for each in find_endless_joins(plan_of(node.raw)) if each.line not in known]
        known |= {each.line for each in endless}
        for each in endless:
            yield Finding(node.made.place, f"step {name}: {explain_join(each)}")
        refusal = "" if known else find_refusal(node.raw, graph.spec.mode)
        if refusal:
            yield Finding(node.made.place, f"step {name}: Spark does not stream it: {refusal}")
            return  # the steps above it would be refused for the same reason


def _line(finding: Finding) -> tuple[str, int]:
    return (finding.place.file, finding.place.line) if finding.place else ("", 0)


def _check_functions(spec: Spec) -> Iterator[Finding]:
    from penstock.pipelines.spec.functions import read_signature

    for step in spec.steps:
        if step.python and step.function is None:
            place = step.place or spec.place or Place(str(spec.file or spec.name), 1)
            try:
                read_signature(step.name, step.python, place, spec.directory)
            except SpecError as error:
                yield from error.findings


def _check_files(spec: Spec) -> Iterator[Finding]:
    for source in spec.sources:
        if source.kind == "files" and source.is_static:
            patterns = _texts(source.options.get("files"))
            for pattern in patterns:
                if not _matches(pattern, spec.directory):
                    yield Finding(
                        source.place,
                        f"source {source.name}: no file is found by {pattern!r} in {spec.directory.absolute()}",
                    )
        schema = source.options.get("schema_file")
        if schema and not (spec.directory / str(schema)).is_file():
            yield Finding(source.place, f"source {source.name}: schema_file {schema!r}: there is no such file")


def _check_schemas(spec: Spec) -> Iterator[Finding]:
    for source in spec.sources:
        text = source.options.get("schema")
        told = _try_schema(source, str(text)) if text else ""
        if told:
            yield Finding(source.place, f"source {source.name}: {told.replace('value.schema', 'schema', 1)}")


def _try_schema(source: Source, text: str) -> str:
    """What is wrong with the names and types of a schema, "" where nobody here can tell."""
    try:
        from penstock.spark.formats.ddl import UnknownTypeError, parse_schema
    except ImportError:
        return ""  # without pyspark nothing will run either, and that is told elsewhere
    from penstock.spark.errors import FormatError

    try:
        if source.kind == "files" or source.options.get("format") in ("json", "msgpack"):
            parse_schema(text)
    except UnknownTypeError as error:
        # Files are read by Spark itself, which may know types that its topics do not have.
        return str(error) if source.kind == "topic" or error.nearest else ""
    except FormatError as error:
        return str(error) if source.kind == "topic" else ""
    return ""


def _matches(pattern: str, directory: Path) -> bool:
    """Whether Spark would find a file by the pattern; of file systems that are elsewhere nothing is known."""
    pattern = pattern.removeprefix("file://") if pattern.startswith("file:///") else pattern.removeprefix("file:")
    if "://" in pattern:
        return True
    for each in _spread(pattern):
        for path in map(Path, glob.iglob(str(directory / each))):
            if path.is_file() or any(_is_data(below) for below in path.rglob("*")):
                return True
    return False


def _is_data(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(("_", "."))


def _spread(pattern: str) -> list[str]:
    """`a.{csv,txt}` as a.csv and a.txt: Spark's patterns know such words, Python's do not."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    return [
        each
        for word in match[1].split(",")
        for each in _spread(pattern[: match.start()] + word + pattern[match.end() :])
    ]


class _Wanted(NamedTuple):
    """Topics that somebody needs. `subscription` is None for what is made when it is missing."""

    who: str
    place: Place | None
    subscription: "Subscription | None"


def _read_subscriptions(spec: Spec) -> tuple[dict[Settings, list[_Wanted]], list[Finding]]:
    """Whom to ask for which topics, and what is wrong with the options of sources."""
    from penstock.pipelines.run.sources import kafka_options, topic_options
    from penstock.spark.errors import SourceError
    from penstock.spark.options.options import parse_read, parse_write

    wanted: dict[Settings, list[_Wanted]] = {}
    wrong: list[Finding] = []
    for source in spec.sources:
        if source.kind != "topic":
            continue
        try:
            options = parse_read(topic_options(spec, source), streaming=True)
        except (SourceError, ValueError) as error:
            wrong.append(Finding(source.place, f"source {source.name}: {error}"))
            continue
        asked = _Wanted(f"source {source.name}", source.place, options.subscription)
        wanted.setdefault(_impatient(options.settings), []).append(asked)
    letters = spec.dead_letters
    if letters.kind == "topic":
        place = letters.place or spec.place
        try:
            settings = parse_write(kafka_options(spec.server, spec.client), streaming=False).settings
        except SourceError as error:
            wrong.append(Finding(place, f"dead letters: {error}"))
        else:
            wanted.setdefault(_impatient(settings), []).append(_Wanted("dead letters", place, None))
    return wanted, wrong


def _impatient(settings: Settings) -> Settings:
    return replace(settings, timeout_s=min(settings.timeout_s, DEADLINE_S / 2), patience_s=0.0)


def _find_libraries(spec: Spec) -> tuple[list[SinkSpec], list[Finding]]:
    """The sinks whose client libraries are installed, and what is missing for the others."""
    usable: list[SinkSpec] = []
    missing: list[Finding] = []
    for sink in spec.sinks:
        absent = [each for each in _libraries(sink) if not _is_installed(each.module)]
        if not absent:
            usable.append(sink)
        for each in absent:
            text = f"sink {sink.name}: {each.package} is not installed: {install_line(each.extra)}"
            missing.append(Missing(_place(sink, sink.kind), text))
    return usable, missing


def _libraries(sink: SinkSpec) -> tuple[_Library, ...]:
    if sink.kind == "jdbc":
        url = str(sink.options.get("jdbc", "")).removeprefix("jdbc:")
        return (_PSYCOPG,) if url.startswith("postgres") else ()
    return _LIBRARIES.get(sink.kind, ())


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that it would be in
        return False


def _place(sink: SinkSpec, key: str) -> Place | None:
    return sink.places.get(key) or sink.place


def _check_reach(
    spec: Spec, subscriptions: Mapping[Settings, list[_Wanted]], sinks: Sequence[SinkSpec]
) -> list[Finding]:
    """Asks all brokers and sinks at once. Brokers that do not answer are told of once, not by every topic."""
    deadline = time.monotonic() + DEADLINE_S
    answers = {to: _begin(partial(_ask_topics, to, wanted)) for to, wanted in subscriptions.items()}
    probes = [(sink, _begin(partial(_probe, spec, sink))) for sink in sinks]
    found: list[Finding] = []
    away: set[str] = set()
    for to, asked in answers.items():
        wanted = subscriptions[to]
        try:
            found += asked.result(max(0.0, deadline - time.monotonic()))
        except (Unreachable, TooLate) as error:
            away.add(to.bootstrap)
            found.append(Finding(wanted[0].place, _tell_away(to, error)))
        except ClientError as error:
            found.append(Finding(wanted[0].place, f"{wanted[0].who}: {error}"))
    for sink, probed in probes:
        finding = _await_probe(sink, probed, deadline)
        told_already = sink.kind == "topic" and (sink.options.get("server") or spec.server) in away
        if finding is not None and not told_already:
            found.append(finding)
    return found


def _begin(call: Callable[[], T]) -> "Future[T]":
    """Runs in a thread that nobody waits for when the time is up."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def _tell_away(settings: Settings, error: Exception) -> str:
    told = str(error) if isinstance(error, Unreachable) else f"no broker answers at {settings.bootstrap}"
    return f"{told}; is it running? `server` names another"


def _ask_topics(settings: Settings, wanted: Sequence[_Wanted]) -> list[Finding]:
    from penstock.spark.read.topics import find_subscribed

    found: list[Finding] = []
    with Cluster(settings) as cluster:
        cluster.ask("metadata", topics=[], allow_auto_topic_creation=False)
        for who, place, subscription in wanted:
            if subscription is None:
                continue
            there = find_subscribed(cluster, subscription).ids
            if subscription.kind == "subscribePattern":
                if not there:
                    text = f"{who}: no topic at {settings.bootstrap} is like {subscription.pattern!r}"
                    found.append(Finding(place, text))
                continue
            found += [
                Finding(place, f"{who}: {_tell_missing(name, settings, cluster)}")
                for name in subscription.topics or subscription.assigned
                if name not in there
            ]
    return found


def _tell_missing(topic: str, settings: Settings, cluster: Cluster) -> str:
    close = difflib.get_close_matches(topic, list(cluster.topics(None)), n=1)
    way_out = f"did you mean {close[0]!r}?" if close else f"make it with: penstock topic create {topic}"
    return f"there is no topic {topic!r} at {settings.bootstrap}; {way_out}"


def _probe(spec: Spec, sink: SinkSpec) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-check-") as state:
        opened = open_sink(sink, Context(spec.name, spec.server, spec.client, spec.directory, Path(state)))
        try:
            opened.probe()
        finally:
            opened.close()


def _await_probe(sink: SinkSpec, probed: "Future[None]", deadline: float) -> Finding | None:
    place = _place(sink, sink.kind)
    try:
        probed.result(max(0.0, deadline - time.monotonic()))
    except TooLate:
        return Finding(place, f"sink {sink.name}: no answer within {DEADLINE_S:g} s")
    except PipelineError as error:
        return Finding(place, _name_sink(sink, str(error)))
    except Exception as error:  # noqa: BLE001 - client libraries raise what they like
        return Finding(place, f"sink {sink.name}: {type(error).__name__}: {' '.join(str(error).split())}")
    return None


def _name_sink(sink: SinkSpec, text: str) -> str:
    return text if text.startswith(f"sink {sink.name}") else f"sink {sink.name}: {text}"


def _check_columns(graph: "Graph", sink: SinkSpec) -> Iterator[Finding]:
    """Columns and expressions that a sink's keys name, against the rows it gets."""
    columns = graph.schema_of(sink.source).fieldNames()
    known = {name.lower() for name in columns}
    for key in _COLUMN_KEYS:
        for name in _texts(sink.options.get(key)):
            # Iceberg's transforms, such as day(at), are no names.
            if name.isidentifier() and name.lower() not in known:
                text = f"{key}: {sink.source} has no column {name!r}; it has {', '.join(columns)}"
                yield Finding(_place(sink, key), f"sink {sink.name}: {text}")
    if sink.kind == "topic":
        yield from _check_expressions(graph, sink)


def _check_expressions(graph: "Graph", sink: SinkSpec) -> Iterator[Finding]:
    from pyspark.errors import PySparkException

    from penstock.pipelines.run.mistakes import explain

    rows = graph.nodes[sink.source].checked.good
    expressions = [(key, str(text)) for key in ("key", "value") if (text := sink.options.get(key))]
    expressions += [("headers", str(text)) for text in (sink.options.get("headers") or {}).values()]
    for key, text in expressions:
        try:
            _ = rows.selectExpr(text).schema
        except PySparkException as error:
            yield Finding(_place(sink, key), f"sink {sink.name}: {key}: {explain(error)}")


def _texts(value: object) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else [str(each) for each in value]  # type: ignore[attr-defined]
