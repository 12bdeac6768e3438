"""A peer that is taken for a broker of the cluster, which to prove costs more than the rest of a simulation."""

from penstock.engine.access import BROKERS
from penstock.engine.engine import Engine
from penstock.net.connection import Connection
from penstock.ports.clock import Clock
from penstock.protocols.internal.reception import Reception
from penstock.protocols.kafka.handlers import Context
from penstock.protocols.kafka.session import KafkaSession
from penstock.protocols.kafka_wire.guest import Guest


def trusted_session(context: Context, engine: Engine, clock: Clock, connection: Connection) -> KafkaSession:
    own_apis, gone = Reception(engine, clock, None, tuple).own_apis(connection)
    guest = Guest(connection, None, known_as=BROKERS, own_apis=own_apis)
    guest.announce(lambda subject: None, gone)
    return KafkaSession(context, connection, clock, guest)
