"""ListConfigResources 0-1: what DescribeConfigs can be asked about. Version 0 knew client metrics only (KIP-1142)."""

from penstock.engine.access import Operation
from penstock.protocols.kafka.configs import BROKER, CLIENT_METRICS, GROUP, TOPIC
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(74, "list_config_resources", 0, 1, reads=True)
_BROKER_LOGGER = 8
_KNOWN = frozenset({TOPIC, BROKER, _BROKER_LOGGER, CLIENT_METRICS, GROUP})


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    asked = set(request.resource_types) or _KNOWN if version >= 1 else {CLIENT_METRICS}
    if asked - _KNOWN:
        return {"throttle_time": 0, "error_code": errors.UNSUPPORTED_VERSION, "config_resources": []}
    if not caller.acting.rights.may_cluster(Operation.DESCRIBE_CONFIGS):
        return {"throttle_time": 0, "error_code": errors.CLUSTER_AUTHORIZATION_FAILED, "config_resources": []}
    found = []
    if TOPIC in asked:
        found += [(topic.name, TOPIC) for topic in caller.acting.topics.visible()]
    if BROKER in asked:
        known = {context.node_id} if context.image is None else {context.node_id, *context.image.members}
        found += [(str(broker_id), BROKER) for broker_id in sorted(known)]
    if GROUP in asked:
        found += [(group_id, GROUP) for group_id in caller.acting.groups.configured()]
    answer = LongAnswer(context, API, version, "config_resources")
    rows = [await answer.row({"resource_name": name, "resource_type": kind}) for name, kind in found]
    return {"throttle_time": 0, "error_code": errors.NONE, "config_resources": rows}
