"""How a broker is: healthy, degraded (clients may come, and something is wrong) or unhealthy (they may not).

Each reason comes from a function that is asked at every look, so whoever knows of something else that can go wrong adds
one more. What they say is for people: it names the thing, and the error that says why.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.engine.engine import Engine
from penstock.engine.partition import Partition
from penstock.engine.partition_state import NOBODY
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.cluster.image import Image

HEALTHY, DEGRADED, UNHEALTHY = "healthy", "degraded", "unhealthy"
NAMED = 10
"""So many partitions are named with each kind of trouble; of the others the number is told."""
CERTIFICATE_LEFT_MS = 24 * 3600 * 1000
"""A certificate that ends sooner is trouble: who renews them by machine has failed to by then."""
Reasons = Callable[[], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Health:
    """Attributes:
    closed: why clients should not be sent here.
    troubled: what else is wrong.
    """

    closed: list[Reasons] = field(default_factory=list)
    troubled: list[Reasons] = field(default_factory=list)

    def not_ready(self) -> list[str]:
        return [reason for each in self.closed for reason in each()]

    def verdict(self) -> tuple[str, list[str]]:
        """The status, and all reasons why it is not healthy."""
        closed = self.not_ready()
        reasons = closed + [reason for each in self.troubled for reason in each()]
        return (UNHEALTHY if closed else DEGRADED if reasons else HEALTHY), reasons


def certificate_troubles(ends_ms: Mapping[str, int], now_ms: int) -> Iterator[str]:
    """Certificates that have ended, or do so within a day.

    Args:
        ends_ms: when what is in each file ends, by path.
    """
    for path, end_ms in sorted(ends_ms.items()):
        if end_ms - now_ms > CERTIFICATE_LEFT_MS:
            continue
        verb = "has ended" if end_ms <= now_ms else "ends"
        yield f"certificate {path} {verb} at {_tell_time(end_ms)}: renew it"


def revocation_troubles(ends_ms: Mapping[str, int], now_ms: int) -> Iterator[str]:
    """Lists of revoked certificates that are older than they are to be: who was revoked since is let in.

    Args:
        ends_ms: when each list is to be replaced, by path.
    """
    for path, end_ms in sorted(ends_ms.items()):
        if end_ms <= now_ms:
            told = f"was to be replaced at {_tell_time(end_ms)}: fetch a new one"
            yield f"list of revoked certificates {path} {told}"


def _tell_time(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def partition_troubles(engine: Engine) -> Iterator[str]:
    """Partitions that cannot be used here, that nobody leads, or whose upkeep cannot be done."""
    offline, unled, untended = [], [], []
    for partition in engine.topics.all_partitions():
        if partition.offline is not None:
            why = "; ".join(filter(None, (str(partition.offline), partition.offline.help)))
            offline.append(f"{partition.name} is offline: {why}")
        elif partition.state.leader == NOBODY:
            unled.append(f"{partition.name} has no leader")
        if (error := _upkeep_error(partition)) is not None:
            untended.append(f"upkeep of {partition.name} failed, and is tried again: {error}")
    for reasons in (offline, unled, untended):
        yield from reasons[:NAMED]
        if len(reasons) > NAMED:
            yield f"{len(reasons) - NAMED} more like the last one"


def _upkeep_error(partition: Partition) -> OSError | None:
    return partition.log.upkeep_error if partition.log is not None else None


def coordinator_troubles(engine: Engine) -> Iterator[str]:
    """Internal topics that were needed and could not be made: their coordinators cannot be used."""
    for shards in engine.coordinators:
        if shards.refusal is not None:
            yield f"{shards.topic} cannot be made: {shards.refusal}"


def loneliness(words: Mapping[int, str | None], engine: Engine, *, is_admitted: bool) -> Iterator[str]:
    """That no other broker takes this one for one of its cluster, and that it can serve nothing.

    One that still acknowledges what it leads is well: those that do not work with it may be the ones to blame.

    Args:
        words: of each other broker that was asked: why the two do not work together; None if they do.
    """
    if not words or None in words.values() or (is_admitted and _acknowledges(engine)):
        return
    for broker_id, why in sorted(words.items()):
        yield f"no other broker works with this one; broker {broker_id}: {why}"


def _acknowledges(engine: Engine) -> bool:
    """Whether this broker leads a partition in which writes are safe."""
    for partition in (partition for topic in engine.topics for partition in topic.partitions):
        if partition.led is not None and partition.offline is None:
            with suppress(PenstockError):
                partition.check_in_sync()
                return True
    return False


def cluster_troubles(me: int, image: "Image", words: Mapping[int, str | None], refused: Iterable[int]) -> Iterator[str]:
    """Brokers that are not taken for ones of the cluster, here or by others.

    Args:
        words: as above.
        refused: brokers in whose name somebody failed to log in here.
    """
    for broker_id, broker in sorted(image.strangers.items()):
        yield f"broker {broker_id} is registered and given nothing: {broker.why_strange}"
    for broker_id, why in sorted(words.items()):
        if why is not None:
            yield f"broker {me} and broker {broker_id} do not work together: {why}"
    for broker_id in refused:
        yield f"broker {me} refuses broker {broker_id}, or somebody in its name: it does not prove to have the secret"
