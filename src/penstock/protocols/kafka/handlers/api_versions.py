"""ApiVersions 0-4: what this broker speaks.

A version too new is answered in version 0's form with UNSUPPORTED_VERSION and the list, so that the client can step
down (KIP-511). The response header stays at version 0 for ever. Client name and version are checked from 3 on.

Features: `metadata.version` says which Kafka release this broker is like; tools show it. `transaction.version` 2 makes
clients use KIP-890, `group.version` 1 offers KIP-848, `share.version` 1 offers KIP-932.
"""

import re
from collections.abc import Iterable

from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(18, "api_versions", 0, 4)
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_ADVERTISED_FROM_0 = (0, 17)  # Produce, SaslHandshake
_LEVELS = {  # as Kafka 4.3 has them
    "group.version": 1,
    "metadata.version": 30,
    "share.version": 1,
    "transaction.version": 2,
}
_SUPPORTED: list[Fields] = [
    {"name": name, "min_version": level if name == "metadata.version" else 0, "max_version": level}
    for name, level in _LEVELS.items()
]
_FINALIZED: list[Fields] = [
    {"name": name, "max_version_level": level, "min_version_level": level} for name, level in _LEVELS.items()
]
_KNOWS_ZERO = 4  # before, a feature that may be 0 cannot be read, and is left out (KAFKA-17011)


def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    from penstock.protocols.kafka.session import APIS  # the table this answer is derived from

    if version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return {"error_code": errors.INVALID_REQUEST, "api_keys": [], "throttle_time": 0}
    supported = [row for row in _SUPPORTED if version >= _KNOWS_ZERO or row["min_version"] > 0]
    return {
        "error_code": errors.NONE,
        "api_keys": advertised(APIS),
        "throttle_time": 0,
        "supported_features": supported,
        "finalized_features_epoch": 0,
        "finalized_features": _FINALIZED,
    }


def advertised(apis: Iterable[Api]) -> list[Fields]:
    """Two are advertised from 0 and served from later on, for librdkafka's sake: without Produce 0 an older one falls
    to message format 0 (KAFKA-18659), and without SaslHandshake 0 it takes the broker for one that has no SASL."""
    return [
        {
            "api_key": api.key,
            "min_version": 0 if api.key in _ADVERTISED_FROM_0 else api.oldest,
            "max_version": api.newest,
        }
        for api in sorted(apis, key=lambda api: api.key)
    ]
