"""Health and metrics of pipelines over HTTP, from their status and nothing else.

Starlette under uvicorn, in a thread with an event loop of its own: who runs pipelines has no loop to share.

A pipeline is unhealthy when it failed; degraded when it waits for something that is away, or says it runs and has said
nothing for half a minute; else healthy. The whole is as healthy as the worst.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import uvicorn
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from penstock import __version__
from penstock.pipelines.errors import Misconfigured
from penstock.pipelines.home.status import State, Status, now_ms

STALE_MS: Final = 30_000
_MAX_CONNECTIONS: Final = 64
_KEEP_ALIVE_S: Final = 15
_STOP_GRACE_S: Final = 1
_NO_STORE: Final = {"cache-control": "no-store"}

Statuses = Callable[[], Sequence[Status]]


class Health(StrEnum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


_BY_SEVERITY: Final = tuple(Health)


class Verdict(NamedTuple):
    health: Health
    reason: str


def judge(status: Status, at_ms: int) -> Verdict:
    """How healthy a pipeline is at a time, and why it is not."""
    if status.state is State.FAILED:
        return Verdict(Health.UNHEALTHY, status.reason or "it failed")
    if status.state is State.WAITING:
        return Verdict(Health.DEGRADED, status.reason or "something is away")
    silent_ms = at_ms - status.updated_ms
    if status.state is State.RUNNING and silent_ms > STALE_MS:
        return Verdict(Health.DEGRADED, f"it says that it runs, and has said nothing for {silent_ms // 1000} s")
    return Verdict(Health.HEALTHY, status.reason)


def create_app(
    statuses: Statuses, *, not_ready: Callable[[], Sequence[str]] = tuple, clock_ms: Callable[[], int] = now_ms
) -> ASGIApp:
    """The app that answers health and metrics.

    Args:
        statuses: of all pipelines, called for every request; must not block.
        not_ready: why nothing can run here yet.
    """

    def known() -> Sequence[Status]:
        return [each.without_lag() if each.state.has_ended else each for each in statuses()]

    registry = CollectorRegistry(auto_describe=False)
    registry.register(PipelineCollector(known))

    async def live(request: Request) -> Response:
        return JSONResponse({"status": "live"}, headers=_NO_STORE)  # that it answers is the answer

    async def ready(request: Request) -> Response:
        starting = [f"{each.pipeline} is starting" for each in statuses() if each.state is State.STARTING]
        reasons = [*not_ready(), *starting]
        body = {"status": "not ready" if reasons else "ready", "reasons": reasons}
        return JSONResponse(body, 503 if reasons else 200, headers=_NO_STORE)

    async def health(request: Request) -> Response:
        verdicts = {each.pipeline: (each, judge(each, clock_ms())) for each in known()}
        worst = max(
            (verdict.health for _, verdict in verdicts.values()), key=_BY_SEVERITY.index, default=Health.HEALTHY
        )
        pipelines = {
            name: {"status": verdict.health, "state": status.state, "reason": verdict.reason, "lag": status.lag}
            for name, (status, verdict) in verdicts.items()
        }
        body = {"status": worst, "pipelines": pipelines, "version": __version__}
        return JSONResponse(body, 503 if worst is Health.UNHEALTHY else 200, headers=_NO_STORE)

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    return Starlette(
        routes=[
            Route("/health/live", live),
            Route("/health/ready", ready),
            Route("/health", health),
            Route("/metrics", metrics),
        ]
    )


class PipelineCollector(Collector):
    """The numbers of pipelines in Prometheus' form, `penstock_pipeline_<what>`. Labels are names that stand in the
    pipelines' files, never something out of rows."""

    def __init__(self, statuses: Statuses) -> None:
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        statuses = list(self._statuses())
        yield from self._pipelines(statuses)
        yield from self._sources(statuses)
        yield from self._steps(statuses)
        yield from self._sinks(statuses)

    def _pipelines(self, statuses: Sequence[Status]) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            _name("state"), "1 for the state a pipeline is in, else 0.", labels=["pipeline", "state"]
        )
        for each in statuses:
            for possible in State:
                state.add_metric([each.pipeline, possible.value], float(each.state is possible))
        yield state
        batches = CounterMetricFamily(_name("batches"), "Micro-batches written.", labels=["pipeline"])
        letters = CounterMetricFamily(_name("dead_letters"), "Rows that went to the dead letters.", labels=["pipeline"])
        restarts = CounterMetricFamily(
            _name("restarts"), "How often trouble was waited for and the query begun again.", labels=["pipeline"]
        )
        seconds = GaugeMetricFamily(_name("batch_seconds"), "How long the last micro-batch took.", labels=["pipeline"])
        updated = GaugeMetricFamily(
            _name("updated_timestamp_seconds"), "When these numbers were true, in Unix time.", labels=["pipeline"]
        )
        for each in statuses:
            name = [each.pipeline]
            batches.add_metric(name, each.batches)
            letters.add_metric(name, each.dead_letters)
            restarts.add_metric(name, each.restarts)
            seconds.add_metric(name, each.batch_s)
            updated.add_metric(name, each.updated_ms / 1000)
        yield from (batches, letters, restarts, seconds, updated)

    def _sources(self, statuses: Sequence[Status]) -> Iterator[Metric]:
        labels = ["pipeline", "source"]
        rows = CounterMetricFamily(_name("rows"), "Rows read from a source.", labels=labels)
        lag = GaugeMetricFamily(
            _name("lag_rows"), "Rows that are there and not read yet, where that can be told.", labels=labels
        )
        for status in statuses:
            for name, source in status.sources.items():
                rows.add_metric([status.pipeline, name], source.rows)
                if source.lag is not None:
                    lag.add_metric([status.pipeline, name], source.lag)
        yield from (rows, lag)

    def _steps(self, statuses: Sequence[Status]) -> Iterator[Metric]:
        failures = CounterMetricFamily(
            _name("expectation_failures"),
            "Rows that broke an expectation, whatever became of them.",
            labels=["pipeline", "step", "expectation"],
        )
        for status in statuses:
            for name, step in status.steps.items():
                for expectation, count in step.failed.items():
                    failures.add_metric([status.pipeline, name, expectation], count)
        yield failures

    def _sinks(self, statuses: Sequence[Status]) -> Iterator[Metric]:
        labels = ["pipeline", "sink", "kind"]
        rows = CounterMetricFamily(_name("sink_rows"), "Rows written to a sink.", labels=labels)
        rejected = CounterMetricFamily(
            _name("sink_rejected_rows"), "Rows a sink refused, which went to the dead letters.", labels=labels
        )
        for status in statuses:
            for name, sink in status.sinks.items():
                rows.add_metric([status.pipeline, name, sink.kind], sink.rows)
                rejected.add_metric([status.pipeline, name, sink.kind], sink.rejected)
        yield from (rows, rejected)


def _name(what: str) -> str:
    return f"penstock_pipeline_{what}"


def parse_address(word: str) -> tuple[str, int]:
    """`host:port`, `[::1]:0`, or a port alone for 127.0.0.1. Raises `Misconfigured`."""
    host, _, port = word.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise Misconfigured(f"{word!r} is no HOST:PORT to answer health and metrics on; as 127.0.0.1:9100")
    return host.strip("[]") or "127.0.0.1", int(port)


class HttpServer:
    """Serves an app on one address between `start` and `stop`.

    Args:
        port: 0 lets the system choose; `address` tells which after `start`.
    """

    def __init__(self, host: str, port: int, app: ASGIApp) -> None:
        self._host = host
        self._port = port
        self._app = app
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    def start(self) -> None:
        """Bind, and answer in a thread. Raises `Misconfigured`: the address cannot be had."""
        sock = self._bind()
        self._host, self._port = sock.getsockname()[:2]
        config = uvicorn.Config(
            self._app,
            ws="none",
            lifespan="off",
            interface="asgi3",
            loop="asyncio",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_STOP_GRACE_S,
        )
        self._server = server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[sock])), name="pipelines http", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Let running answers finish for a second, and close. Does nothing when not started."""
        if self._server is None or self._thread is None:
            return
        self._server.should_exit = True
        self._thread.join(_STOP_GRACE_S + 2)
        self._server = self._thread = None

    def _bind(self) -> socket.socket:
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            raise Misconfigured(
                f"--http {self.address} cannot be used: {error.strerror or error}. Choose an address of this machine"
            ) from None
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen()  # from here on a client is not refused, though the thread may still be on its way
        except OSError as error:
            sock.close()
            raise Misconfigured(
                f"--http {self.address} cannot be bound: {error.strerror or error}. Stop what uses it, or choose "
                "another port; 0 takes any that is free"
            ) from None
        return sock
