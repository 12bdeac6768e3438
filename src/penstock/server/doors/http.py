"""The door for health and metrics: uvicorn has sockets and connections of its own."""

from typing import Final

from penstock.server.config import Listener
from penstock.server.doors.door import House
from penstock.server.http import HttpDoor

_METRICS_CONNECTIONS: Final = 64


def make_entrance(house: House, listener: Listener) -> HttpDoor:
    most = house.descriptors.http_connections
    return HttpDoor(
        *listener.address,
        house.make_app(listener),
        min(most, _METRICS_CONNECTIONS) if listener.protocol == "metrics" else most,
        name=listener.name,
        tls=house.load_certificates(listener, ("http/1.1",)),  # uvicorn speaks no other
    )
