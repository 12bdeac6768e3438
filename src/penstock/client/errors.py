"""What can go wrong between a client and its brokers. Every failure of the network is one of these, never `OSError`."""

from typing import NamedTuple


class ClientError(Exception):
    """`retriable` says whether the same question may be answered later."""

    retriable: bool = False


class Unsupported(ClientError):
    """The broker, or this client, does not have what is wanted."""


class Failure(NamedTuple):
    """A broker's `host:port` and what happened there."""

    place: str
    reason: str


class Unreachable(ClientError):
    """Nobody answers, or not any more. `__cause__` is a `TimeoutError` where the time was up."""

    retriable = True

    def __init__(self, *failures: Failure) -> None:
        super().__init__(*failures)
        self.failures = failures

    def __str__(self) -> str:
        return "no broker answers at " + ", ".join(f"{place} ({reason})" for place, reason in self.failures)


class Refused(ClientError):
    """A broker said no.

    Args:
        code: Kafka's error code; `name` is its name, such as `UNKNOWN_TOPIC_OR_PARTITION`.
        what: the thing it was about.
        detail: what the broker said besides.
    """

    def __init__(self, code: int, what: str, detail: str = "") -> None:
        super().__init__(code, what, detail)
        self.code = code
        self.what = what
        self.detail = detail
        self.name = error_name(code)
        self.retriable = _is_retriable(code)

    def __str__(self) -> str:
        told = f"{self.what}: {self.name.lower().replace('_', ' ')}"
        return f"{told} ({self.detail})" if self.detail else told


def check(code: int, what: str, detail: str | None = None) -> None:
    """Raise `Refused` for an error code."""
    if code:
        raise Refused(code, what, detail or "")


def error_name(code: int) -> str:
    """Kafka's name of a code."""
    from kio.schema.errors import ErrorCode

    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"error {code}"


def _is_retriable(code: int) -> bool:
    from kio.schema.errors import ErrorCode

    try:
        return ErrorCode(code).retriable
    except ValueError:
        return False
