"""Who is let in over HTTP, by a real broker: in every mode, by password and by certificate, and for how long."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.unit.net.certificates import Authority
from tests.unit.net.test_certificates import revoke

from penstock.security.secret import Secret
from penstock.server.broker import Broker
from penstock.server.config import Address, Config, Listener, Listeners, ListenerTls, Security
from penstock.server.http_login import Admission, Asker, HttpLogin

FREE = Address("127.0.0.1", 0)
DEADLINE_S = 30
PASSWORD = "correct horse"  # noqa: S105 - of a test's broker
BOTH = ("/health", "/metrics")


@asynccontextmanager
async def running(
    directory: Path,
    *,
    mode: str = "",
    auth: tuple[str, ...] = ("basic",),
    tls: ListenerTls | None = None,
    more: tuple[Listener, ...] = (),
    supers: tuple[str, ...] = (),
) -> AsyncIterator[Broker]:
    secret = directory / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    listeners = Listeners(
        kafka=FREE, http=FREE, more=more, is_named=True, auth={"http": auth}, tls={} if tls is None else {"http": tls}
    )
    security = Security(mode=mode, admin_password_file=secret, super_users=supers)
    broker = Broker(Config(data_dir=directory / "data", listeners=listeners, security=security))
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


def browse(broker: Broker, context: ssl.SSLContext | None = None) -> httpx.AsyncClient:
    scheme, verify = ("http", True) if context is None else ("https", context)
    url = f"{scheme}://{broker.ready_words['http']}"
    return httpx.AsyncClient(base_url=url, verify=verify, trust_env=False, timeout=DEADLINE_S)


@pytest.mark.parametrize("mode", ["open", "watch", "closed"])
async def test_a_listener_with_auth_asks_for_a_login_in_every_mode(tmp_path: Path, mode: str) -> None:
    async with running(tmp_path, mode=mode) as broker, browse(broker) as client:
        for path in BOTH:
            assert (await client.get(path)).status_code == 401
            assert (await client.get(path, auth=("admin", "wrong"))).status_code == 401
        assert "reasons" not in (await client.get("/health/ready")).json()
        assert "broker 1" not in (await client.get("/")).text
    async with running(tmp_path, mode=mode) as broker, browse(broker) as client:
        for path in BOTH:
            assert (await client.get(path, auth=("admin", PASSWORD))).status_code == 200
        assert (await client.get("/health/ready", auth=("admin", PASSWORD))).json() == {
            "status": "ready",
            "reasons": [],
        }
        assert "broker 1" in (await client.get("/", auth=("admin", PASSWORD))).text


async def test_logins_and_refusals_are_counted(tmp_path: Path) -> None:
    async with running(tmp_path, mode="closed") as broker, browse(broker) as client:
        guard = broker._house.guard
        assert guard is not None
        await guard.users.create("eve", Secret(PASSWORD))
        admin = ("admin", PASSWORD)
        assert (await client.get("/health", auth=admin)).status_code == 200
        assert (await client.get("/health", auth=("admin", "wrong"))).status_code == 401
        assert (await client.get("/health", auth=("eve", PASSWORD))).status_code == 403
        assert (await client.get("/health")).status_code == 401  # a client that has said nothing yet is no failure
        lines = (await client.get("/metrics", auth=admin)).text.splitlines()
        for line in (
            'penstock_security_logins_total{mechanism="password",outcome="succeeded"} 3.0',
            'penstock_security_logins_total{mechanism="password",outcome="failed"} 1.0',
            'penstock_security_logins_total{mechanism="scram",outcome="failed"} 0.0',
            'penstock_security_denials_total{kind="cluster",operation="describe"} 1.0',
            'penstock_security_mode{mode="closed"} 1.0',
            'penstock_security_mode{mode="open"} 0.0',
        ):
            assert line in lines


async def test_what_watch_lets_pass_is_counted(tmp_path: Path) -> None:
    async with running(tmp_path, mode="watch", auth=()) as broker, browse(broker) as client:
        assert (await client.get("/health")).status_code == 200  # which nobody without a name may see
        lines = (await client.get("/metrics")).text.splitlines()
        assert "penstock_security_watch_refusals 2.0" in lines
        assert 'penstock_security_mode{mode="watch"} 1.0' in lines
        assert 'penstock_security_denials_total{kind="cluster",operation="describe"} 0.0' in lines


@pytest.mark.parametrize("mode", ["open", "watch"])
async def test_a_listener_that_asks_nobody_tells_everybody_until_rules_decide(tmp_path: Path, mode: str) -> None:
    asking = Listener("asking", "kafka", FREE, auth=("scram",))
    async with running(tmp_path, mode=mode, auth=(), more=(asking,)) as broker, browse(broker) as client:
        for path in BOTH:
            assert (await client.get(path)).status_code == 200
        assert (await client.get("/health/ready")).json() == {"status": "ready", "reasons": []}
        guard = broker._house.guard
        assert guard is not None
        guard.loader.mode = type(guard.loader.mode)("closed")
        for path in BOTH:
            assert (await client.get(path)).status_code == 403
        assert (await client.get("/health/ready")).json() == {"status": "ready"}


@pytest.mark.parametrize(
    ("ways", "is_closed", "admission"),
    [((), False, Admission.ALLOWED), ((), True, Admission.REFUSED), (("basic",), False, Admission.REFUSED)],
)
@pytest.mark.parametrize("has_engine", [False, True])
async def test_nobody_gets_in_before_users_and_rules_are_there(
    ways: tuple[str, ...], is_closed: bool, admission: Admission, has_engine: bool
) -> None:
    """The engine is made with rules by which everybody may do everything."""
    from penstock.engine.access import Access

    access = Access() if has_engine else None
    login = HttpLogin("http", ways, lambda: None, lambda: access, lambda *_: None, is_closed=is_closed)
    assert await login.admit(Asker("127.0.0.1", "Basic YTpi")) is admission


class Mutual:
    """An HTTP listener that knows people by their certificates."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority.make(directory / "ca")
        server = self.authority.sign("server")
        self.list = directory / "crl.pem"
        revoke(self.authority, self.list)
        self.tls = ListenerTls(
            Path(server.certificate),
            Path(server.key),
            authority=Path(self.authority.certificate),
            revoked=self.list,
            client_auth="request",
            names="RULE:CN=(.*)-cert/$1/L",
        )

    def showing(self, name: str | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.certificate)
        if name is not None:
            files = self.authority.sign(name)
            context.load_cert_chain(files.certificate, files.key)
        return context


async def test_a_certificate_says_who_asks_by_the_listeners_rules(tmp_path: Path) -> None:
    house = Mutual(tmp_path)
    supers = ("certificate User:root",)
    async with running(tmp_path, auth=("certificate", "basic"), tls=house.tls, supers=supers) as broker:

        async def status(name: str | None, **asked: Any) -> int:
            async with browse(broker, house.showing(name)) as client:
                return (await client.get("/health", **asked)).status_code

        assert await status("Root-cert") == 200
        assert await status("eve-cert") == 403  # known, and may not
        assert await status("root") == 401  # nobody's, by the rules of names
        assert await status(None) == 401
        assert await status(None, auth=("admin", PASSWORD)) == 200
        assert await status("eve-cert", auth=("admin", PASSWORD)) == 200
        assert await status("root-cert", auth=("admin", "wrong")) == 401
        guard = broker._house.guard
        assert guard is not None
        async with browse(broker, house.showing("admin-cert")) as client:
            assert (await client.get("/metrics")).status_code == 401  # a user who has a password and no certificate


async def test_where_only_certificates_count_nobody_is_asked_for_a_password(tmp_path: Path) -> None:
    house = Mutual(tmp_path)
    async with running(tmp_path, mode="open", auth=("certificate",), tls=house.tls) as broker:
        async with browse(broker, house.showing("alice-cert")) as client:
            assert (await client.get("/metrics")).status_code == 200
        async with browse(broker, house.showing(None)) as client:
            refused = await client.get("/metrics", auth=("admin", PASSWORD))
            assert refused.status_code == 403 and "www-authenticate" not in refused.headers


async def test_a_certificate_that_is_revoked_ends_its_connections_and_opens_no_other(tmp_path: Path) -> None:
    house = Mutual(tmp_path)
    tls = replace(house.tls, client_auth="require")
    async with running(tmp_path, mode="open", auth=("certificate",), tls=tls) as broker:
        context = house.showing("alice-cert")
        async with browse(broker, context) as client, browse(broker, house.showing("bob-cert")) as other:
            assert (await client.get("/metrics")).status_code == 200
            assert (await other.get("/metrics")).status_code == 200
            (kept,) = client._transport._pool.connections  # type: ignore[attr-defined]
            (others,) = other._transport._pool.connections  # type: ignore[attr-defined]
            revoked = house.authority.directory / "alice-cert.pem"
            revoke(house.authority, house.list, _files(revoked))
            await broker.reload()
            with pytest.raises(httpx.TransportError):  # the old connection is over, and there is no new one
                await client.get("/health/live")
            assert (await other.get("/metrics")).status_code == 200
            assert other._transport._pool.connections == [others]  # type: ignore[attr-defined]
            assert kept not in client._transport._pool.connections  # type: ignore[attr-defined]
        with pytest.raises(httpx.TransportError):
            async with browse(broker, context) as client:
                await client.get("/health/live")


def _files(certificate: Path) -> Any:
    from penstock.net.tls import TlsFiles

    return TlsFiles(str(certificate), str(certificate.with_suffix(".key")))
