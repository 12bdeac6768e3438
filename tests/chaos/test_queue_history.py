"""The checks of queues bite: forged histories with a fault planted in them are found out, and good ones are not."""

from collections import Counter

import pytest

from tests.chaos.history import Outcome
from tests.chaos.queue_history import Delivery, Kind, Letter, QueueHistory, Rules, Verdict

RULES = Rules(limit=3, visibility_s=3.0, backoff_s=1.0)
SENT = {(0, 0): "a", (0, 1): "b"}
TRIED = {"a": 0, "b": 0, "c": 0}
"""The outcome of the last one is not known."""


def delivery(
    at: float,
    verdict: Verdict | None = Verdict.ACK,
    outcome: Outcome = Outcome.OK,
    *,
    offset: int = 0,
    value: str = "a",
    consumer: str = "one",
    count: int = 1,
    attempts: int = 0,
) -> Delivery:
    """Asked for at a moment, there a tenth of a second later, settled after one more."""
    said = (verdict, at + 0.1, at + 0.2, outcome) if verdict is not None else ()
    return Delivery((0, offset), value, consumer, at, at + 0.1, count, attempts, *said)  # type: ignore[arg-type]


B_ACKED = delivery(0.0, offset=1, value="b")


def found(*deliveries: Delivery, letters: tuple[Letter, ...] = (), rules: Rules = RULES) -> Counter[Kind]:
    history = QueueHistory(rules)
    history.had([*deliveries, B_ACKED])
    return Counter(each.kind for each in history.check(SENT, TRIED, letters))


def letter(reason: str = "rejected", *, offset: int = 0, value: str = "a", attempts: int = 0) -> Letter:
    return Letter((0, offset), value, reason, attempts)


class TestWhatIsFine:
    def test_an_acknowledgement(self) -> None:
        assert found(delivery(0.0)) == {}

    def test_one_nobody_knows_of_either_way(self) -> None:
        assert found(delivery(0.0, outcome=Outcome.UNKNOWN)) == {}
        assert found(delivery(0.0, outcome=Outcome.UNKNOWN), letters=(letter("attempts", attempts=3),)) == {}
        assert found(delivery(0.0, outcome=Outcome.UNKNOWN), delivery(3.1, count=2, attempts=1)) == {}

    def test_a_message_that_failed_until_it_was_buried(self) -> None:
        tries = [delivery(2.0 * at, Verdict.NACK, count=at + 1, attempts=at) for at in range(3)]
        assert found(*tries, letters=(letter("attempts", attempts=3),)) == {}

    def test_releases_cost_no_attempt(self) -> None:
        assert found(delivery(0.0, Verdict.RELEASE), delivery(0.3, count=2)) == {}

    def test_a_lease_that_nobody_settled(self) -> None:
        assert found(delivery(0.0, None), delivery(3.0, count=2, attempts=1)) == {}

    def test_a_lease_that_a_power_cut_took_along(self) -> None:
        rules = RULES._replace(forgotten=1)
        assert found(delivery(0.0, None), delivery(1.0, count=1), rules=rules) == {}
        assert found(delivery(0.0, None), delivery(4.0, count=1)) == {Kind.COUNTED_BACK: 1}

    def test_what_was_sent_without_an_answer_may_be_there(self) -> None:
        assert found(delivery(0.0), delivery(0.0, offset=2, value="c")) == {}


class TestWhereItEnds:
    def test_a_message_that_is_nowhere_is_lost(self) -> None:
        assert found() == {Kind.LOST: 1}
        assert found(delivery(0.0, Verdict.NACK)) == {Kind.LOST: 1}

    def test_an_acknowledgement_that_was_refused_settles_nothing(self) -> None:
        assert found(delivery(0.0, outcome=Outcome.FAIL)) == {Kind.LOST: 1}

    def test_two_letters(self) -> None:
        rejected = delivery(0.0, Verdict.REJECT)
        assert found(rejected, letters=(letter(), letter())) == {Kind.BURIED_TWICE: 1}

    def test_a_letter_of_what_was_acknowledged(self) -> None:
        assert found(delivery(0.0), letters=(letter("attempts", attempts=3),)) == {Kind.ACKED_AND_BURIED: 1}

    def test_a_letter_of_what_nobody_rejected(self) -> None:
        assert found(delivery(0.0, Verdict.NACK), letters=(letter(),)) == {Kind.WITHOUT_CAUSE: 1}

    def test_a_letter_of_what_had_not_failed_often_enough(self) -> None:
        assert found(delivery(0.0, Verdict.NACK), letters=(letter("attempts", attempts=2),)) == {Kind.WITHOUT_CAUSE: 1}

    @pytest.mark.parametrize("reason", ["expired", "overflow"])
    def test_a_letter_for_a_reason_this_queue_does_not_have(self, reason: str) -> None:
        assert found(letters=(letter(reason),)) == {Kind.WITHOUT_CAUSE: 1}

    def test_another_value(self) -> None:
        assert found(delivery(0.0, value="b")) == {Kind.PHANTOM: 1}
        assert found(delivery(0.0), letters=(letter(offset=5, value="x"),))[Kind.PHANTOM] == 1
        assert found(delivery(0.0, Verdict.REJECT), letters=(letter(value="b"),)) == {Kind.PHANTOM: 1}


class TestOneAfterTheOther:
    @pytest.mark.parametrize("verdict", [Verdict.ACK, Verdict.REJECT])
    def test_a_delivery_after_it_was_settled(self, verdict: Verdict) -> None:
        letters = (letter(),) if verdict is Verdict.REJECT else ()
        again = delivery(5.0, None, count=2)
        assert found(delivery(0.0, verdict), again, letters=letters) == {Kind.AGAIN: 1}

    def test_a_delivery_that_was_under_way_when_it_was_settled(self) -> None:
        """It was asked for before the acknowledgement was known, as far as anybody can tell."""
        other = delivery(0.15, None, consumer="two", count=2, attempts=0)
        assert found(delivery(0.0), other) == {}

    def test_one_that_failed_too_often(self) -> None:
        tries = [delivery(2.0 * at, Verdict.NACK, count=at + 1, attempts=at) for at in range(3)]
        assert found(*tries, delivery(6.0, count=4, attempts=3)) == {Kind.TOO_OFTEN: 1}

    @pytest.mark.parametrize(
        ("count", "attempts"), [(1, 0), (2, 0), (3, 3)], ids=["count back", "nack gone", "too many"]
    )
    def test_counts_that_cannot_be(self, count: int, attempts: int) -> None:
        kinds = found(delivery(0.0, Verdict.NACK), delivery(2.0, count=count, attempts=attempts))
        assert set(kinds) == {Kind.COUNTED_BACK}

    def test_a_release_that_cost_an_attempt(self) -> None:
        kinds = found(delivery(0.0, Verdict.RELEASE), delivery(2.0, count=2, attempts=1))
        assert kinds == {Kind.COUNTED_BACK: 1}

    def test_one_that_came_before_its_time(self) -> None:
        kinds = found(delivery(0.0, Verdict.NACK), delivery(0.9, count=2, attempts=1))
        assert kinds == {Kind.EARLY: 1}

    def test_one_that_somebody_else_had(self) -> None:
        kinds = found(delivery(0.0, None), delivery(2.5, consumer="two", count=2))
        assert kinds == {Kind.HELD_TWICE: 1}


def test_what_was_confirmed_is_counted_by_partition() -> None:
    history = QueueHistory(RULES)
    each = delivery(0.0, outcome=Outcome.UNKNOWN)
    history.had([each])
    assert (history.unknown, history.acked) == (1, 0)
    history.settled(each, Outcome.OK, 7.0)
    assert (history.unknown, history.acked, history.acks) == (0, 1, {0: [7.0]})
