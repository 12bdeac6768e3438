"""Plain counters and histograms: an addition on the hot path, turned into Prometheus' form only when scraped."""

from bisect import bisect_left

LOGIN_MECHANISMS = ("password", "scram", "api key", "certificate")
SUCCEEDED, FAILED, TOO_EARLY = LOGIN_OUTCOMES = ("succeeded", "failed", "too early")
QUEUE_SETTLED = (
    "acked",
    "gone",
    "expired",
    "rejected",
    "exhausted",
    "buried",
    "overflowed",
    "cancelled",
    "purged",
    "trimmed",
    "cancelled",
)
QUEUE_RETURNED = ("nack", "release", "overdue", "lost", "unread")
QUEUE_DEATHS = ("rejected", "attempts", "deliveries", "expired", "overflow")
QUEUE_LANES = ("critical", "high", "normal", "low", "background")
LATENCY_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Histogram:
    """Counts per bucket, not cumulative; the last cell is everything above the last bound."""

    __slots__ = ("bounds", "cells", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BUCKETS_S) -> None:
        self.bounds = bounds
        self.cells = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.cells[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.cells)


class RequestStats:
    """One protocol request kind, such as Kafka's Produce."""

    __slots__ = ("errors", "latency")

    def __init__(self) -> None:
        self.errors = 0
        self.latency = Histogram()


class Stats:
    """Every number of one broker. Rooms add to the fields they own; nobody subtracts but the owner of a gauge."""

    __slots__ = (
        "append_latency",
        "appended_batches",
        "appended_bytes",
        "appended_records",
        "bytes_in",
        "bytes_out",
        "cold_reads",
        "compaction_dropped_bytes",
        "compaction_dropped_records",
        "compaction_failures",
        "compaction_read_bytes",
        "compactions",
        "connections_open",
        "connections_refused",
        "connections_total",
        "controller_terms",
        "copied_bytes",
        "corrupt_blocks",
        "cut_bytes",
        "denials",
        "fetched_bytes",
        "gc_pause",
        "isr_changes",
        "leaderships_lost",
        "leaderships_taken",
        "logins",
        "loop_stall",
        "loop_stall_max_s",
        "malformed_copies",
        "mended_replicas",
        "moved_bytes",
        "protocol_errors",
        "queue_burial_failures",
        "queue_dead_letters",
        "queue_duplicates",
        "queue_lane_arrived",
        "queue_lane_delivered",
        "queue_leased",
        "queue_redriven",
        "queue_returned",
        "queue_schedule_failures",
        "queue_scheduled",
        "queue_settled",
        "queue_unread_headers",
        "recovered_bytes",
        "refused_markers",
        "replica_fetches",
        "requests",
        "scrubbed_bytes",
        "segments_deleted",
        "segments_rolled",
        "sync_files",
        "sync_latency",
        "thinnings",
        "truncated_records",
        "unchecked_copies",
    )

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], RequestStats] = {}  # (protocol, request kind), both from fixed lists
        self.logins = {(way, outcome): 0 for way in LOGIN_MECHANISMS for outcome in LOGIN_OUTCOMES}
        self.denials = {("describe", "cluster"): 0}  # (operation, kind of thing), of the engine's two lists
        self.queue_leased = 0
        self.queue_settled = {(how,): 0 for how in QUEUE_SETTLED}
        self.queue_returned = {(cause,): 0 for cause in QUEUE_RETURNED}
        self.queue_dead_letters = {(reason,): 0 for reason in QUEUE_DEATHS}
        self.queue_duplicates = {("",): 0}  # by topic, so many at most (`once.windows`)
        self.queue_redriven = 0
        self.queue_lane_arrived = {(lane,): 0 for lane in QUEUE_LANES}
        self.queue_lane_delivered = {(lane,): 0 for lane in QUEUE_LANES}
        self.queue_burial_failures = 0
        self.queue_unread_headers = 0
        self.queue_scheduled = 0
        self.queue_schedule_failures = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections_open = 0
        self.connections_total = 0
        self.connections_refused = 0
        self.protocol_errors = 0
        self.appended_batches = 0
        self.appended_records = 0
        self.appended_bytes = 0
        self.append_latency = Histogram()
        self.sync_latency = Histogram()  # its count is the number of sync rounds
        self.sync_files = 0
        self.fetched_bytes = 0
        self.cold_reads = 0
        self.segments_rolled = 0
        self.segments_deleted = 0
        self.compactions = 0
        self.thinnings = 0
        self.compaction_read_bytes = 0
        self.compaction_dropped_bytes = 0
        self.compaction_dropped_records = 0
        self.compaction_failures = 0
        self.recovered_bytes = 0
        self.cut_bytes = 0
        self.corrupt_blocks = 0
        self.scrubbed_bytes = 0
        self.copied_bytes = 0
        self.malformed_copies = 0
        self.unchecked_copies = 0
        self.replica_fetches = 0
        self.isr_changes = 0
        self.leaderships_taken = 0
        self.leaderships_lost = 0
        self.controller_terms = 0
        self.moved_bytes = 0
        self.mended_replicas = 0
        self.truncated_records = 0
        self.refused_markers = 0
        self.loop_stall = Histogram()
        self.loop_stall_max_s = 0.0
        self.gc_pause = Histogram()

    def request(self, protocol: str, kind: str) -> RequestStats:
        """The cell of one request kind, made on first use; callers keep it."""
        return self.requests.setdefault((protocol, kind), RequestStats())
