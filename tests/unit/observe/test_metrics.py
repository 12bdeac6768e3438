"""A scrape holds every number the broker keeps, in names and forms Prometheus accepts."""

import time

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from penstock.engine.access import Kind, Operation
from penstock.engine.queues.entries import How
from penstock.engine.queues.headers import Reason
from penstock.engine.queues.tally import PURGED, TRIMMED, Back
from penstock.observe.meanings import COUNTERS, HISTOGRAMS, LABELLED_COUNTERS, STAT_GAUGES
from penstock.observe.metrics import Exposition, Gauges
from penstock.observe.stats import LOGIN_MECHANISMS, Histogram, Stats
from penstock.security.methods import Method


def scrape(stats: Stats, gauges: Gauges | None = None) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    body, content_type = Exposition(stats, lambda: gauges or {}).render()
    assert content_type.startswith("text/plain")
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(body.decode()):
        assert family.documentation, family.name
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_every_stat_has_a_metric() -> None:
    covered = {m.field for m in (*COUNTERS, *HISTOGRAMS, *STAT_GAUGES)} | {m.field for m in LABELLED_COUNTERS}
    covered.add("requests")
    assert covered == set(Stats.__slots__)


def test_each_stat_lands_under_its_own_name() -> None:
    stats = Stats()
    for number, meaning in enumerate((*COUNTERS, *STAT_GAUGES), start=11):
        setattr(stats, meaning.field, number)
    found = scrape(stats)
    for number, meaning in enumerate(COUNTERS, start=11):
        assert found[f"penstock_{meaning.name}_total"][()] == number
    for number, meaning in enumerate(STAT_GAUGES, start=11 + len(COUNTERS)):
        assert found[f"penstock_{meaning.name}"][()] == number


def test_logins_and_denials_are_told_apart_by_labels_from_fixed_lists() -> None:
    """All outcomes of logins are there from the start: what a series begins with is no increase to Prometheus."""
    stats = Stats()
    assert tuple(each.value for each in Method) == LOGIN_MECHANISMS
    assert all(Operation(operation) and Kind(kind) for operation, kind in stats.denials)
    stats.logins["scram", "failed"] += 3
    stats.denials["read", "topic"] = 2
    found = scrape(stats)
    logins = found["penstock_security_logins_total"]
    assert len(logins) == len(LOGIN_MECHANISMS) * 3 and sum(logins.values()) == 3
    assert logins[("mechanism", "scram"), ("outcome", "failed")] == 3
    denials = found["penstock_security_denials_total"]
    assert denials == {
        (("kind", "cluster"), ("operation", "describe")): 0,
        (("kind", "topic"), ("operation", "read")): 2,
    }


def test_the_names_dashboards_rely_on() -> None:
    stats = Stats()
    stats.request("kafka", "Produce").latency.observe(0.002)
    found = scrape(stats, {"partitions": 1, "topics": 1, "segments": 1, "log_bytes": 1})
    assert {
        "penstock_broker_build_info",
        "penstock_broker_request_duration_seconds_bucket",
        "penstock_broker_request_duration_seconds_count",
        "penstock_broker_request_duration_seconds_sum",
        "penstock_broker_request_errors_total",
        "penstock_broker_received_bytes_total",
        "penstock_broker_sent_bytes_total",
        "penstock_broker_connections",
        "penstock_broker_connections_accepted_total",
        "penstock_broker_connections_refused_total",
        "penstock_broker_protocol_errors_total",
        "penstock_broker_topics",
        "penstock_broker_partitions",
        "penstock_producer_batches_total",
        "penstock_producer_records_total",
        "penstock_producer_bytes_total",
        "penstock_consumer_fetched_bytes_total",
        "penstock_storage_append_duration_seconds_bucket",
        "penstock_storage_sync_duration_seconds_bucket",
        "penstock_storage_synced_files_total",
        "penstock_storage_cold_reads_total",
        "penstock_storage_segments_rolled_total",
        "penstock_storage_segments_deleted_total",
        "penstock_storage_recovered_bytes_total",
        "penstock_storage_cut_bytes_total",
        "penstock_storage_corrupt_blocks_total",
        "penstock_storage_segments",
        "penstock_storage_log_bytes",
        "penstock_process_loop_stall_seconds_bucket",
        "penstock_process_loop_stall_max_seconds",
        "penstock_process_gc_pause_seconds_bucket",
        "penstock_process_resident_memory_bytes",
        "penstock_process_open_descriptors",
        "penstock_process_max_descriptors",
        "penstock_process_cpu_seconds_total",
        "penstock_process_start_time_seconds",
    } <= set(found)


def test_buckets_are_cumulative() -> None:
    stats = Stats()
    stats.sync_latency = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        stats.sync_latency.observe(value)
    found = scrape(stats)
    name = "penstock_storage_sync_duration_seconds"
    assert {dict(labels)["le"]: value for labels, value in found[name + "_bucket"].items()} == {
        "0.1": 2,
        "1.0": 3,
        "+Inf": 4,
    }
    assert found[name + "_count"][()] == 4
    assert abs(found[name + "_sum"][()] - 7.65) < 1e-9


def test_requests_are_labelled_by_protocol_and_kind() -> None:
    stats = Stats()
    stats.request("kafka", "Fetch").errors += 3
    stats.request("kafka", "Produce").latency.observe(0.3)
    found = scrape(stats)
    assert found["penstock_broker_request_errors_total"][(("protocol", "kafka"), ("request", "Fetch"))] == 3
    counts = found["penstock_broker_request_duration_seconds_count"]
    assert counts[(("protocol", "kafka"), ("request", "Produce"))] == 1


def test_process_figures_are_plausible() -> None:
    found = scrape(Stats())
    assert found["penstock_process_resident_memory_bytes"][()] > 1_000_000
    assert 3 <= found["penstock_process_open_descriptors"][()] <= found["penstock_process_max_descriptors"][()]
    assert found["penstock_process_cpu_seconds_total"][()] > 0
    assert 1.6e9 < found["penstock_process_start_time_seconds"][()] < 1e11


def test_an_unlisted_gauge_still_shows() -> None:
    assert scrape(Stats(), {"waiters": 4})["penstock_broker_waiters"][()] == 4


def test_a_gauge_with_a_label_has_a_series_for_each_value() -> None:
    found = scrape(Stats(), {"groups": {"Stable": 3, "Empty": 0}})["penstock_group_groups"]
    assert found == {(("state", "Stable"),): 3, (("state", "Empty"),): 0}


def test_a_gauge_with_several_labels_has_a_series_for_each_of_their_values() -> None:
    messages: dict[tuple[str, ...], float] = {("orders", 'a "b"\n', "ready"): 3}
    found = scrape(Stats(), {"queue_messages": messages})["penstock_queue_messages"]
    assert found == {(("group", 'a "b"\n'), ("state", "ready"), ("topic", "orders")): 3}


def test_all_that_becomes_of_a_message_is_counted_from_the_start() -> None:
    """What a series begins with is no increase to Prometheus: the first dead letter must be one."""
    assert {*((how.name.lower(),) for how in How), (PURGED,), (TRIMMED,)} == set(Stats().queue_settled)
    assert {(back.value,) for back in Back} == set(Stats().queue_returned)
    assert {(reason.value,) for reason in Reason} == set(Stats().queue_dead_letters)


def test_a_clock_that_is_set_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    exposition = Exposition(Stats())
    now = time.time()
    monkeypatch.setattr("penstock.observe.metrics.time.time", lambda: now + 3600)
    families = {each.name: each for each in text_string_to_metric_families(exposition.render()[0].decode())}
    (sample,) = families["penstock_process_clock_shift_seconds"].samples
    assert 3595 < sample.value < 3605


def test_openmetrics_on_request() -> None:
    stats = Stats()
    stats.request("kafka", "Fetch").latency.observe(0.3)
    body, content_type = Exposition(stats).render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert "penstock_broker_received_bytes" in {family.name for family in parse_openmetrics(body.decode())}
