"""Queue names: a queue is what one group has not yet done of one topic.

The queue of topic `orders` and group `orders` is `orders`, on every door. Other groups make other queues of the same
topic: `orders:billing`. No topic has a colon in its name, so the first one ends the topic.
"""

import re
from hashlib import blake2b
from typing import Final, NamedTuple

from penstock.engine.topic_names import LONGEST_NAME, check_name
from penstock.errors import Code, PenstockError

MARK: Final = ":"
LONGEST_GROUP: Final = 1024
"""In characters, as of every group."""
DEAD_LETTERS: Final = "dlq."
_SHOWN: Final = 60
_UNFIT: Final = re.compile(r"[^a-zA-Z0-9._-]")
_DIGEST_BYTES: Final = 8


class QueueName(NamedTuple):
    topic: str
    group: str

    def __str__(self) -> str:
        return self.topic if self.topic == self.group else f"{self.topic}{MARK}{self.group}"


def parse_queue_name(text: str) -> QueueName:
    """Raises PenstockError INVALID_QUEUE."""
    topic, mark, group = text.partition(MARK)
    try:
        check_name(topic)
    except PenstockError as error:
        raise _invalid(text, str(error)) from None
    if mark and not group:
        raise _invalid(text, f"there is no group behind its {MARK!r}")
    if len(group) > LONGEST_GROUP:
        raise _invalid(text, f"its group has {len(group)} characters, {LONGEST_GROUP} at most are allowed")
    return QueueName(topic, group or topic)


def dead_letter_topic(queue: QueueName) -> str:
    """Where a queue's dead letters go unless it says otherwise.

    A group may have any name, a topic may not. What does not fit is replaced or cut, with a digest of the queue's name
    behind it to tell it from others that lose the same. Two queues share one topic if only the place of a dot tells
    them apart (topic `a.b`; topic `a`, group `b`): each letter says where it is from.
    """
    parts = (queue.topic,) if queue.topic == queue.group else queue
    wanted = DEAD_LETTERS + ".".join(parts)
    name = _UNFIT.sub("_", wanted)
    if name == wanted and len(name) <= LONGEST_NAME:
        return name
    digest = blake2b(str(queue).encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{name[: LONGEST_NAME - len(digest) - 1]}-{digest}"


def _invalid(text: str, why: str) -> PenstockError:
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
    return PenstockError(
        Code.INVALID_QUEUE,
        f"queue name {shown!r}: {why}",
        help="a queue is named after its topic, or topic:group",
    )
