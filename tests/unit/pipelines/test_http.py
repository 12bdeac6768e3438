"""Health and metrics of pipelines, asked for over a real port."""

import socket
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.pipelines.errors import PipelineError
from penstock.pipelines.home import SinkStatus, SourceStatus, State, Status, StepStatus
from penstock.pipelines.http import STALE_MS, HttpServer, create_app, judge, parse_address

NOW_MS = 1_800_000_000_000

REVENUE = Status(
    "revenue",
    State.RUNNING,
    updated_ms=NOW_MS,
    batches=12,
    batch_s=0.25,
    lag=7,
    dead_letters=3,
    restarts=2,
    sources={"orders": SourceStatus(100, 5.0, 7), "customers": SourceStatus(40, 0.0, None)},
    steps={"clean": StepStatus(97, {"has id": 2, "positive": 1}), "hourly": StepStatus(5)},
    sinks={"lake": SinkStatus("delta", 95, 5.0, 2), "back": SinkStatus("topic", 97)},
)
SEARCH = Status("search", State.WAITING, "broker at x:9092 is away", updated_ms=NOW_MS - 5 * STALE_MS)


LABELS = ("pipeline", "state", "source", "step", "expectation", "sink", "kind")


class Site:
    def __init__(self) -> None:
        self.statuses: list[Status] = []
        self.not_ready: list[str] = []
        app = create_app(lambda: self.statuses, not_ready=lambda: self.not_ready, clock_ms=lambda: NOW_MS)
        self.server = HttpServer("127.0.0.1", 0, app)
        self.server.start()

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"http://{self.server.address}{path}", headers=headers, timeout=30)


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.server.stop()


def test_nothing_runs(site: Site) -> None:
    answer = site.get("/health")
    assert (answer.status_code, answer.json()["status"], answer.json()["pipelines"]) == (200, "healthy", {})
    assert site.get("/health/live").json() == {"status": "live"}
    assert site.get("/health/ready").json() == {"status": "ready", "reasons": []}
    assert site.get("/nothing").status_code == 404


@pytest.mark.parametrize(
    ("status", "health", "reason"),
    [
        (Status("a", State.RUNNING, updated_ms=NOW_MS - STALE_MS), "healthy", ""),
        (Status("a", State.RUNNING, updated_ms=NOW_MS - STALE_MS - 1), "degraded", "has said nothing for 30 s"),
        (Status("a", State.STARTING, updated_ms=NOW_MS), "healthy", ""),
        (Status("a", State.WAITING, "sink lake is away", updated_ms=NOW_MS), "degraded", "sink lake is away"),
        (Status("a", State.STOPPED), "healthy", ""),
        (Status("a", State.FINISHED), "healthy", ""),
        (Status("a", State.FAILED, "no column at"), "unhealthy", "no column at"),
    ],
)
def test_how_healthy_a_pipeline_is(status: Status, health: str, reason: str) -> None:
    verdict = judge(status, NOW_MS)
    assert verdict.health == health
    assert reason in verdict.reason


def test_the_whole_is_as_healthy_as_the_worst(site: Site) -> None:
    site.statuses = [REVENUE]
    assert site.get("/health").json()["status"] == "healthy"
    site.statuses = [REVENUE, SEARCH]
    answer = site.get("/health")
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    assert answer.json()["pipelines"]["search"] == {
        "status": "degraded",
        "state": "waiting",
        "reason": "broker at x:9092 is away",
        "lag": None,
    }
    site.statuses = [Status("a", State.FAILED, "oh"), REVENUE, SEARCH]
    answer = site.get("/health")
    assert (answer.status_code, answer.json()["status"]) == (503, "unhealthy")
    assert answer.json()["pipelines"]["revenue"]["status"] == "healthy"
    assert site.get("/health/live").status_code == 200


def test_lag_of_what_has_ended_is_not_told(site: Site) -> None:
    site.statuses = [replace(REVENUE, state=State.STOPPED)]
    assert site.get("/health").json()["pipelines"]["revenue"]["lag"] is None
    assert "lag_rows{" not in site.get("/metrics").text
    site.statuses = [REVENUE]
    assert site.get("/health").json()["pipelines"]["revenue"]["lag"] == 7
    assert "lag_rows{" in site.get("/metrics").text


def test_ready(site: Site) -> None:
    site.not_ready = ["Spark is starting"]
    site.statuses = [Status("a", State.STARTING)]
    answer = site.get("/health/ready")
    assert (answer.status_code, answer.json()["reasons"]) == (503, ["Spark is starting", "a is starting"])


def test_metrics(site: Site) -> None:
    site.statuses = [REVENUE, SEARCH]
    answer = site.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(answer.text))
    assert all(family.name.startswith("penstock_pipeline_") and family.documentation for family in families)
    found = {
        (
            sample.name.removeprefix("penstock_pipeline_"),
            *(sample.labels[each] for each in LABELS if each in sample.labels),
        ): sample.value
        for family in families
        for sample in family.samples
        if sample.labels["pipeline"] == "revenue" and (family.name != "penstock_pipeline_state" or sample.value)
    }
    assert found == {
        ("state", "revenue", "running"): 1,
        ("batches_total", "revenue"): 12,
        ("batch_seconds", "revenue"): 0.25,
        ("dead_letters_total", "revenue"): 3,
        ("restarts_total", "revenue"): 2,
        ("updated_timestamp_seconds", "revenue"): NOW_MS / 1000,
        ("rows_total", "revenue", "orders"): 100,
        ("rows_total", "revenue", "customers"): 40,
        ("lag_rows", "revenue", "orders"): 7,
        ("expectation_failures_total", "revenue", "clean", "has id"): 2,
        ("expectation_failures_total", "revenue", "clean", "positive"): 1,
        ("sink_rows_total", "revenue", "lake", "delta"): 95,
        ("sink_rows_total", "revenue", "back", "topic"): 97,
        ("sink_rejected_rows_total", "revenue", "lake", "delta"): 2,
        ("sink_rejected_rows_total", "revenue", "back", "topic"): 0,
    }
    states = {
        sample.labels["state"]: sample.value
        for family in families
        if family.name == "penstock_pipeline_state"
        for sample in family.samples
        if sample.labels["pipeline"] == "search"
    }
    assert states == {state.value: float(state is State.WAITING) for state in State}


def test_metrics_in_the_form_that_is_asked_for(site: Site) -> None:
    site.statuses = [REVENUE]
    answer = site.get("/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_a_port_that_is_taken(site: Site) -> None:
    host, port = parse_address(site.server.address)
    with pytest.raises(PipelineError, match=rf"--http {host}:{port} cannot be bound.*choose another port"):
        HttpServer(host, port, create_app(list)).start()


def test_after_the_stop_nobody_answers() -> None:
    site = Site()
    assert site.get("/health/live").status_code == 200
    site.server.stop()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(parse_address(site.server.address), timeout=30)
    site.server.stop()


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:9100", ("::1", 9100)),
        (":9100", ("127.0.0.1", 9100)),
        ("9100", ("127.0.0.1", 9100)),
    ],
)
def test_addresses(word: str, meant: tuple[str, int]) -> None:
    assert parse_address(word) == meant


@pytest.mark.parametrize("word", ["", "host", "host:", "host:x", "host:70000", "host:-1"])
def test_what_is_no_address(word: str) -> None:
    with pytest.raises(PipelineError, match="is no HOST:PORT"):
        parse_address(word)
