"""The door for the other brokers of a cluster: Kafka's frames, and who comes proves first that it is one of them."""

from penstock.net.connection import Connection, Limits
from penstock.protocols.kafka.session import KafkaSession
from penstock.server.config import Listener
from penstock.server.doors.door import Door, House, StreamEntrance


def make_entrance(house: House, listener: Listener) -> StreamEntrance:
    assert house.context is not None and house.reception is not None
    context, reception = house.context, house.reception

    def make_session(connection: Connection) -> KafkaSession:
        return KafkaSession(context, connection, house.clock, reception.receive(connection))

    limits = Limits(frame_bytes=house.config.limits.max_request_bytes, connections=house.descriptors.broker_connections)
    door = Door(listener.name, listener.protocol, listener.address, limits, make_session, tls=house.brokers_tls)
    return StreamEntrance(door, house)
