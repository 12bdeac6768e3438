"""The checks of queues ordered by key bite: forged histories with a fault planted are found out, good ones are not."""

from collections import Counter

import pytest

from tests.chaos.history import Outcome
from tests.chaos.queue_history import Delivery, Kind, Rules, Verdict
from tests.chaos.sorted_history import SortedHistory
from tests.chaos.sorted_messages import Said, Sayings

RULES = Rules(limit=3, visibility_s=3.0, backoff_s=1.0)
WALL_MS = 1_000_000
"""What the wall clock shows at the moment 0, at which everything was published."""


def said(key: str | None = "k", lane: int = 2, tenant: str = "", due_ms: int | None = None) -> Said:
    return Said(key, lane, tenant, WALL_MS, None if due_ms is None else WALL_MS + due_ms)


def delivery(
    value: str,
    at: float,
    verdict: Verdict | None = Verdict.ACK,
    *,
    works_s: float = 0.1,
    consumer: str = "",
    nth: int = 1,
) -> Delivery:
    """Asked for at a moment, there a tenth of a second later; the letter of a value is its offset."""
    place, had_at = (0, ord(value) - ord("a")), at + 0.1
    made = Delivery(place, value, consumer or value, at, had_at, nth, nth - 1, wall_ms=WALL_MS + round(1000 * had_at))
    if verdict is not None:
        made.verdict, made.outcome = verdict, Outcome.OK
        made.said_at, made.known_at = had_at + works_s, had_at + works_s + 0.1
    return made


def found(saying: dict[str, Said], *deliveries: Delivery, delay_ms: int = 0) -> Counter[Kind]:
    history = SortedHistory(RULES, said=saying, delay_ms=delay_ms)
    history.had(deliveries)
    sent = {each.place: each.value for each in deliveries}
    return Counter(each.kind for each in history.check(sent, {each.value: 0 for each in deliveries}, []))


def two(**more: object) -> dict[str, Said]:
    return {"a": said(), "b": said(**more)}  # type: ignore[arg-type]


class TestTime:
    @pytest.mark.parametrize(("due_ms", "delay_ms"), [(2000, 0), (None, 2000), (2000, 5000)])
    def test_not_before_it_is_due(self, due_ms: int | None, delay_ms: int) -> None:
        """A time of its own comes before the queue's delay, be it longer or shorter."""
        saying = {"a": said(due_ms=due_ms)}
        assert found(saying, delivery("a", 1.9), delay_ms=delay_ms) == {}
        assert found(saying, delivery("a", 1.89), delay_ms=delay_ms) == {Kind.EARLY: 1}

    def test_each_delivery_counts(self) -> None:
        early = delivery("a", 0.0, Verdict.RELEASE)
        late = delivery("a", 3.0, nth=2)
        late.attempts = 0
        assert found({"a": said(due_ms=1000)}, early, late) == {Kind.EARLY: 1}


class TestKeys:
    def test_one_after_the_other(self) -> None:
        assert found(two(), delivery("a", 0.0), delivery("b", 0.15)) == {}

    def test_two_at_a_time(self) -> None:
        assert found(two(), delivery("a", 0.0, works_s=1.0), delivery("b", 0.5)) == {Kind.TWO_OF_KEY: 1}

    @pytest.mark.parametrize("other", [{"lane": 0}, {"tenant": "red"}, {"due_ms": 0}])
    def test_of_another_lane_or_tenant_or_time_too(self, other: dict[str, object]) -> None:
        assert found(two(**other), delivery("a", 0.0, works_s=1.0), delivery("b", 0.5)) == {Kind.TWO_OF_KEY: 1}

    @pytest.mark.parametrize("key", [None, "other"])
    def test_of_other_keys_at_a_time(self, key: str | None) -> None:
        assert found(two(key=key), delivery("a", 0.0, works_s=1.0), delivery("b", 0.5)) == {}

    def test_in_one_answer(self) -> None:
        """Though the first one was settled before anything else happened."""
        both = [delivery(value, 0.0, works_s=0.0, consumer="one") for value in "ab"]
        assert found(two(), *both) == {Kind.TWO_OF_KEY: 1}

    def test_behind_a_short_one_of_the_same_key(self) -> None:
        saying = {**two(), "c": said()}
        deliveries = delivery("a", 0.0, works_s=2.0), delivery("b", 0.3), delivery("c", 1.0)
        assert found(saying, *deliveries) == {Kind.TWO_OF_KEY: 2}

    def test_after_a_lease_that_was_left_to_end(self) -> None:
        tries = [delivery("a", 0.0, None), delivery("a", 4.5, nth=2)]
        assert found(two(lane=1), *tries, delivery("b", 3.2)) == {}
        assert found(two(lane=1), *tries, delivery("b", 2.5)) == {Kind.TWO_OF_KEY: 1}

    def test_what_was_asked_for_long_ago(self) -> None:
        """Its answer came when its time was nearly over, and nobody knows when the lease began."""
        late = delivery("a", 0.0, None)
        late.had_at = 2.9
        again = delivery("a", 4.5, nth=2)
        assert found(two(lane=1), late, again, delivery("b", 2.95)) == {}


class TestOrder:
    def test_the_one_before_comes_later(self) -> None:
        assert found(two(), delivery("b", 0.0), delivery("a", 1.0)) == {Kind.OUT_OF_ORDER: 1}

    def test_the_one_before_comes_again(self) -> None:
        tries = [delivery("a", 0.0, Verdict.NACK), delivery("a", 2.0, nth=2)]
        assert found(two(), *tries, delivery("b", 1.0)) == {Kind.OUT_OF_ORDER: 1}
        assert found(two(), *tries, delivery("b", 3.0)) == {}

    def test_not_only_the_next_one(self) -> None:
        saying = {**two(), "c": said()}
        wrong = delivery("c", 0.0), delivery("a", 1.0), delivery("b", 2.0)
        assert found(saying, *wrong) == {Kind.OUT_OF_ORDER: 2}

    @pytest.mark.parametrize("other", [{"lane": 0}, {"tenant": "red"}, {"due_ms": 0}, {"key": "other"}, {"key": None}])
    def test_none_is_promised_between_lanes_tenants_and_times(self, other: dict[str, object]) -> None:
        assert found(two(**other), delivery("b", 0.0), delivery("a", 1.0)) == {}

    def test_what_was_under_way_together(self) -> None:
        """Which lease was first is not known: both were asked for before either answer was there."""
        first = delivery("b", 0.0, works_s=0.0)
        assert found(two(), first, delivery("a", 0.05)) == {}


def test_what_holds_of_any_queue_holds_here() -> None:
    assert found(two(), delivery("a", 0.0), delivery("b", 0.3), delivery("a", 5.0, None, nth=2))[Kind.AGAIN] == 1
    assert found({"a": said()}, delivery("a", 0.0, Verdict.NACK)) == {Kind.LOST: 1}


def test_what_says_nothing_may_come_as_it_likes() -> None:
    assert found({}, delivery("b", 0.0, works_s=2.0), delivery("a", 1.0)) == {}


def test_messages_say_different_things_and_the_same_with_the_same_seed() -> None:
    sayings, again = Sayings(1), Sayings(1)
    for number in range(500):
        assert sayings.say(f"p0-{number}")["key"] == again.say(f"p0-{number}")["key"]
    known = list(sayings.said.values())
    assert [each[:3] for each in known] == [each[:3] for each in again.said.values()]
    assert {each.lane for each in known} == set(range(5))
    assert len({each.tenant for each in known}) == 4
    of_keys = {(each.key, each.tenant) for each in known if each.key is not None}
    assert len(of_keys) == len({key for key, _ in of_keys}) == 40


def test_what_is_sent_is_what_is_kept() -> None:
    sayings = Sayings(1)
    seen: set[str] = set()
    for number in range(500):
        told = sayings.say(f"{number}")
        said, headers = sayings.said[f"{number}"], dict(told["headers"])
        assert (told["key"], told["timestamp"]) == (said.key, said.published_ms)
        assert headers.get("penstock-tenant", b"").decode() == said.tenant
        due = {"penstock-delay-ms": said.published_ms, "penstock-deliver-at": 0}
        times = [since + int(headers[name]) for name, since in due.items() if name in headers]
        assert times == ([] if said.due_ms is None else [said.due_ms])
        seen |= headers.keys()
    assert len(seen) == 4
