"""The broker's numbers in Prometheus' form, made when somebody scrapes and never before.

Names are `penstock_<subsystem>_<name>_<unit>`. Labels come from fixed lists (protocol, request kind), never
from topics, clients or anything else a peer can invent, so the number of series is bounded.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from penstock import __version__
from penstock.observe.stats import Histogram, Stats


class Meaning(NamedTuple):
    """One field of `Stats` or one of the broker's gauges: its metric's name and help."""

    field: str
    name: str
    help: str


COUNTERS: tuple[Meaning, ...] = (
    Meaning("bytes_in", "broker_received_bytes", "Bytes read from client connections, framing included."),
    Meaning("bytes_out", "broker_sent_bytes", "Bytes written to client connections, framing included."),
    Meaning("connections_total", "broker_connections_accepted", "Client connections accepted since the start."),
    Meaning(
        "connections_refused",
        "broker_connections_refused",
        "Connections closed at once because limits.max_connections was reached: raise it, or find the leak.",
    ),
    Meaning(
        "protocol_errors",
        "broker_protocol_errors",
        "Frames or requests that were not valid in their protocol. Their connection was closed.",
    ),
    Meaning("appended_batches", "producer_batches", "Record batches appended to partition logs."),
    Meaning("appended_records", "producer_records", "Records appended to partition logs."),
    Meaning("appended_bytes", "producer_bytes", "Bytes of record batches appended, compressed as they came."),
    Meaning("fetched_bytes", "consumer_fetched_bytes", "Bytes of record batches handed to readers."),
    Meaning(
        "cold_reads",
        "storage_cold_reads",
        "Reads that were not in the page cache and went to a thread. A rise means readers lag behind memory.",
    ),
    Meaning("sync_files", "storage_synced_files", "Files made durable, over all sync rounds."),
    Meaning(
        "segments_rolled",
        "storage_segments_rolled",
        "Segments closed because they reached their size or age.",
    ),
    Meaning("segments_deleted", "storage_segments_deleted", "Segments removed by retention or topic deletion."),
    Meaning("compactions", "storage_compactions", "Passes of compaction that were put into place."),
    Meaning("compaction_read_bytes", "storage_compaction_read_bytes", "Log bytes those passes have read."),
    Meaning("compaction_dropped_bytes", "storage_compaction_dropped_bytes", "Log bytes those passes did without."),
    Meaning("compaction_dropped_records", "storage_compaction_dropped_records", "Records those passes did without."),
    Meaning("compaction_failures", "storage_compaction_failures", "Passes given up; the log stayed as it was."),
    Meaning("recovered_bytes", "storage_recovered_bytes", "Log bytes checked again after an unclean stop."),
    Meaning(
        "cut_bytes",
        "storage_cut_bytes",
        "Bytes cut off log ends in recovery because a write was torn. Nothing that was synced is among them.",
    ),
    Meaning("replica_fetches", "replication_fetches", "Answers this broker got from leaders it follows."),
    Meaning("copied_bytes", "replication_copied_bytes", "Log bytes copied from leaders."),
    Meaning("isr_changes", "replication_isr_changes", "Changes this broker made to in-sync sets it leads."),
    Meaning(
        "truncated_records",
        "replication_truncated_records",
        "Offsets taken back because the leader does not have them. Nothing that was committed is among them.",
    ),
    Meaning(
        "corrupt_blocks",
        "storage_corrupt_blocks",
        "Stored blocks whose checksum did not match. Anything above zero: look at the disk.",
    ),
)

HISTOGRAMS: tuple[Meaning, ...] = (
    Meaning(
        "append_latency",
        "storage_append_duration_seconds",
        "Time of writing one batch into its segment; the device is not waited for, unless too much is unwritten.",
    ),
    Meaning(
        "sync_latency",
        "storage_sync_duration_seconds",
        "Time of one sync round, which makes every file written meanwhile durable together.",
    ),
    Meaning(
        "loop_stall",
        "process_loop_stall_seconds",
        "How late the event loop served a timer, sampled. Every client waits that long on top.",
    ),
    Meaning("gc_pause", "process_gc_pause_seconds", "Time the garbage collector held up the process."),
)

STAT_GAUGES: tuple[Meaning, ...] = (
    Meaning("connections_open", "broker_connections", "Client connections open now."),
    Meaning("loop_stall_max_s", "process_loop_stall_max_seconds", "The longest stall sampled since the start."),
)

# What `Broker.gauges` may report; a name that is not here appears as penstock_broker_<name>.
BROKER_GAUGES: tuple[Meaning, ...] = (
    Meaning("topics", "broker_topics", "Topics this broker knows."),
    Meaning("partitions", "broker_partitions", "Partitions this broker holds."),
    Meaning("segments", "storage_segments", "Segment files on disk."),
    Meaning("log_bytes", "storage_log_bytes", "Bytes of segment files on disk."),
    Meaning("leaders", "replication_leaders", "Partitions this broker leads."),
    Meaning("under_replicated", "replication_under_replicated", "Of those, partitions with replicas not in sync."),
    Meaning("under_min_isr", "replication_under_min_isr", "Of those, partitions that cannot answer acks=all now."),
    Meaning("leaderless", "replication_leaderless", "Partitions of the cluster that nobody leads."),
    Meaning("brokers", "cluster_brokers", "Brokers that are there."),
    Meaning("is_controller", "cluster_is_controller", "1 on the broker that elects."),
)
_BROKER_GAUGES: Mapping[str, Meaning] = {meaning.field: meaning for meaning in BROKER_GAUGES}
_GAUGE_NAME = re.compile(r"^[a-z][a-z0-9_]*$")

REQUEST_LABELS = ("protocol", "request")


class Exposition:
    """Answers scrapes of one broker.

    Args:
        stats: The broker's counters.
        gauges: Called at each scrape for what is true now, such as the number of partitions.
    """

    def __init__(self, stats: Stats, gauges: Callable[[], Mapping[str, float]] = dict) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_BrokerCollector(stats, gauges))
        self._registry.register(_ProcessCollector())

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The body and its content type, in the form the scraper's Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _BrokerCollector(Collector):
    def __init__(self, stats: Stats, gauges: Callable[[], Mapping[str, float]]) -> None:
        self._stats = stats
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(
            "penstock_broker_build_info", "Always 1; the version is the label.", labels=["version"]
        )
        build.add_metric([__version__], 1)
        yield build
        yield from self._requests()
        for meaning in COUNTERS:
            yield CounterMetricFamily(
                "penstock_" + meaning.name, meaning.help, value=float(getattr(self._stats, meaning.field))
            )
        for meaning in STAT_GAUGES:
            yield GaugeMetricFamily(
                "penstock_" + meaning.name, meaning.help, value=float(getattr(self._stats, meaning.field))
            )
        for meaning in HISTOGRAMS:
            family = HistogramMetricFamily("penstock_" + meaning.name, meaning.help, labels=[])
            _add_histogram(family, [], getattr(self._stats, meaning.field))
            yield family
        for name, value in self._gauges().items():
            if not _GAUGE_NAME.match(name):
                raise ValueError(f"gauge {name!r} is no metric name")
            known = _BROKER_GAUGES.get(name) or Meaning(name, "broker_" + name, f"The broker's {name} now.")
            yield GaugeMetricFamily("penstock_" + known.name, known.help, value=float(value))

    def _requests(self) -> Iterator[Metric]:
        latency = HistogramMetricFamily(
            "penstock_broker_request_duration_seconds",
            "Time from a whole request received to its answer written, by protocol and request kind. "
            "A fetch that waits for data waits on purpose.",
            labels=REQUEST_LABELS,
        )
        errors = CounterMetricFamily(
            "penstock_broker_request_errors",
            "Requests that failed by a fault of the broker, by protocol and request kind.",
            labels=REQUEST_LABELS,
        )
        for labels, request in sorted(self._stats.requests.items()):
            _add_histogram(latency, labels, request.latency)
            errors.add_metric(labels, request.errors)
        yield latency
        yield errors


def _add_histogram(family: HistogramMetricFamily, labels: tuple[str, str] | list[str], histogram: Histogram) -> None:
    """Prometheus wants each bucket to hold the ones below it; ours do not, to keep observing cheap."""
    running = 0
    buckets: list[tuple[str, float]] = []
    for bound, cell in zip(histogram.bounds, histogram.cells, strict=False):
        running += cell
        buckets.append((str(bound), running))
    buckets.append(("+Inf", running + histogram.cells[-1]))
    family.add_metric(labels, buckets, histogram.total)


class _ProcessCollector(Collector):
    """What the kernel knows about this process; a figure it does not give is left out."""

    def __init__(self) -> None:
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._started_s = _process_start_s()

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "penstock_process_cpu_seconds", "Processor time used, user and system.", value=time.process_time()
        )
        yield GaugeMetricFamily(
            "penstock_process_start_time_seconds",
            "When the process started, in Unix time.",
            value=self._started_s,
        )
        resident = _read_proc("/proc/self/statm")
        if resident:
            yield GaugeMetricFamily(
                "penstock_process_resident_memory_bytes",
                "Memory of the process in RAM. The page cache that serves readers is not in it.",
                value=int(resident.split()[1]) * self._page_bytes,
            )
        descriptors = _count_descriptors()
        if descriptors is not None:
            yield GaugeMetricFamily("penstock_process_open_descriptors", "File descriptors in use.", value=descriptors)
        yield GaugeMetricFamily(
            "penstock_process_max_descriptors",
            "File descriptors the process may use; at the limit, connections and segments fail to open.",
            value=os.sysconf("SC_OPEN_MAX"),
        )


def _read_proc(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""


def _count_descriptors() -> int | None:
    try:
        # Linux 6.2 and later give the count as the directory's size; listing 10,000 names takes milliseconds.
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
    except OSError:
        return None


def _process_start_s() -> float:
    """Start time from the kernel (clock ticks after boot), or now where there is no such thing."""
    stat, uptime = _read_proc("/proc/self/stat"), _read_proc("/proc/uptime")
    if not stat or not uptime:
        return time.time()
    ticks = int(stat.rpartition(")")[2].split()[19])
    return time.time() - float(uptime.split()[0]) + ticks / os.sysconf("SC_CLK_TCK")
