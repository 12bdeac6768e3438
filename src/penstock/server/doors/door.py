"""A door as a value, the listener that serves it, and what doors open into.

A door for a protocol over byte streams is a `Door`: who comes gets a session of it, behind `net.Connection`. A server
that has sockets of its own, as uvicorn has, is an `Entrance` itself.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from penstock.net.connection import Connection, Connections, Limits, Session
from penstock.net.frames import with_length_in_front
from penstock.net.framing import Framing
from penstock.net.room import Room
from penstock.observe.stats import Stats
from penstock.ports.clock import Clock
from penstock.ports.network import Listener as Bound
from penstock.ports.network import Network, TlsIdentity
from penstock.server.config import Address, Config, Listener
from penstock.server.descriptors import Descriptors
from penstock.server.doors.table import KINDS, Stage
from penstock.server.listening import cannot_listen

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from penstock.engine.engine import Engine
    from penstock.net.certificates import Certificates
    from penstock.protocols.internal.reception import Reception
    from penstock.protocols.kafka.handlers import Context
    from penstock.security.guard import Guard


class Entrance(Protocol):
    """One listener, made and not open yet."""

    @property
    def address(self) -> tuple[str, int]:
        """What was bound; asked between `open` and `close` only."""
        ...

    async def open(self) -> None:
        """Bind and accept. Raises `StartupError`; an `OSError` that it comes from is its cause."""
        ...

    async def close(self) -> None:
        """Accept no more. Connections of a `Door` stay open."""
        ...


def _nothing(bound: Address) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Door:
    """Attributes:
    name: of the listener.
    protocol: its entry in the table.
    address: where to listen.
    limits: of its connections. How many there may be, and what they may hold together, is counted over all doors of
        its stage, and the first of them says how much that is.
    make_session: what meets who connects.
    make_framing: how bytes become frames.
    ordered: whether answers go out in the order of requests.
    opened: told the address that was bound, before anything else happens.
    """

    name: str
    protocol: str
    address: Address
    limits: Limits
    make_session: Callable[[Connection], Session]
    tls: TlsIdentity | None = None
    opened: Callable[[Address], None] = _nothing
    make_framing: Callable[[Limits, Room], Framing] = with_length_in_front
    ordered: bool = True


@dataclass(slots=True)
class House:
    """What doors open into: the broker's parts, as far as they are there at a door's stage.

    Attributes:
        make_app: what HTTP is answered by.
        engine: there from `Stage.BROKERS` on.
        context: what Kafka's sessions have in common; likewise.
        guard: users and rules, if there are any.
        brokers_tls: what brokers show each other, if they go by certificates.
        reception: who lets them in.
        certificates: all that is shown on listeners and to brokers, to be looked at and loaded again together.
        crowds: who is connected, by stage: the crowd of the first door, which counts for all.
    """

    config: Config
    network: Network
    clock: Clock
    stats: Stats
    descriptors: Descriptors
    make_app: "Callable[[Listener], ASGIApp]"
    engine: "Engine | None" = None
    context: "Context | None" = None
    guard: "Guard | None" = None
    brokers_tls: TlsIdentity | None = None
    reception: "Reception | None" = None
    certificates: "list[Certificates]" = field(default_factory=list)
    crowds: dict[Stage, Connections] = field(default_factory=dict)

    def load_certificates(self, listener: Listener, protocols: tuple[str, ...] = ()) -> "Certificates | None":
        """What a listener shows; None if it speaks in plain. Raises `WrongSettings`.

        Args:
            protocols: to agree on by ALPN.
        """
        if listener.tls is None:
            return None
        from penstock.net.certificates import Certificates, ClientAuth, KeyPair, TlsSettings

        def text(path: Path | None) -> str | None:
            return None if path is None else str(path)

        tls = listener.tls
        shown = KeyPair(str(tls.certificate), str(tls.key), text(tls.password_file))
        by_name = {
            name: KeyPair(str(each.certificate), str(each.key), text(each.password_file))
            for name, each in tls.sni.items()
        }
        settings = TlsSettings(
            shown,
            by_name,
            authority=text(tls.authority),
            revoked=text(tls.revoked),
            client_auth=ClientAuth(tls.client_auth),
            protocols=protocols,
        )
        certificates = Certificates(settings, self.clock)
        self.certificates.append(certificates)
        return certificates

    def certificates_end_ms(self) -> dict[str, int]:
        """When what is in each file of certificates ends, by path; of one that is loaded twice, what ends first."""
        return _first(each.ends_ms for each in self.certificates)

    def revocation_lists_end_ms(self) -> dict[str, int]:
        """When each list of revoked certificates is to be replaced, likewise."""
        return _first(each.lists_end_ms for each in self.certificates)

    def client_limits(self) -> Limits:
        """What a client may cost, and all of them."""
        limits = self.config.limits
        return Limits(
            frame_bytes=limits.max_request_bytes,
            in_flight=limits.max_in_flight_requests,
            connections=self.descriptors.connections,
            receive_bytes=limits.max_receive_bytes,
            answer_bytes=limits.max_answer_bytes,
        )


def _first(ends_ms: Iterable[Mapping[str, int]]) -> dict[str, int]:
    first: dict[str, int] = {}
    for each in ends_ms:
        for path, end_ms in each.items():
            first[path] = min(end_ms, first.get(path, end_ms))
    return first


class StreamEntrance:
    """The listener of a `Door`."""

    def __init__(self, door: Door, house: House) -> None:
        self._door = door
        self._house = house
        self._bound: Bound | None = None

    @property
    def address(self) -> tuple[str, int]:
        assert self._bound is not None
        return self._bound.address

    async def open(self) -> None:
        door, crowds = self._door, self._house.crowds
        stage = KINDS[door.protocol].stage
        crowd = Connections(
            door.limits,
            self._house.stats,
            self._house.clock,
            door.make_session,
            asyncio.get_running_loop().call_soon,
            make_framing=door.make_framing,
            ordered=door.ordered,
            beside=crowds.get(stage),
        )
        crowds.setdefault(stage, crowd)
        host, port = door.address
        try:
            self._bound = await self._house.network.listen(host, port, crowd.accept, tls=door.tls)
        except OSError as error:
            raise cannot_listen(door.name, host, port, error) from error
        door.opened(Address(*self._bound.address))

    async def close(self) -> None:
        if self._bound is not None:
            await self._bound.close()
