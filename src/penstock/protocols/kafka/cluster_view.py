"""Who is in the cluster, as clients are told: all brokers that are there, or this one."""

from typing import TYPE_CHECKING, NamedTuple

from penstock.engine.partition import Partition
from penstock.engine.partition_state import NOBODY
from penstock.protocols.kafka.handlers import Context

if TYPE_CHECKING:
    from penstock.cluster.image import BrokerRecord


class Endpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


def endpoints(context: Context, *, departed: bool = False) -> list[Endpoint]:
    """Args:
    departed: those too that have gone not long ago. A client of librdkafka's that is not told of a broker any more
        forgets it together with what it leads, and asks who does a second later; one that cannot reach it asks at once.
    """
    if context.image is None:
        return [Endpoint(context.node_id, context.host, context.port)]
    brokers = context.image.departed | context.image.brokers if departed else context.image.reachable()
    told = {each: _place(context, broker) for each, broker in brokers.items()}
    told.setdefault(context.node_id, Endpoint(context.node_id, context.host, context.port))  # whoever asks has found it
    return [told[each] for each in sorted(told)]


def endpoint(context: Context, node_id: int) -> Endpoint | None:
    """Where a broker is; None if it is not there, or seems not to be."""
    if context.image is None:
        return Endpoint(context.node_id, context.host, context.port) if node_id == context.node_id else None
    broker = context.image.reachable().get(node_id)
    return _place(context, broker) if broker is not None else None


def _place(context: Context, broker: "BrokerRecord") -> Endpoint:
    """Where a client finds a broker: at its listener of the name of the one the client came to, if it has one."""
    host, port = broker.endpoints.get(context.listener, (broker.host, broker.port))
    return Endpoint(broker.broker_id, host, port, broker.rack)


def controller_id(context: Context) -> int:
    """Who controls the cluster; NOBODY in between."""
    if context.image is None:
        return context.node_id
    controller = context.image.controller
    return controller.broker_id if controller is not None and controller.broker_id in context.image.brokers else NOBODY


def admin_broker_id(context: Context) -> int:
    """Whom admin clients ask, who take it for the controller: any broker can do what they want."""
    found = controller_id(context)
    return found if found != NOBODY else context.node_id


def absent(context: Context) -> list[Endpoint]:
    """Brokers that the cluster knows and that have been away for some time, wherever they may be."""
    image = context.image
    if image is None:
        return []
    return [
        Endpoint(broker_id, "", 0)
        for broker_id in sorted(image.members)
        if broker_id not in image.brokers and broker_id not in image.departed
    ]


def leader_of(context: Context, partition: Partition) -> Endpoint | None:
    """Who leads a partition; None if nobody does that is there."""
    leader = partition.state.leader
    return endpoint(context, leader) if leader != NOBODY and not partition.is_cut_off else None
