"""Who leads instead, told in the answer that refuses (KIP-951): a client goes there without asking for metadata."""

from collections.abc import Iterable
from struct import Struct

from penstock.engine.partition import Partition
from penstock.engine.partition_state import NOBODY
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import cluster_view
from penstock.protocols.kafka.cluster_view import Endpoint
from penstock.protocols.kafka.handlers import Context
from penstock.protocols.kafka_wire.codec import encode_uvarint

Leader = tuple[int, int]
"""Its id and epoch."""
_I32 = Struct(">i")
_HINTED = (Code.NOT_LEADER, Code.FENCED_LEADER_EPOCH)


def hint(partition: Partition | None, error: PenstockError) -> Leader | None:
    """The leader to name in a refusal, if that is the reason and somebody leads: not this broker, which refuses."""
    if partition is None or error.code not in _HINTED or partition.state.leader == NOBODY or partition.is_cut_off:
        return None
    return partition.state.leader, partition.state.leader_epoch


def endpoints(context: Context, leaders: Iterable[Leader | None]) -> list[Endpoint]:
    """Where the leaders named in an answer are."""
    found = {leader[0]: cluster_view.endpoint(context, leader[0]) for leader in leaders if leader is not None}
    return [endpoint for endpoint in found.values() if endpoint is not None]


def encode_endpoints(context: Context, leaders: Iterable[Leader | None]) -> bytes:
    """The same as the tags at the end of an answer."""
    known = endpoints(context, leaders)
    if not known:
        return b"\0"
    body = encode_uvarint(len(known) + 1) + b"".join(map(_encode, known))
    return b"\x01\x00" + encode_uvarint(len(body)) + body


def _encode(endpoint: Endpoint) -> bytes:
    host = endpoint.host.encode()
    rack = b"\0" if endpoint.rack is None else encode_uvarint(len(endpoint.rack.encode()) + 1) + endpoint.rack.encode()
    return _I32.pack(endpoint.node_id) + encode_uvarint(len(host) + 1) + host + _I32.pack(endpoint.port) + rack + b"\0"
