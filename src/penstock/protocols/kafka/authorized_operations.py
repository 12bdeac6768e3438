"""What the caller may do to a thing, as the bits that some answers have for it (KIP-430)."""

from typing import Final

from penstock.engine.access import THE_CLUSTER, Kind, Operation, Resource
from penstock.protocols.kafka.handlers import Caller
from penstock.security.modes import Watch
from penstock.security.rules import BITS, SUPPORTED

NOT_ASKED_FOR: Final = -(1 << 31)


def of_topic(caller: Caller, name: str) -> int:
    return _bits(caller, Resource(Kind.TOPIC, name))


def of_group(caller: Caller, group_id: str) -> int:
    return _bits(caller, Resource(Kind.GROUP, group_id))


def of_cluster(caller: Caller) -> int:
    """None at all for who may not describe the cluster."""
    told = _bits(caller, THE_CLUSTER)
    return told if told & BITS[Operation.DESCRIBE] else 0


def _bits(caller: Caller, thing: Resource) -> int:
    supported, rights = SUPPORTED[thing.kind], caller.acting.rights
    if isinstance(rights.policy, Watch):  # which would count the question as an attempt
        return supported
    return sum(bit for operation, bit in BITS.items() if supported & bit and rights.may(operation, *thing))
