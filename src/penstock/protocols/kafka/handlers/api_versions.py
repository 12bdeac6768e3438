"""ApiVersions 0-4: what this broker speaks.

A version too new is answered in version 0's form with UNSUPPORTED_VERSION and the list, so that the client can step
down (KIP-511). The response header stays at version 0 for ever. Client name and version are checked from 3 on.

Features: `metadata.version` says which Kafka release this broker is like; tools show it. The others are finalized with
what they switch.
"""

import re
from collections.abc import Iterable

from penstock.protocols.kafka import errors
from penstock.protocols.kafka.handlers import Api, Context, Fields
from penstock.protocols.kafka.messages import Message

API = Api(18, "api_versions", 0, 4)
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_PRODUCE_KEY = 0
_METADATA_VERSION, _LEVEL = "metadata.version", 30  # Kafka 4.3
_FEATURES: Fields = {
    "supported_features": [{"name": _METADATA_VERSION, "min_version": _LEVEL, "max_version": _LEVEL}],
    "finalized_features_epoch": 0,
    "finalized_features": [{"name": _METADATA_VERSION, "max_version_level": _LEVEL, "min_version_level": _LEVEL}],
}


def handle(context: Context, request: Message, version: int) -> Fields:
    from penstock.protocols.kafka.session import APIS  # the table this answer is derived from

    if version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return {"error_code": errors.INVALID_REQUEST, "api_keys": [], "throttle_time": 0}
    return {"error_code": errors.NONE, "api_keys": advertised(APIS), "throttle_time": 0, **_FEATURES}


def advertised(apis: Iterable[Api]) -> list[Fields]:
    """Produce is advertised from 0, though served from 3: older librdkafka falls to message format 0 otherwise
    (KAFKA-18659)."""
    return [
        {
            "api_key": api.key,
            "min_version": 0 if api.key == _PRODUCE_KEY else api.oldest,
            "max_version": api.newest,
        }
        for api in sorted(apis, key=lambda api: api.key)
    ]
