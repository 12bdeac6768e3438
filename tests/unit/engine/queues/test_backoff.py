"""How long what failed waits: the text for it, growth, caps and chance."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.queues.backoff import LONGEST_MS, Backoff, Growth

calm = settings(deadline=None)  # a busy machine is no failure

growing = st.sampled_from([Growth.LINEAR, Growth.EXPONENTIAL])
waits = st.integers(1, LONGEST_MS) | st.builds(int.__mul__, st.integers(1, 168), st.just(3_600_000))
shares = st.integers(0, 1000).map(lambda thousandths: thousandths / 1000)
backoffs = (
    st.just(Backoff())
    | st.builds(lambda wait, share: Backoff(Growth.FIXED, wait, wait, share), waits, shares)
    | st.builds(lambda kind, a, b, share: Backoff(kind, min(a, b), max(a, b), share), growing, waits, waits, shares)
)


@pytest.mark.parametrize(
    ("text", "backoff"),
    [
        ("none", Backoff()),
        ("fixed:10s", Backoff(Growth.FIXED, 10_000, 10_000)),
        ("linear:1s..1m~0.2", Backoff(Growth.LINEAR, 1000, 60_000, 0.2)),
        ("exponential:1s..5m", Backoff(Growth.EXPONENTIAL, 1000, 300_000)),
        ("exponential:1500ms..7d~1", Backoff(Growth.EXPONENTIAL, 1500, LONGEST_MS, 1.0)),
    ],
)
def test_texts(text: str, backoff: Backoff) -> None:
    assert Backoff.parse(text) == backoff
    assert backoff.format() == text


@calm
@given(backoffs)
def test_what_is_written_is_read_again(backoff: Backoff) -> None:
    assert Backoff.parse(backoff.format()) == backoff


@pytest.mark.parametrize(
    "text",
    [
        "",
        "never",
        "none:1s",
        "none~0.1",
        "fixed",
        "fixed:",
        "fixed:0s",
        "fixed:10",
        "fixed:1s..2s",
        "fixed:1s..",
        "linear:1s",
        "linear:..1m",
        "linear:2s..1s",
        "linear:0s..1s",
        "exponential:1s..8d",
        "exponential:1s..5m~",
        "exponential:1s..5m~1.1",
        "exponential:1s..5m~0.0001",
        "exponential:1s..5m~-1",
        "exponential:1s..5m~0.2~0.2",
        "exponential:1s..2s..3s",
        "EXPONENTIAL:1s..5m",
    ],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Backoff.parse(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("none", [0, 0, 0, 0, 0]),
        ("fixed:10s", [10, 10, 10, 10, 10]),
        ("linear:2s..7s", [2, 4, 6, 7, 7]),
        ("exponential:1s..10s", [1, 2, 4, 8, 10]),
    ],
)
def test_waits_grow(text: str, seconds: list[int]) -> None:
    backoff = Backoff.parse(text)
    assert [backoff.delay_ms(attempts, 0.999) for attempts in range(1, 6)] == [each * 1000 for each in seconds]
    assert backoff.delay_ms(0, 0.0) == seconds[0] * 1000, "who never failed waits as after the first time"


@calm
@given(backoffs, st.integers(0, 300), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_within_its_bounds_and_never_shorter_for_chance(backoff: Backoff, attempts: int, unit: float) -> None:
    wait_ms = backoff.delay_ms(attempts, unit)
    plain_ms = backoff._replace(jitter=0).delay_ms(attempts, unit)
    assert backoff.first_ms <= plain_ms <= backoff.most_ms
    assert 0 <= wait_ms - plain_ms <= plain_ms * backoff.jitter
    assert backoff.delay_ms(attempts + 1, unit) >= wait_ms


@calm
@given(backoffs.filter(lambda backoff: backoff.kind is not Growth.NONE))
def test_waits_reach_the_longest_and_no_count_is_too_much(backoff: Backoff) -> None:
    assert backoff._replace(jitter=0).delay_ms(1 << 62, 0.0) == backoff.most_ms


def test_chance_adds_all_of_its_share() -> None:
    backoff = Backoff.parse("fixed:10s~0.2")
    assert [backoff.delay_ms(1, unit) for unit in (0.0, 0.5, 0.9999)] == [10_000, 11_000, 11_999]
