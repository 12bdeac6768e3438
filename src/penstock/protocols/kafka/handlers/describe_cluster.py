"""DescribeCluster 0-2: who is in the cluster. Controllers cannot be asked for: there are none apart from brokers.

Version notes: 2 may ask for brokers that are down; of those that have been for long only the id is known.
"""

from penstock.protocols.kafka import authorized_operations, cluster_view
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(60, "describe_cluster", 0, 2)
_BROKERS, _CONTROLLERS = 1, 2


def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    endpoint_type = request.get("endpoint_type", _BROKERS)
    code, text = errors.NONE, None
    if endpoint_type == _CONTROLLERS:
        code, text = errors.MISMATCHED_ENDPOINT_TYPE, "this is a broker; there are no controllers to ask"
    elif endpoint_type != _BROKERS:
        code, text = errors.UNSUPPORTED_ENDPOINT_TYPE, f"endpoint type {endpoint_type}; known: 1 (brokers)"
    fenced = request.get("include_fenced_brokers", False)
    brokers = [
        {
            "broker_id": each.node_id,
            "host": each.host,
            "port": each.port,
            "rack": each.rack,
            "is_fenced": context.image is not None and not context.image.is_live(each.node_id),
        }
        for each in (
            *cluster_view.endpoints(context, departed=fenced),
            *(cluster_view.absent(context) if fenced else ()),
        )
    ]
    return {
        "throttle_time": 0,
        "error_code": code,
        "error_message": text,
        "endpoint_type": endpoint_type,
        "cluster_id": caller.acting.cluster_id,
        "controller_id": cluster_view.controller_id(context),
        "brokers": brokers if code == errors.NONE else [],
        "cluster_authorized_operations": (
            authorized_operations.of_cluster(caller)
            if request.include_cluster_authorized_operations
            else authorized_operations.NOT_ASKED_FOR
        ),
    }
