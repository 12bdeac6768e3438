"""An API of Kafka's or of our own, as who asks and who answers both know it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Api:
    """Args:
    key: Kafka's number of the API.
    name: kio's name of its schema, and our metric label.
    oldest, newest: the versions served.
    slow: whether it may take long, if only because much is asked for. Such a request waits for its turn, and its
        connection takes no further one meanwhile; the handler takes a turn (`engine.turns`) for every step.
    reads: slow, and it changes nothing, so that it ends with its connection.
    parks: whether its answer may wait for other clients. If not, and it is large, its connection takes no further
        request meanwhile either: what changes something in steps must not be overtaken by what comes behind it.
    """

    key: int
    name: str
    oldest: int
    newest: int
    slow: bool = False
    reads: bool = False
    parks: bool = False

    @property
    def is_slow(self) -> bool:
        return self.slow or self.reads
