"""Health and metrics on a real port, and peers who do not speak HTTP well."""

import asyncio
import contextlib
import json
import resource
import signal
import socket
import ssl
from collections.abc import AsyncIterator

import httpx
import pytest
import uvloop
from starlette.types import Receive, Scope, Send
from tests.unit.net.certificates import Authority

from penstock import __version__
from penstock.errors import StartupError, WrongSettings
from penstock.net.certificates import Certificates, KeyPair, TlsSettings
from penstock.observe.metrics import Exposition
from penstock.observe.stats import Stats
from penstock.server import http
from penstock.server.front_page import Whereabouts
from penstock.server.health import Health
from penstock.server.http import GuardedHttp, HttpDoor, create_app
from penstock.server.http_login import Admission, Asker
from penstock.server.system_clock import SystemClock

DEADLINE_S = 30
PROBE_S = 4  # as who restarts brokers that do not answer allows


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.make(tmp_path_factory.mktemp("http") / "ca")
    made.sign("server")
    return made


class Site:
    """A door in front of an app whose answers the test changes."""

    def __init__(self, max_connections: int = http.MAX_CONNECTIONS, authority: Authority | None = None) -> None:
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
        self.trusted: ssl.SSLContext | None = None
        tls = None
        if authority is not None:
            self.trusted = ssl.create_default_context(cafile=authority.certificate)
            pair = KeyPair(str(authority.directory / "server.pem"), str(authority.directory / "server.key"))
            tls = Certificates(TlsSettings(pair, protocols=("http/1.1",)), SystemClock())
        self.door = HttpDoor("127.0.0.1", 0, app, max_connections, tls=tls)

    async def admit(self, asker: Asker) -> Admission:
        return self.admission

    async def knows(self, asker: Asker) -> bool:
        return self.admission is Admission.ALLOWED

    def client(self) -> httpx.AsyncClient:
        host, port = self.door.address
        scheme = "http" if self.trusted is None else "https"
        verify = True if self.trusted is None else self.trusted
        return httpx.AsyncClient(
            base_url=f"{scheme}://{host}:{port}", timeout=DEADLINE_S, trust_env=False, verify=verify
        )

    async def get(self, path: str, **kwargs: object) -> httpx.Response:
        async with self.client() as client:
            return await client.get(path, **kwargs)  # type: ignore[arg-type]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.door.address, ssl=self.trusted)

    async def talk(self, data: bytes) -> bytes:
        """Send bytes, read to the end of the connection."""
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await self.connect()
            try:
                writer.write(data)
                return await reader.read()
            except ConnectionError:
                return b""
            finally:
                writer.close()


@pytest.fixture(params=["plain", "tls"])
async def site(request: pytest.FixtureRequest, authority: Authority) -> AsyncIterator[Site]:
    made = Site(authority=authority if request.param == "tls" else None)
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


async def test_names_are_for_who_may_describe_the_cluster(site: Site) -> None:
    """Of listeners and brokers, of this one and where it is: words of status are all that others get."""
    site.admission, site.reasons = Admission.UNKNOWN, ["the Kafka listener inside is not open yet"]
    told = await site.get("/health/ready")
    assert (told.status_code, told.json()) == (503, {"status": "not ready"})
    for accept in ("text/plain", "text/html"):
        page = await site.get("/", headers={"accept": accept})
        assert page.status_code == 200 and "/health/live" in page.text
        for secret in ("broker 3", site.kafka, __version__):
            assert secret not in page.text
    lost = await site.get("/nowhere")
    assert lost.status_code == 404 and "broker" not in lost.text


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
    async with site.client() as client:
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


def short_lines(count: int) -> bytes:
    """A head but for its end."""
    return b"GET /health/live HTTP/1.1\r\nHost: x\r\n" + b"ab:c\r\n" * count


async def test_a_head_of_many_short_lines_is_refused_before_it_has_come_to_its_end(site: Site) -> None:
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await site.connect()
        writer.write(short_lines(1000))
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
    assert (await site.talk(short_lines(300) + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_heads_that_wait_for_their_answers_take_no_more_together(site: Site) -> None:
    """Those that are answered do not count."""
    assert await site.talk((short_lines(300) + b"\r\n") * 5) == b""
    async with site.client() as client:
        many = {f"x-{number}": "y" for number in range(300)}
        assert [(await client.get("/health/live", headers=many)).status_code for _ in range(10)] == [200] * 10


async def test_what_follows_a_body_is_not_kept(site: Site) -> None:
    head = b"POST /health/live HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    answers = await site.talk(head + b"ab:c\r\n" * 1000 + b"\r\n" + ASK[:-2] + b"Connection: close\r\n\r\n")
    assert (answers.count(b" 405 "), answers.count(b" 200 OK")) == (1, 1)


async def test_a_body_may_be_larger_than_a_head(site: Site) -> None:
    size = 4 * GuardedHttp.max_head_bytes
    async with site.client() as client:
        for _ in range(2):
            assert (await client.post("/health/live", content=b"b" * size)).status_code == 405
        (here,) = site.door._server.server_state.connections
        assert isinstance(here, GuardedHttp)
        assert here.cycle.body == b""  # it is not kept
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


@pytest.mark.parametrize("is_tls", [False, True])
async def test_when_it_is_crowded_who_has_not_asked_for_longest_makes_room(is_tls: bool, authority: Authority) -> None:
    site = Site(max_connections=2, authority=authority if is_tls else None)
    await site.door.open()
    async with asyncio.timeout(DEADLINE_S):
        first = await site.connect()
        first[1].write(ASK)
        await first[0].readuntil(b"}")
        slow = await site.connect()
        slow[1].write(ASK[:-1])
        first[1].write(ASK)
        await first[0].readuntil(b"}")
        third = await site.connect()
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
@pytest.mark.parametrize("said", [b"", b"GET /health/live HTTP/1.1\r\nx: ", b"\x16\x03\x01\x02\x00\x01"])
async def test_a_probe_is_answered_in_a_flood_of_slow_peers(site: Site, peer: str, said: bytes) -> None:
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
                    sock.send(said)
                if at % 200 == 199:
                    async with asyncio.timeout(PROBE_S):
                        assert (await site.get("/health/live")).status_code == 200
            assert (await site.get("/metrics")).status_code == 200
        assert site.door._server is not None
        assert len(site.door._server.server_state.connections) <= http.MAX_CONNECTIONS + 1
    finally:
        for sock in held:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, soft)


async def test_handshakes_that_do_not_go_on_make_room_the_oldest_first(authority: Authority) -> None:
    site = Site(max_connections=2, authority=authority)
    await site.door.open()
    pending = [await asyncio.open_connection(*site.door.address) for _ in range(4)]
    for _, writer in pending[::2]:
        writer.write(b"\x16\x03\x01\x02\x00\x01")
    try:
        async with asyncio.timeout(PROBE_S):
            assert (await site.get("/health/live")).status_code == 200
            for reader, _ in pending[:2]:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
    finally:
        for _, writer in pending:
            writer.close()
        await site.door.close()


async def test_only_http_1_is_agreed_on_under_tls(authority: Authority) -> None:
    site = Site(authority=authority)
    await site.door.open()
    assert site.trusted is not None
    site.trusted.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await site.connect()
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
    writer.close()
    await site.door.close()


async def test_an_answer_under_tls_waits_for_a_slow_reader_and_arrives_whole(authority: Authority) -> None:
    size, held = 8 << 20, asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        for start in range(0, size, 1 << 16):
            body = bytes([start >> 16 & 0xFF]) * (1 << 16)
            sending = asyncio.ensure_future(send({"type": "http.response.body", "body": body, "more_body": True}))
            await asyncio.wait({sending}, timeout=0.05)
            if not sending.done():
                held.set()
            await sending
        await send({"type": "http.response.body", "body": b""})

    site = Site(authority=authority)
    site.door._app = app
    await site.door.open()
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection(*site.door.address, ssl=site.trusted, limit=1 << 16)
        writer.write(ASK)
        await held.wait()  # it is not all in memory
        await reader.readuntil(b"\r\n\r\n")
        found = await reader.readexactly(size)
    assert all(found[at] == at >> 16 & 0xFF for at in range(0, size, 1 << 16))
    writer.close()
    await site.door.close()


async def test_requests_that_nobody_reads_the_answers_of_do_not_pile_up(site: Site) -> None:
    answers = await site.talk(ASK * (http.MAX_PIPELINED + 2))  # all in one piece, before the first is answered
    assert answers.count(b"200 OK") == 0
    assert (await site.talk(ASK * 5 + ASK[:-2] + b"Connection: close\r\n\r\n")).count(b"200 OK") == 6


async def stop_with_peers(site: Site) -> None:
    """Stop while one peer is idle, one half-way through a head and one was just refused."""
    idle = await site.connect()
    half = await site.connect()
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


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_port_that_another_one_is_quicker_to_listen_on_is_a_startup_error(
    is_tls: bool, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may bind it."""
    site = Site(authority=authority if is_tls else None)
    bind = HttpDoor._bind

    async def bind_late(door: HttpDoor) -> socket.socket:
        found = await bind(door)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(found.getsockname())
        other.listen()
        return found

    monkeypatch.setattr(HttpDoor, "_bind", bind_late)
    with socket.socket() as other, pytest.raises(StartupError):
        await site.door.open()
    assert not site.door.accepting
    await site.door.close()


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
