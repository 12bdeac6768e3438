"""Errors go to other processes and say what to do."""

import pickle

import pytest

from penstock.client.errors import ClientError, Failure, Refused, Unreachable, check


@pytest.mark.parametrize(
    ("error", "told", "retriable"),
    [
        (Refused(6, "partition 0 of topic 'a'"), "partition 0 of topic 'a': not leader or follower", True),
        (Refused(58, "user 'ada'", "wrong password"), "user 'ada': sasl authentication failed (wrong password)", False),
        (Refused(9999, "group 'g'"), "group 'g': error 9999", False),
        (Unreachable(Failure("a:1", "x"), Failure("b:2", "y")), "no broker answers at a:1 (x), b:2 (y)", True),
        (ClientError("so"), "so", False),
    ],
)
def test_errors_survive_pickling(error: ClientError, told: str, retriable: bool) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(again), str(again), again.retriable) == (type(error), told, retriable)
    assert vars(again) == vars(error)


def test_codes() -> None:
    check(0, "nothing")
    with pytest.raises(Refused) as raised:
        check(3, "topic 'a'", None)
    assert (raised.value.code, raised.value.name) == (3, "UNKNOWN_TOPIC_OR_PARTITION")
