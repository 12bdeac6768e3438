"""Where a pipeline began in its topics: settled once, before its first row, and written down.

`from: latest` then means the same after a crash in the first micro-batch, and a backfill knows the offsets up to which
it may go, without a gap and without an overlap.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.client.cluster import EARLIEST, Cluster
from penstock.client.errors import ClientError
from penstock.pipelines.errors import Finding, PipelineError, SpecError
from penstock.pipelines.home import sealed
from penstock.pipelines.model import Source, Spec
from penstock.pipelines.run.sources import Bounds, Offsets, topic_options
from penstock.spark.errors import SourceError
from penstock.spark.options.options import ReadOptions, parse_read
from penstock.spark.options.positions import Positions
from penstock.spark.read.topics import check_all_found, find_subscribed, resolve

FILE: Final = "beginning.json"
_WAY_OUT: Final = "Restore it from a backup, or begin anew: penstock pipeline reset"


class SourceUnavailable(PipelineError):
    """A source's brokers do not answer."""

    retriable = True


def load(directory: Path) -> dict[str, Offsets] | None:
    """By source; None before the first start."""
    body = sealed.load(directory / FILE, _WAY_OUT)
    return None if body is None else body["sources"]


def settle(spec: Spec, directory: Path, *, begun: bool, new: bool) -> dict[str, Bounds]:
    """Where each topic source begins; decided and written down if that was not done yet.

    Sources that follow a pattern are left out: they begin with each topic.

    Args:
        begun: a micro-batch was begun: what it read is in the checkpoint.
        new: no start has come as far as a query yet, so what was decided then does not bind.
    """
    known = None if new else load(directory)
    if known is None:
        known = {source.name: decide(spec, source) for source in spec.sources if is_fixed(source)}
        sealed.save(directory / FILE, {"sources": known})
    elif not begun:
        # Partitions that were added since are read from their beginning, and must be named.
        for source in spec.sources:
            if is_fixed(source) and source.name in known:
                first = find_offsets(source, read_options(spec, source), Positions("from", everywhere=EARLIEST))
                known[source.name] = {
                    topic: {**offsets, **known[source.name].get(topic, {})} for topic, offsets in first.items()
                }
    return {name: Bounds(offsets, None) for name, offsets in known.items() if spec.source(name) is not None}


def is_fixed(source: Source) -> bool:
    return source.kind == "topic" and not source.options.get("pattern")


def decide(spec: Spec, source: Source) -> Offsets:
    """The offsets that the source's `from` means now.

    Raises:
        SourceUnavailable: no broker answers.
        SpecError: a topic is missing, or an option is wrong.
    """
    options = read_options(spec, source)
    return find_offsets(source, options, options.starting)


def read_options(spec: Spec, source: Source) -> ReadOptions:
    try:
        return parse_read(topic_options(spec, source), streaming=True)
    except SourceError as error:
        raise SpecError([Finding(source.place, f"source {source.name}: {error}")]) from error


def find_offsets(source: Source, options: ReadOptions, positions: Positions) -> Offsets:
    """What positions mean now, for every partition of the source."""
    try:
        with Cluster(options.settings) as cluster:
            found = find_subscribed(cluster, options.subscription)
            check_all_found(found, options.subscription, options.settings.bootstrap)
            offsets = resolve(cluster, positions, found.partitions, read_committed=options.read_committed)
    except ClientError as error:
        kind = SourceUnavailable if error.retriable else PipelineError
        raise kind(f"source {source.name}: {error}") from error
    except SourceError as error:
        raise SpecError([Finding(source.place, f"source {source.name}: {error}")]) from error
    return nest(offsets)


def nest(offsets: Mapping[tuple[str, int], int]) -> Offsets:
    """By topic and partition, in order, the partition as text: as JSON has it."""
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested
