"""Health and metrics on a real port, and peers who do not speak HTTP well."""

import asyncio
import contextlib
import json
import resource
import signal
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
import uvloop

from penstock import __version__
from penstock.errors import StartupError, WrongSettings
from penstock.observe.metrics import Exposition
from penstock.observe.stats import Stats
from penstock.server import http
from penstock.server.front_page import Whereabouts
from penstock.server.health import Health
from penstock.server.http import GuardedHttp, HttpDoor, create_app
from penstock.server.http_login import Admission

DEADLINE_S = 30


class Site:
    """A door in front of an app whose answers the test changes."""

    def __init__(self, max_connections: int = http.MAX_CONNECTIONS) -> None:
        self.reasons: list[str] = []
        self.troubles: list[str] = []
        self.kafka = "broker-3:9092"
        self.admission = Admission.ALLOWED
        self.challenge = {"www-authenticate": "Bearer"}
        self.stats = Stats()
        exposition = Exposition(self.stats, lambda: {"topics": 5})
        app = create_app(
            health=Health([lambda: self.reasons], [lambda: self.troubles]),
            summary=lambda: {"topics": 5},
            scrape=exposition.render,
            whereabouts=lambda: Whereabouts(3, self.kafka),
            stats=self.stats,
            login=self,  # type: ignore[arg-type]
        )
        self.door = HttpDoor("127.0.0.1", 0, app, max_connections)

    async def admit(self, host: str, authorization: str) -> Admission:
        return self.admission

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.door.address)

    async def get(self, path: str, **kwargs: object) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.url, timeout=DEADLINE_S, trust_env=False) as client:
            return await client.get(path, **kwargs)  # type: ignore[arg-type]

    async def talk(self, data: bytes) -> bytes:
        """Send bytes, read to the end of the connection."""
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await asyncio.open_connection(*self.door.address)
            try:
                writer.write(data)
                return await reader.read()
            except ConnectionError:
                return b""
            finally:
                writer.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    await made.door.open()
    yield made
    await made.door.close()


async def test_live(site: Site) -> None:
    site.reasons = ["recovering"]
    response = await site.get("/health/live")
    assert (response.status_code, response.json()) == (200, {"status": "live"})
    assert response.headers["cache-control"] == "no-store"
    assert "server" not in response.headers


async def test_ready_follows_the_reasons(site: Site) -> None:
    site.reasons = ["recovering 3 of 10 partitions", "kafka listener not open"]
    response = await site.get("/health/ready")
    assert response.status_code == 503
    assert response.json() == {"status": "not ready", "reasons": site.reasons}
    site.reasons = []
    response = await site.get("/health/ready")
    assert (response.status_code, response.json()) == (200, {"status": "ready", "reasons": []})


async def test_health_summary(site: Site) -> None:
    body = (await site.get("/health")).json()
    assert (body["status"], body["topics"]) == ("healthy", 5)
    assert body["version"]
    site.troubles = ["t-0 is offline"]
    body = (await site.get("/health")).json()
    assert (body["status"], body["reasons"]) == ("degraded", ["t-0 is offline"])
    assert (await site.get("/health/ready")).status_code == 200
    site.reasons = ["x"]
    body = (await site.get("/health")).json()
    assert (body["status"], body["reasons"]) == ("unhealthy", ["x", "t-0 is offline"])


async def test_who_may_not_describe_the_cluster_sees_no_more_than_a_probe_does(site: Site) -> None:
    site.admission = Admission.REFUSED
    for path in ("/health", "/metrics"):
        refused = await site.get(path)
        assert (refused.status_code, refused.json()["code"]) == (403, "not_authorised")
        assert "topics" not in refused.text
    assert (await site.get("/health/live")).status_code == 200
    assert (await site.get("/health/ready")).status_code == 200
    site.admission = Admission.UNKNOWN
    asked = await site.get("/metrics")
    assert (asked.status_code, asked.json()["code"]) == (401, "not_authenticated")
    assert asked.headers["www-authenticate"] == "Bearer"


async def test_metrics(site: Site) -> None:
    response = await site.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert "penstock_broker_topics 5.0" in response.text
    openmetrics = await site.get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.text.endswith("# EOF\n")


_PLACES = ("/health", "/health/live", "/health/ready", "/metrics")


async def test_the_front_page_says_what_is_where(site: Site) -> None:
    response = await site.get("/", headers={"accept": "*/*"})
    assert (response.status_code, response.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert response.text.startswith(f"Penstock {__version__}, broker 3\n")
    assert "broker-3:9092" in response.text and "docs/" in response.text
    for place in _PLACES:
        assert f"\n{place} " in response.text
        assert (await site.get(place)).status_code == 200
    site.kafka = ""
    assert "not listening yet" in (await site.get("/")).text


async def test_a_browser_gets_the_front_page_as_html(site: Site) -> None:
    site.kafka = "<b>:9092"
    response = await site.get("/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<!doctype html>" in response.text and f"Penstock {__version__}, broker 3" in response.text
    assert "&lt;b&gt;:9092" in response.text and "<b>" not in response.text
    for place in _PLACES:
        assert f'<a href="{place}">' in response.text


async def test_where_nothing_is_the_way_to_what_there_is(site: Site) -> None:
    response = await site.get("/topics", headers={"accept": "text/html"})
    assert (response.status_code, response.headers["content-type"]) == (404, "text/plain; charset=utf-8")
    assert response.text.startswith("there is nothing at '/topics'; GET / lists what is here: /health, ")
    assert (await site.get("/" + "x" * 5000)).text.count("x") < 200


async def test_requests_are_counted_under_bounded_names(site: Site) -> None:
    site.reasons = ["not yet"]
    for path in ("/health/live", "/health/ready", "/made/up/1", "/made/up/2"):
        await site.get(path)
    cells = site.stats.requests
    assert {kind for _, kind in cells} == {"health", "live", "ready", "metrics", "other"}
    assert cells["http", "live"].latency.count == 1
    assert cells["http", "other"].latency.count == 2
    assert cells["http", "other"].errors == 2
    assert cells["http", "ready"].errors == 0


async def test_other_methods_and_paths(site: Site) -> None:
    assert (await site.get("/nothing")).status_code == 404
    async with httpx.AsyncClient(base_url=site.url, timeout=DEADLINE_S, trust_env=False) as client:
        assert (await client.post("/health/live", content=b"x" * 100_000)).status_code == 405
        assert (await client.head("/health/live")).status_code == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x10\x00\x12\x00\x03aaaaaaaaaaaa",  # a Kafka client at the wrong port
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST /health HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_answered_400_and_closed(site: Site, data: bytes) -> None:
    assert (await site.talk(data)).startswith(b"HTTP/1.1 400 ")
    assert (await site.get("/health/live")).status_code == 200


async def test_a_websocket_upgrade_is_just_a_request(site: Site) -> None:
    head = b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"
    assert (await site.talk(head)).startswith(b"HTTP/1.1 200 ")


async def test_an_endless_head_is_cut_off(site: Site) -> None:
    answer = await site.talk(b"GET / HTTP/1.1\r\nx: " + b"a" * (4 * GuardedHttp.max_head_bytes))
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")  # the reset may overtake the answer
    assert (await site.get("/health/live")).status_code == 200


async def test_a_body_may_be_larger_than_a_head(site: Site) -> None:
    size = 4 * GuardedHttp.max_head_bytes
    async with httpx.AsyncClient(base_url=site.url, timeout=DEADLINE_S, trust_env=False) as client:
        for _ in range(2):
            assert (await client.post("/health/live", content=b"b" * size)).status_code == 405
        assert (await client.get("/health/live")).status_code == 200


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET /health/live HTTP/1.1\r\nHost:",
        b"POST /health/live HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc",
    ],
)
async def test_a_request_that_never_ends_is_dropped(site: Site, start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GuardedHttp, "request_deadline_s", 0.05)
    await site.talk(start)  # returns only because the door closes the connection


async def test_the_deadline_counts_for_each_request_of_a_connection(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "KEEP_ALIVE_S", 3600)
    door = HttpDoor("127.0.0.1", 0, site.door._app)
    await door.open()
    reader, writer = await asyncio.open_connection(*door.address)
    writer.write(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(DEADLINE_S):
        await reader.readuntil(b'{"status":"live"}')
        monkeypatch.setattr(GuardedHttp, "request_deadline_s", 0.05)
        writer.write(b"GET /health/li")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
    await door.close()


ASK = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_when_it_is_crowded_who_has_not_asked_for_longest_makes_room() -> None:
    site = Site(max_connections=2)
    await site.door.open()
    async with asyncio.timeout(DEADLINE_S):
        first = await asyncio.open_connection(*site.door.address)
        first[1].write(ASK)
        await first[0].readuntil(b"}")
        slow = await asyncio.open_connection(*site.door.address)
        slow[1].write(ASK[:-1])
        first[1].write(ASK)
        await first[0].readuntil(b"}")
        third = await asyncio.open_connection(*site.door.address)
        third[1].write(ASK)
        assert (await third[0].readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        with contextlib.suppress(ConnectionResetError):
            assert await slow[0].read() == b""
        first[1].write(ASK)
        assert (await first[0].readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
    for _, writer in (first, slow, third):
        writer.close()
    await site.door.close()


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.0.0.2"])
async def test_a_probe_is_answered_in_a_flood_of_slow_requests(site: Site, peer: str) -> None:
    flood, soft = 1200, resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = flood + http.MAX_CONNECTIONS + 200
    if soft[0] < needed:
        if 0 <= soft[1] < needed:
            pytest.skip(f"needs {needed} descriptors, {soft[1]} are allowed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, soft[1]))
    held = []
    try:
        async with asyncio.timeout(DEADLINE_S):
            for at in range(flood):
                sock = socket.socket()
                held.append(sock)
                sock.setblocking(False)
                sock.bind((peer, 0))
                await asyncio.get_running_loop().sock_connect(sock, site.door.address)
                with contextlib.suppress(ConnectionError):
                    sock.send(b"GET /health/live HTTP/1.1\r\nx: ")
                if at % 200 == 199:
                    assert (await site.get("/health/live")).status_code == 200
            assert (await site.get("/metrics")).status_code == 200
        assert site.door._server is not None
        assert len(site.door._server.server_state.connections) <= http.MAX_CONNECTIONS + 1
    finally:
        for sock in held:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, soft)


async def test_requests_that_nobody_reads_the_answers_of_do_not_pile_up(site: Site) -> None:
    answers = await site.talk(ASK * (http.MAX_PIPELINED + 2))  # all in one piece, before the first is answered
    assert answers.count(b"200 OK") == 0
    assert (await site.talk(ASK * 5 + ASK[:-2] + b"Connection: close\r\n\r\n")).count(b"200 OK") == 6


async def stop_with_peers(site: Site) -> None:
    """Stop while one peer is idle, one half-way through a head and one was just refused."""
    idle = await asyncio.open_connection(*site.door.address)
    half = await asyncio.open_connection(*site.door.address)
    half[1].write(b"GET / HT")
    assert (await site.talk(b"\x00\x00\x00\x10")).startswith(b"HTTP/1.1 400 ")
    assert site.door.accepting
    async with asyncio.timeout(DEADLINE_S):
        await site.door.close()
    assert not site.door.accepting
    assert await idle[0].read() == b""
    with pytest.raises(OSError):  # noqa: PT011 - refused or reset, by kernel
        await asyncio.open_connection(*site.door.address)
    for _, writer in (idle, half):
        writer.close()


async def test_stop_is_prompt_with_idle_and_half_open_peers(site: Site) -> None:
    await stop_with_peers(site)


def test_the_same_on_the_loop_a_broker_runs_on() -> None:
    async def life() -> None:
        site = Site()
        await site.door.open()
        assert (await site.get("/health/live")).status_code == 200
        await stop_with_peers(site)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(life())


async def test_stop_without_start_and_twice() -> None:
    site = Site()
    await site.door.close()
    await site.door.open()
    await site.door.close()
    await site.door.close()


async def test_signals_stay_with_the_process(site: Site) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert all(getattr(handler, "__self__", None) is not site.door._server for handler in handlers)


async def test_a_taken_port_is_a_startup_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        door = HttpDoor("127.0.0.1", port, Site().door._app)
        with pytest.raises(WrongSettings, match=f"listeners.http = 127.0.0.1:{port} cannot be used: Address already"):
            await door.open()


async def test_a_name_that_does_not_resolve_is_a_startup_error() -> None:
    door = HttpDoor("no such host", 0, Site().door._app)
    with pytest.raises(StartupError, match="cannot be used"):
        await door.open()


async def test_a_failing_answer_is_a_500_and_nothing_more(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> list[str]:
        raise RuntimeError("broken on purpose")

    app = create_app(
        health=Health([fail]),
        summary=dict,
        scrape=lambda accept: (b"", "text/plain"),
        whereabouts=lambda: Whereabouts(3, ""),
        stats=site.stats,
    )
    door = HttpDoor("127.0.0.1", 0, app)
    await door.open()
    async with httpx.AsyncClient(timeout=DEADLINE_S, trust_env=False) as client:
        base = "http://{}:{}".format(*door.address)
        assert (await client.get(base + "/health/ready")).status_code == 500
        assert json.loads((await client.get(base + "/health/live")).text) == {"status": "live"}
    await door.close()
