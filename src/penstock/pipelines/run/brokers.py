"""Whether the brokers of a pipeline's topics answer, and where the topics end: asked every few seconds.

Spark tells of a source when it has read something from it. While no broker answers it waits, for a minute or more, and
says nothing; and so it does while there is nothing to read. Hence somebody asks beside it, in a thread for each
cluster, with less patience.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Protocol

from penstock.client.cluster import LATEST, Cluster
from penstock.client.errors import Unreachable
from penstock.client.settings import Settings
from penstock.pipelines.model import Spec
from penstock.pipelines.run.beginning import read_options
from penstock.pipelines.run.watching import Places
from penstock.spark.options.options import ReadOptions
from penstock.spark.read.topics import check_all_found, find_subscribed

EVERY_S: Final = 2.0
_TIMEOUT_S: Final = 4.0
"""Of a connection and of an answer: a broker that is silent is told of within three of these."""


class Listener(Protocol):
    """Who wants to know; called from several threads."""

    def heard(self, source: str, latest: Places) -> None: ...

    def missed(self, source: str, reason: str) -> None: ...


@contextmanager
def asking(spec: Spec, listener: Listener, every_s: float = EVERY_S) -> Iterator[None]:
    """Ask for all topic sources until the block is left.

    Raises:
        SpecError: a source's options are wrong.
    """
    by_cluster: dict[Settings, dict[str, ReadOptions]] = {}
    for source in spec.sources:
        if source.kind == "topic":
            options = read_options(spec, source)
            to = replace(options.settings, timeout_s=min(options.settings.timeout_s, _TIMEOUT_S), patience_s=0.0)
            by_cluster.setdefault(to, {})[source.name] = options
    done = threading.Event()
    for to, sources in by_cluster.items():
        threading.Thread(
            target=_ask_on, args=(to, sources, listener, done, every_s), name=f"brokers of {spec.name}", daemon=True
        ).start()
    try:
        yield
    finally:
        done.set()  # an answer may be under way for some seconds yet; nobody needs it


def _ask_on(
    to: Settings, sources: Mapping[str, ReadOptions], listener: Listener, done: threading.Event, every_s: float
) -> None:
    with Cluster(to) as cluster:
        while True:
            _ask(cluster, sources, listener)
            if done.wait(every_s):
                return


def _ask(cluster: Cluster, sources: Mapping[str, ReadOptions], listener: Listener) -> None:
    for name, options in sources.items():
        try:
            latest = find_ends(cluster, options)
        except Unreachable as error:
            for each in sources:  # the next would wait for the same brokers
                listener.missed(each, f"source {each}: {error}")
            cluster.disconnect()
            return
        except Exception as error:  # noqa: BLE001 - a thread that ended here would leave "all is well" behind
            listener.missed(name, f"source {name}: {str(error) or type(error).__name__}")
        else:
            listener.heard(name, latest)


def find_ends(cluster: Cluster, options: ReadOptions) -> Places:
    """Where the source's partitions end now. Raises `ClientError`, `SourceError`."""
    cluster.refresh()
    found = find_subscribed(cluster, options.subscription)
    check_all_found(found, options.subscription, options.settings.bootstrap)
    ends = cluster.list_offsets(dict.fromkeys(found.partitions, LATEST), read_committed=options.read_committed)
    return {(topic, str(partition)): offset for (topic, partition), offset in ends.items()}
