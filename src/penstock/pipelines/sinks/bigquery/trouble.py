"""What BigQuery's errors mean: those that pass are tried again, the others are told with a way out."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from penstock.pipelines.errors import SinkError, SinkUnavailable

T = TypeVar("T")

_PASSING_REASONS: Final = frozenset(
    {"rateLimitExceeded", "quotaExceeded", "backendError", "internalError", "badGateway", "timeout"}
)
_PASSING_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})
_PASSING_CODES: Final = frozenset(
    {"UNAVAILABLE", "RESOURCE_EXHAUSTED", "INTERNAL", "ABORTED", "DEADLINE_EXCEEDED", "UNKNOWN"}
)
_seedless = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often and how slowly a request is tried again.

    Attributes:
        from_s, to_s: no wait is shorter or longer.
    """

    retries: int = 3
    from_s: float = 1.0
    to_s: float = 30.0

    def delay_s(self, retry: int, draw: Callable[[], float] = _seedless.random) -> float:
        """Seconds before retry 0, 1, ...: doubled each time, and up to as much again by chance, so that tasks that
        failed together do not come back together."""
        slot = min(self.to_s, self.from_s * 2.0**retry)
        return min(self.to_s, slot * (1.0 + draw()))


def is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed a little later."""
    import requests.exceptions
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import RefreshError, TransportError

    if isinstance(error, GoogleAPICallError):
        reasons = {each.get("reason") for each in error.errors if isinstance(each, dict)}
        code = getattr(error.grpc_status_code, "name", "")
        return bool(reasons & _PASSING_REASONS) or error.code in _PASSING_STATUSES or code in _PASSING_CODES
    if isinstance(error, requests.exceptions.SSLError):
        return False
    if isinstance(error, RefreshError):
        return bool(error.retryable)
    passing = requests.exceptions.ConnectionError, requests.exceptions.Timeout, requests.exceptions.ChunkedEncodingError
    return isinstance(error, (*passing, TransportError, ConnectionError, TimeoutError))


def persist(
    call: Callable[[], T],
    backoff: Backoff,
    doing: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    draw: Callable[[], float] = _seedless.random,
) -> T:
    """What the call returns, tried again while its trouble may pass.

    Args:
        doing: what is attempted, for the error: `reading table p.d.t`.

    Raises:
        SinkUnavailable: it failed to the last, and may succeed later.
        SinkError: it failed for a reason that stays.
    """
    retry = 0
    while True:
        try:
            return call()
        except foreign_errors() as error:
            if not is_passing(error) or retry >= backoff.retries:
                raise told(error, doing, retry) from error
        sleep(backoff.delay_s(retry, draw))
        retry += 1


def foreign_errors() -> tuple[type[Exception], ...]:
    """What the client libraries raise."""
    import requests.exceptions
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError

    return GoogleAPICallError, GoogleAuthError, requests.exceptions.RequestException, ConnectionError, TimeoutError


def told(error: BaseException, doing: str, retries: int = 0) -> SinkError:
    """The error as the pipeline knows it."""
    times = f" ({retries + 1} times)" if retries else ""
    if is_passing(error):
        return SinkUnavailable(f"{doing} failed{times}: {_text(error)}")
    return SinkError(f"{doing} failed: {_text(error)}.{_way_out(error)}")


def _text(error: Any) -> str:
    return str(getattr(error, "message", "") or error).rstrip(".")


def _way_out(error: BaseException) -> str:
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    if isinstance(error, GoogleAuthError):
        return " Name a service account's file under `credentials`, or run `gcloud auth application-default login`"
    if isinstance(error, exceptions.Forbidden | exceptions.Unauthorized):
        return " The account needs the role BigQuery Data Editor on the dataset"
    if isinstance(error, exceptions.NotFound):
        return " Make the table, or set `create: true`; the dataset must be there"
    return ""
