"""Brokers that know each other by certificate, on real sockets: no secret is needed, and a stranger stays outside."""

import asyncio
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest
from tests.unit.net.certificates import Authority

from penstock.engine.access import Subject
from penstock.engine.acting.acting import Acting
from penstock.engine.engine import Engine
from penstock.net.connection import Connections, Limits
from penstock.net.tcp import TcpNetwork
from penstock.net.tls import TlsFiles
from penstock.observe.stats import Stats
from penstock.protocols.internal.identity import Identity
from penstock.protocols.internal.peer import Peer, PeerGone
from penstock.protocols.internal.reception import Reception
from penstock.protocols.kafka.fetch_sessions import FetchSessions
from penstock.protocols.kafka.handlers import Context, list_config_resources
from penstock.protocols.kafka.session import KafkaSession
from penstock.server.system_clock import SystemClock
from penstock.turns import Turns

SECRET = "correct horse"  # noqa: S105 - of nobody


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return Authority.make(tmp_path_factory.mktemp("tls") / "ours").sign("broker")


def _acting(subject: Subject) -> Acting:
    """As much of it as is asked for here."""
    rights = SimpleNamespace(may_cluster=lambda operation: True)
    return cast(Acting, SimpleNamespace(subject=subject, rights=rights))


async def ask(
    served: TlsFiles | None,
    secret: str,
    asking: TlsFiles | None,
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
        cluster=True,
    )
    reception = Reception(engine, clock, identity, tuple)
    internal = Connections(
        Limits(),
        stats,
        clock,
        lambda connection: KafkaSession(context, connection, clock, reception.receive(connection)),
        asyncio.get_running_loop().call_soon,
    )
    network = TcpNetwork()
    tls = served.make_server_context() if served is not None else None
    listener = await network.listen("127.0.0.1", 0, internal.accept, tls=tls)
    peer = Peer(
        network,
        *listener.address,
        clock,
        tls=asking.make_client_context() if asking is not None else None,
        identity=Identity(known) if known else None,
        told=(told if told is not None else []).append,
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
    assert await ask(files, SECRET, files, "") == 0
    assert await ask(files, SECRET, files, SECRET) == 0
    assert await ask(None, SECRET, None, SECRET) == 0


async def test_strangers(files: TlsFiles, tmp_path: Path) -> None:
    theirs = Authority.make(tmp_path / "theirs").sign("stranger")
    stranger = TlsFiles(theirs.certificate, theirs.key, files.authority)
    for served, secret, asking, known in (
        (files, "", stranger, ""),
        (files, "", None, ""),
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
    assert [why for why in told if why and "this broker's certificate" in why] == told != []
    told.clear()
    with pytest.raises(PeerGone) as raised:
        await ask(files, "", theirs, "", told)
    assert raised.value.stranger
    (why,) = told
    assert why is not None and why.startswith("its certificate is not of this cluster")
