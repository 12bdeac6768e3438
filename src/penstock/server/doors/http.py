"""The door for health and metrics: uvicorn has sockets and connections of its own."""

from penstock.server.config import Listener
from penstock.server.doors.door import House
from penstock.server.http import HttpDoor


def make_entrance(house: House, listener: Listener) -> HttpDoor:
    certificates = house.load_certificates(listener, ("http/1.1",))  # uvicorn speaks no other
    return HttpDoor(
        *listener.address,
        house.make_app(listener),
        house.descriptors.http_connections,
        name=listener.name,
        tls=certificates.following_context() if certificates is not None else None,
    )
