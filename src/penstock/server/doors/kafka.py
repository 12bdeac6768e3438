"""The door for Kafka clients."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from penstock.net.connection import Connection
from penstock.protocols.kafka.handlers import Answers
from penstock.protocols.kafka.session import KafkaSession
from penstock.protocols.kafka_wire.guest import Guest, peer_host
from penstock.server.config import Address, Listener
from penstock.server.doors.door import Door, House, StreamEntrance
from penstock.server.doors.recognition import Recogniser

_MECHANISMS: Final = {
    "scram": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "plain": ("PLAIN",),
    "key": ("PLAIN",),
    "certificate": (),
}


def make_entrance(house: House, listener: Listener) -> StreamEntrance:
    """Clients of each listener are told that listener's addresses: it has a context, and answers kept, of its own."""
    assert house.context is not None
    context = house.context
    if listener.name != context.listener:
        context = replace(context, listener=listener.name, metadata_answers=Answers())
    receive = _make_reception(house, listener) if listener.auth else _nobody_is_asked

    def make_session(connection: Connection) -> KafkaSession:
        return KafkaSession(context, connection, house.clock, receive(connection))

    def opened(bound: Address) -> None:
        context.host, context.port = listener.advertised or bound

    door = Door(
        listener.name,
        listener.protocol,
        listener.address,
        house.client_limits(),
        make_session,
        tls=house.load_certificates(listener),
        opened=opened,
    )
    return StreamEntrance(door, house)


def _nobody_is_asked(connection: Connection) -> Guest | None:
    return None


def _make_reception(house: House, listener: Listener) -> Callable[[Connection], Guest]:
    """Who meets a client that has to say who it is."""
    from penstock.protocols.kafka.client_login import ClientLogin
    from penstock.security.authentication import Peer

    guard, mechanisms = house.guard, [*dict.fromkeys(name for word in listener.auth for name in _MECHANISMS[word])]
    assert guard is not None
    recogniser = Recogniser(listener, lambda: guard)

    def receive(connection: Connection) -> Guest:
        peer = Peer(peer_host(connection), listener.name)
        login = ClientLogin(
            guard.authenticator,
            mechanisms,
            peer,
            takes_passwords="plain" in listener.auth,
            takes_keys="key" in listener.auth,
        )
        guest = Guest(connection, login, known_as=recogniser.recognise(connection.certificate, peer.host))
        guest.announce(
            lambda subject: guard.admit(connection, subject, connection.abort), lambda: guard.dismiss(connection)
        )
        return guest

    return receive
