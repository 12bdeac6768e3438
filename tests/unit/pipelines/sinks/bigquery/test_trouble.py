"""What is tried again, how long it is waited, and what becomes of the rest."""

import random

import pytest
import requests
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks.bigquery.trouble import Backoff, is_passing, persist


def test_waits_double_up_to_the_longest() -> None:
    assert [Backoff(9, 1, 30).delay_s(retry, lambda: 0.0) for retry in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert [Backoff(9, 1, 30).delay_s(retry, lambda: 0.5) for retry in range(6)] == [1.5, 3, 6, 12, 24, 30]


def test_waits_are_spread_within_their_bounds() -> None:
    draw = random.Random(7).random
    waits = [Backoff().delay_s(retry, draw) for _ in range(50) for retry in range(8)]
    assert min(waits) >= 1.0
    assert max(waits) <= 30.0
    assert len({round(wait, 6) for wait in waits if wait < 30}) > 150


def rest(status: int, reason: str = "") -> Exception:
    return exceptions.from_http_status(status, "text", errors=[{"reason": reason}] if reason else [])


def grpc(code: int) -> Exception:
    return exceptions.from_grpc_status(code, "text")


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_these_statuses_pass(status: int) -> None:
    assert is_passing(rest(status))


@pytest.mark.parametrize("reason", ["rateLimitExceeded", "quotaExceeded", "backendError", "internalError"])
def test_these_reasons_pass_whatever_the_status(reason: str) -> None:
    assert is_passing(rest(403, reason))


@pytest.mark.parametrize(
    "code", [8, 10, 13, 14, 4], ids=["exhausted", "aborted", "internal", "unavailable", "deadline"]
)
def test_these_codes_pass(code: int) -> None:
    assert is_passing(grpc(code))


@pytest.mark.parametrize(
    "error",
    [
        rest(400, "invalid"),
        rest(403, "accessDenied"),
        rest(404, "notFound"),
        rest(413),
        grpc(3),
        grpc(5),
        grpc(7),
        grpc(11),
        grpc(16),
        requests.exceptions.SSLError("certificate"),
        DefaultCredentialsError("none"),
        RefreshError("revoked"),
        ValueError("ours"),
    ],
)
def test_these_stay(error: Exception) -> None:
    assert not is_passing(error)


@pytest.mark.parametrize(
    "error",
    [
        requests.exceptions.ConnectionError("refused"),
        requests.exceptions.ReadTimeout("late"),
        TransportError("token server away"),
        RefreshError("token server busy", retryable=True),
        ConnectionResetError("reset"),
    ],
)
def test_an_absent_server_passes(error: Exception) -> None:
    assert is_passing(error)


class Failing:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.slept: list[float] = []

    def __call__(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    def run(self, backoff: Backoff) -> str:
        return persist(self, backoff, "asking", sleep=self.slept.append, draw=lambda: 0.0)


def test_what_passes_is_tried_again_with_growing_waits() -> None:
    call = Failing(rest(503), rest(429), grpc(14))
    assert call.run(Backoff(3, 1, 30)) == "done"
    assert call.slept == [1, 2, 4]


def test_after_the_last_retry_the_sink_is_unavailable() -> None:
    call = Failing(*[rest(503)] * 9)
    with pytest.raises(SinkUnavailable, match=r"asking failed \(4 times\): .*text"):
        call.run(Backoff(3, 1, 30))
    assert len(call.errors) == 5


def test_what_stays_is_told_at_once_with_a_way_out() -> None:
    call = Failing(rest(403, "accessDenied"))
    with pytest.raises(SinkError, match="BigQuery Data Editor") as caught:
        call.run(Backoff(3, 1, 30))
    assert not caught.value.retriable
    assert call.slept == []


def test_our_own_errors_are_not_dressed_up() -> None:
    with pytest.raises(ValueError, match="ours"):
        Failing(ValueError("ours")).run(Backoff())
