"""Brokers that know each other by certificates, on real sockets: a stranger stays outside, whoever signed for it."""

import asyncio
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest
from tests.unit.net.certificates import BROKER, Authority
from tests.unit.net.test_certificates import Now, required, revoke
from tests.unit.net.test_tls import End, until

from penstock.engine.access import Subject
from penstock.engine.acting.acting import Acting
from penstock.engine.engine import Engine
from penstock.net import tls_listener, tls_stream
from penstock.net.certificates import Certificates
from penstock.net.connection import Connections, Limits
from penstock.net.tcp import TcpNetwork
from penstock.net.tls import TlsFiles
from penstock.observe.stats import Stats
from penstock.protocols.internal import reception
from penstock.protocols.internal.identity import Identity
from penstock.protocols.internal.peer import Peer, PeerGone
from penstock.protocols.internal.reception import Reception
from penstock.protocols.kafka.fetch_sessions import FetchSessions
from penstock.protocols.kafka.handlers import Context, list_config_resources
from penstock.protocols.kafka.session import KafkaSession
from penstock.protocols.kafka.share_requests import Shares
from penstock.server.system_clock import SystemClock
from penstock.turns import Turns

SECRET = "correct horse"  # noqa: S105 - of nobody
UNKNOWN = "it is of an authority that is not trusted there"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def files(authority: Authority) -> TlsFiles:
    return authority.sign("broker", BROKER)


@pytest.fixture
def reasons(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why connections were closed, by the log: all of them, where the log itself would leave some out."""
    told: list[str] = []

    class Log:
        def limited(self, key: str) -> "Log":
            return self

        def warning(self, event: str, **fields: object) -> None:
            told.append(str(fields["reason"]))

    for module in (tls_listener, tls_stream, reception):
        monkeypatch.setattr(module, "log_", Log())
    return told


def _acting(subject: Subject) -> Acting:
    """As much of it as is asked for here."""
    rights = SimpleNamespace(may_cluster=lambda operation: True)
    return cast(Acting, SimpleNamespace(subject=subject, rights=rights))


async def ask(
    served: TlsFiles | Certificates | None,
    secret: str,
    asking: TlsFiles | Certificates | None,
    known: str,
    told: list[str | None] | None = None,
    tries: int = 1,
) -> int:
    """What a peer is answered that has these files and knows this secret; an empty one is none."""
    clock, stats, engine = SystemClock(), Stats(), cast(Engine, SimpleNamespace(turns=Turns()))
    identity = Identity(secret) if secret else None
    context = Context(
        acting_as=_acting,
        turns=engine.turns,
        topic_defaults={},
        default_partitions=1,
        stats=stats,
        node_id=1,
        host="h",
        port=1,
        auto_create=False,
        fetch_sessions=FetchSessions(Random(1)),
        shares=Shares(_acting),
        cluster=True,
    )
    received = Reception(engine, clock, identity, tuple)
    internal = Connections(
        Limits(),
        stats,
        clock,
        lambda connection: KafkaSession(context, connection, clock, received.receive(connection)),
        asyncio.get_running_loop().call_soon,
    )
    network = TcpNetwork()
    tls = served.make_server_context() if isinstance(served, TlsFiles) else served
    listener = await network.listen("127.0.0.1", 0, internal.accept, tls=tls)
    peer = Peer(
        network,
        *listener.address,
        clock,
        tls=asking.make_client_context() if isinstance(asking, TlsFiles) else asking,
        identity=Identity(known) if known else None,
        judged=(told if told is not None else []).append,
    )
    try:
        for _ in range(tries - 1):
            with pytest.raises(PeerGone):
                await peer.call(list_config_resources.API, 0, {})
        answer = await peer.call(list_config_resources.API, 0, {})
        return int(answer.error_code)
    finally:
        peer.close()
        await listener.close()


async def test_a_certificate_a_secret_or_both(files: TlsFiles) -> None:
    assert await ask(files, "", files, "") == 0
    assert await ask(files, SECRET, files, SECRET) == 0
    assert await ask(None, SECRET, None, SECRET) == 0


async def test_strangers(files: TlsFiles, tmp_path: Path) -> None:
    theirs = Authority.make(tmp_path / "theirs").sign("stranger")
    stranger = TlsFiles(theirs.certificate, theirs.key, files.authority)
    for served, secret, asking, known in (
        (files, "", stranger, ""),
        (files, "", None, ""),
        (files, SECRET, files, ""),
        (files, SECRET, files, "another"),
        (files, SECRET, stranger, SECRET),
        (None, "", files, ""),
        (None, SECRET, None, "another"),
        (None, SECRET, None, ""),
        (None, "", None, ""),
    ):
        with pytest.raises(PeerGone) as raised:
            await ask(served, secret, asking, known)
        assert not raised.value.refused


async def test_who_is_refused_for_its_certificate_or_refuses_the_others_knows(files: TlsFiles, tmp_path: Path) -> None:
    theirs = Authority.make(tmp_path / "theirs").sign("stranger")
    told: list[str | None] = []
    await ask(files, "", files, "", told)
    assert told == [None]
    told.clear()
    with pytest.raises(PeerGone):
        await ask(files, "", TlsFiles(theirs.certificate, theirs.key, files.authority), "", told, tries=4)
    assert told == ["it does not take the certificate that this side has shown: " + UNKNOWN]
    told.clear()
    with pytest.raises(PeerGone) as raised:
        await ask(files, "", theirs, "", told)
    assert raised.value.stranger
    (why,) = told
    assert why is not None and why.startswith("its certificate is not taken: ")


async def test_a_certificate_that_names_no_broker_opens_nothing(
    authority: Authority, files: TlsFiles, reasons: list[str]
) -> None:
    """Whoever signs for brokers may sign for clients and for other servers, too."""
    client, server = authority.sign("alice", "email:alice@example.com"), authority.sign("server")
    for secret in ("", SECRET):
        for asking in (client, server):
            reasons.clear()
            with pytest.raises(PeerGone):
                await ask(files, secret, asking, secret)
            assert reasons == ["its certificate does not name a broker (penstock:broker)"]
        told: list[str | None] = []
        with pytest.raises(PeerGone, match="does not name a broker") as raised:
            await ask(server, secret, files, secret, told)
        assert raised.value.stranger
        assert told == ["its certificate does not name a broker (penstock:broker)"]


@pytest.mark.parametrize("secret", ["", SECRET])
async def test_both_sides_say_whose_certificate_has_ended(
    authority: Authority, files: TlsFiles, secret: str, reasons: list[str]
) -> None:
    old = authority.sign("old", BROKER, days=-1)
    told: list[str | None] = []
    with pytest.raises(PeerGone, match="has shown: it has ended") as raised:
        await ask(files, secret, old, secret, told)
    assert told == ["it does not take the certificate that this side has shown: it has ended"]
    if secret:
        assert raised.value.stranger
    assert "its certificate is not taken: certificate has expired" in reasons
    reasons.clear()
    told.clear()
    with pytest.raises(PeerGone, match="its certificate is not taken: certificate has expired") as raised:
        await ask(old, secret, files, secret, told)
    assert raised.value.stranger
    assert told == ["its certificate is not taken: certificate has expired"]
    await until(lambda: "it does not take the certificate that this side has shown: it has ended" in reasons)


async def test_a_broker_whose_certificate_is_revoked_neither_asks_nor_is_asked(
    authority: Authority, files: TlsFiles, tmp_path: Path
) -> None:
    lost = authority.sign("lost", BROKER)
    revoked = revoke(authority, tmp_path / "crl.pem", lost)
    ours = Certificates(required(files, revoked=revoked), Now())
    assert await ask(ours, "", files, "") == 0
    told: list[str | None] = []
    for secret in ("", SECRET):
        with pytest.raises(PeerGone):
            await ask(ours, secret, lost, secret, told, tries=4)
        assert len(told) == 1 and "does it take this broker's certificate" in str(told.pop())
    with pytest.raises(PeerGone, match="is revoked") as raised:
        await ask(lost, "", ours, "", told)
    assert raised.value.stranger and not raised.value.refused
    assert len(told) == 1 and "is revoked" in str(told[0])


async def test_connections_to_a_broker_end_when_its_certificate_is_revoked(
    authority: Authority, files: TlsFiles, tmp_path: Path
) -> None:
    other = authority.sign("other", BROKER)
    revoked = revoke(authority, tmp_path / "crl.pem")
    ours = Certificates(required(files, revoked=revoked), Now())
    network, came = TcpNetwork(), []

    def accept() -> End:
        came.append(End())
        return came[-1]

    listener = await network.listen("127.0.0.1", 0, accept, tls=other.make_server_context())
    told: list[str | None] = []
    peer = Peer(network, *listener.address, SystemClock(), tls=ours, judged=told.append)
    await peer.connect()
    asked = asyncio.create_task(peer.call(list_config_resources.API, 0, {}))
    await until(lambda: bool(came and came[0].data))
    revoke(authority, tmp_path / "crl.pem", other)
    assert await ours.reload()
    with pytest.raises(PeerGone, match="is revoked"):
        await asked
    assert len(told) == 1 and "is revoked" in str(told[0])
    assert not peer.is_connected and ours._watching == []
    peer.close()
    await listener.close()
