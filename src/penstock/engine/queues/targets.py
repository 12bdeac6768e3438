"""Where dead letters go, and that none of them ever comes back to where it died by itself."""

from collections.abc import Callable, Collection

from penstock.engine.queues.names import QueueName, dead_letter_topic
from penstock.engine.queues.settings import OWN_TARGET, QueueRules
from penstock.errors import Code, PenstockError


def target_of(queue: QueueName, rules: QueueRules) -> str | None:
    """The topic of its dead letters; None if they are dropped."""
    return dead_letter_topic(queue) if rules.dead_letter == OWN_TARGET else rules.dead_letter


def check_no_circle(queue: QueueName, rules: QueueRules, targets: Callable[[str], Collection[str]]) -> None:
    """A message that nobody can handle would go round for ever.

    Args:
        targets: where the dead letters go of the queues that read a topic.

    Raises:
        PenstockError: INVALID_CONFIG, which names the topics on the way.
    """
    first = target_of(queue, rules)
    ways: list[tuple[str, ...]] = [] if first is None else [(queue.topic, first)]
    seen: set[str] = set()
    while ways:
        way = ways.pop()
        if way[-1] == queue.topic:
            raise PenstockError(
                Code.INVALID_CONFIG,
                f"dead-letter={first} of queue {str(queue)!r}: dead letters would come back ({' -> '.join(way)})",
                help="name a topic whose queues have other dead letters, or none",
            )
        if way[-1] not in seen:
            seen.add(way[-1])
            ways += [(*way, target) for target in targets(way[-1])]
