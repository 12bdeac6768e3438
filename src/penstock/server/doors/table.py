"""The protocols this build speaks, one entry each; the code of one is imported when a listener of it is made."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.server.config import Listener
    from penstock.server.doors.door import Entrance, House


class Stage(Enum):
    """When a door opens, in this order; doors close in reverse."""

    FIRST = 1
    """Before logs are recovered, so that whoever asks how the broker is gets an answer meanwhile."""
    BROKERS = 2
    """Before the broker registers, because the others come as soon as it has."""
    CLIENTS = 3
    """When logs are recovered."""


class Opens(Enum):
    """Whether a door opens that nobody has named."""

    ALWAYS = 1
    IN_CLUSTER = 2
    """Then always; on a broker on its own never, even if it is named."""
    IF_NAMED = 3
    """No, except in a start that names no listener at all: that one opens all doors."""
    ON_REQUEST = 4
    """No, not even then."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One protocol.

    Attributes:
        name: in settings, flags and the ready line.
        title: for people.
        port: its standard one.
        purpose: what its setting is for.
        deed: what its flag makes a broker do.
        peers: who connects to it.
        make: the entrance of one listener. It imports the protocol's code, and touches no socket.
        stage: when it opens.
        opens: whether it opens when nobody has named it.
        is_told: whether peers are told its address, which then must be one that they can connect to.
        is_guarded: whether it asks who comes, so that it may be reached from other machines.
        has_tls: whether a listener of it can be told to speak TLS.
        logins: by what its peers may prove who they are, where a listener says so (`auth`).
        may_lack_host: whether its setting may be a port alone, which is on this machine only.
        is_needed: whether a broker without it is of no use, so that it does not start when the standard port is taken.
    """

    name: str
    title: str
    port: int
    purpose: str
    deed: str
    make: Callable[["House", "Listener"], "Entrance"]
    peers: str = "clients"
    stage: Stage = Stage.CLIENTS
    opens: Opens = Opens.IF_NAMED
    is_told: bool = False
    is_guarded: bool = False
    has_tls: bool = False
    logins: tuple[str, ...] = ()
    may_lack_host: bool = False
    is_needed: bool = False


def _kafka(house: "House", listener: "Listener") -> "Entrance":
    from penstock.server.doors import kafka

    return kafka.make_entrance(house, listener)


def _http(house: "House", listener: "Listener") -> "Entrance":
    from penstock.server.doors import http

    return http.make_entrance(house, listener)


def _internal(house: "House", listener: "Listener") -> "Entrance":
    from penstock.server.doors import internal

    return internal.make_entrance(house, listener)


_ALL = (
    Kind(
        "kafka",
        "Kafka",
        9092,
        "where Kafka clients connect",
        "Listen for Kafka clients",
        _kafka,
        opens=Opens.ALWAYS,
        is_told=True,
        has_tls=True,
        logins=("scram", "plain", "key", "certificate"),
        is_needed=True,
    ),
    Kind(
        "http",
        "HTTP",
        8080,
        "where health and metrics are served",
        "Answer health and metrics",
        _http,
        stage=Stage.FIRST,
        opens=Opens.ALWAYS,
        has_tls=True,
        logins=("basic", "key", "certificate"),
    ),
    Kind(
        "metrics",
        "metrics",
        9090,
        "where nothing but health and metrics is served, to whoever can connect; off unless it is named",
        "Answer health and metrics to whoever connects",
        _http,
        peers="monitoring",
        stage=Stage.FIRST,
        opens=Opens.ON_REQUEST,
        has_tls=True,
        logins=("basic", "key", "certificate"),
        may_lack_host=True,
    ),
    Kind(
        "internal",
        "internal",
        9094,
        "where the other brokers of a cluster connect",
        "Listen for the cluster's brokers",
        _internal,
        peers="brokers",
        stage=Stage.BROKERS,
        opens=Opens.IN_CLUSTER,
        is_told=True,
        is_guarded=True,
        is_needed=True,
    ),
)
KINDS = {kind.name: kind for kind in _ALL}
