"""The broker's numbers in Prometheus' form, made when somebody scrapes and never before.

Names are `penstock_<subsystem>_<name>_<unit>`. Labels come from fixed lists (protocol, request kind, a group's state)
and from settings (files), never from clients or anything else a peer can invent, so the number of series is bounded.
Queues have names here because somebody made them; there is a most of those, too (`server/queue_survey.py`).
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from penstock import __version__
from penstock.observe.meanings import BROKER_GAUGES, COUNTERS, HISTOGRAMS, LABELLED_COUNTERS, STAT_GAUGES, Meaning
from penstock.observe.stats import Histogram, Stats

_BROKER_GAUGES: Mapping[str, Meaning] = {meaning.field: meaning for meaning in BROKER_GAUGES}
_GAUGE_NAME = re.compile(r"^[a-z][a-z0-9_]*$")

REQUEST_LABELS = ("protocol", "request")
Gauge = float | Mapping[str, float] | Mapping[tuple[str, ...], float]
Gauges = Mapping[str, Gauge]
"""What is true now by name; where a meaning has a label or several, by their values."""


class Exposition:
    """Answers scrapes of one broker.

    Args:
        stats: The broker's counters.
        gauges: Called at each scrape for what is true now, such as the number of partitions.
    """

    def __init__(self, stats: Stats, gauges: Callable[[], Gauges] = dict) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_BrokerCollector(stats, gauges))
        self._registry.register(_ProcessCollector())

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The body and its content type, in the form the scraper's Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _BrokerCollector(Collector):
    def __init__(self, stats: Stats, gauges: Callable[[], Gauges]) -> None:
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
        for counted in LABELLED_COUNTERS:
            each = CounterMetricFamily("penstock_" + counted.name, counted.help, labels=counted.labels)
            for labels, count in sorted(getattr(self._stats, counted.field).items()):
                each.add_metric(labels, count)
            yield each
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
            yield _gauge(known, value)

    def _requests(self) -> Iterator[Metric]:
        latency = HistogramMetricFamily(
            "penstock_broker_request_duration_seconds",
            "Time from a whole request received to its answer written, by protocol and request kind. "
            "Includes the time that a fetch waits for data.",
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


def _gauge(meaning: Meaning, value: Gauge) -> Metric:
    name = "penstock_" + meaning.name
    if not isinstance(value, Mapping):
        return GaugeMetricFamily(name, meaning.help, value=float(value))
    family = GaugeMetricFamily(name, meaning.help, labels=meaning.labels or [meaning.label])
    for label, each in value.items():
        family.add_metric([label] if isinstance(label, str) else label, float(each))
    return family


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
        self._clock_offset_s = time.time() - time.monotonic()

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "penstock_process_cpu_seconds", "Processor time used, user and system.", value=time.process_time()
        )
        yield GaugeMetricFamily(
            "penstock_process_start_time_seconds",
            "When the process started, in Unix time.",
            value=self._started_s,
        )
        yield GaugeMetricFamily(
            "penstock_process_clock_shift_seconds",
            "How far the wall clock was set, or the machine slept, since the start. Time-outs do not depend on it.",
            value=time.time() - time.monotonic() - self._clock_offset_s,
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
