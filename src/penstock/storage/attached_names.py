"""How a log that is attached to a partition is named: after the topic and what kind it is, with an id made of both.

`orders~ledger` is what is attached to the partitions of `orders`. No topic can have such a name. The id says to which
topic of that name it belongs, so that nothing has to be looked up to tell whose a directory is.
"""

from uuid import UUID, uuid5

from penstock.errors import Code, PenstockError

MARK = "~"
_LONGEST_DIRECTORY = 255


def attached_name(topic: str, kind: str) -> str:
    """Raises PenstockError INVALID_TOPIC: no directory can have that name."""
    name = f"{topic}{MARK}{kind}"
    if len(name) > _LONGEST_DIRECTORY:
        raise PenstockError(
            Code.INVALID_TOPIC,
            f"topic {topic[:40]!r}... has a name of {len(topic)} characters, too long for a log of kind {kind!r} to be "
            f"attached to it; {_LONGEST_DIRECTORY - len(kind) - len(MARK)} at most",
        )
    return name


def attached_id(topic_id: UUID, kind: str) -> UUID:
    """The same for the same topic and kind, everywhere and for good."""
    return uuid5(topic_id, kind)


def split_name(name: str) -> tuple[str, str] | None:
    """The topic and the kind, if this is the name of an attached log."""
    topic, mark, kind = name.rpartition(MARK)
    return (topic, kind) if mark and topic and kind else None
