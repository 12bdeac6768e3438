"""The internal listener: who is let in there, and what a broker may ask besides what clients may.

A peer first proves that it is a broker of this cluster: by a certificate that names a broker where there is TLS, by
SCRAM where there is a secret, by both where there is both. Until then it gets little memory, little time, and no answer
to anything else.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from penstock.engine.access import BROKERS, Subject
from penstock.engine.engine import Engine
from penstock.net.connection import Connection
from penstock.observe.logs import get_logger
from penstock.ports.clock import Clock
from penstock.protocols.internal import copy_segment, forwarding, reading, share_orders, share_start
from penstock.protocols.internal.broker_certificate import BROKER_URI, names_broker
from penstock.protocols.internal.forwarding import Batches
from penstock.protocols.internal.identity import Identity, broker_name
from penstock.protocols.internal.reading import Questions
from penstock.protocols.kafka_wire.guest import Guest, OwnApi

log_ = get_logger("cluster")


class Reception:
    """Args:
    engine: whose segments are lent, and whose partitions others publish to and read.
    identity: what brokers prove themselves by, besides their certificates; None if by those alone.
    members: ids of the brokers of the cluster, as far as this one knows.
    """

    def __init__(
        self, engine: Engine, clock: Clock, identity: Identity | None, members: Callable[[], Iterable[int]]
    ) -> None:
        self._clock = clock
        self._engine = engine
        self._members = members
        self.identity = identity
        self.refused: dict[str, float] = {}
        """When whoever calls itself by the name of a broker of the cluster last failed to prove that it is one."""

    def receive(self, connection: Connection) -> Guest:
        is_broker = self._is_broker(connection)
        login = self.identity.make_login(self._note) if self.identity is not None and is_broker is not False else None
        known_as = BROKERS if is_broker and self.identity is None else None
        own_apis, gone = self.own_apis(connection)
        guest = Guest(connection, login, known_as=known_as, own_apis=own_apis)
        guest.announce(_nobody, gone)
        return guest

    def _is_broker(self, connection: Connection) -> bool | None:
        """What its certificate says; None if it has none, as where brokers speak in plain."""
        if not connection.certified:
            return None
        if connection.certificate is not None and names_broker(connection.certificate):
            return True
        log_.limited("stranger").warning(
            "closing connection", peer=connection.peer, reason=f"its certificate does not name a broker ({BROKER_URI})"
        )
        asyncio.get_running_loop().call_soon(connection.abort)  # it has no session yet that could be told
        return False

    def own_apis(self, connection: Connection) -> tuple[Mapping[int, OwnApi], Callable[[], None]]:
        """What a broker may ask there, besides what clients may; and what to call when the connection has ended."""
        questions, batches = Questions(self._engine, connection), Batches(self._engine, connection)

        def gone() -> None:
            questions.close()
            batches.close()

        own = (
            OwnApi(copy_segment.API, partial(copy_segment.begin, self._engine)),
            OwnApi(forwarding.API, batches.begin),
            OwnApi(reading.API, questions.begin),
            OwnApi(share_start.API, partial(share_start.begin, self._engine)),
            OwnApi(share_orders.API, partial(share_orders.begin, self._engine)),
        )
        return {each.api.key: each for each in own}, gone

    def _note(self, name: str, proved: bool) -> None:
        """Only names of brokers: a peer can call itself anything."""
        if proved:
            self.refused.pop(name, None)
        elif name in map(broker_name, self._members()):
            self.refused[name] = self._clock.monotonic()


def _nobody(subject: Subject) -> None:
    return None
