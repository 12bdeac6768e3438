"""Regular expressions of clients: ordinary ones are held against ten thousand names, no one makes endless work."""

import pytest

from penstock.engine.coordination.expressions import MOST_WORK, Expression
from penstock.errors import Code, PenstockError

NAMES = [
    f"{area}-{what}-{number:04}" for area in ("eu", "us") for what in ("orders", "bills") for number in range(2500)
]
SIZE_BYTES = sum(map(len, NAMES))


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        (".*", 10_000),
        ("eu-.*", 5_000),
        (".*orders.*", 5_000),
        ("(eu|us)-orders-[0-9]{4}", 5_000),
        (r"[a-z]+-bills-\d+", 5_000),
        ("(?i)EU-.*-1...", 2_000),
        (r"[a-zA-Z0-9._-]{2}-\pL+-0.*", 4_000),
        ("(eu|us)-.*-00[0-9]+", 400),
        ("|".join(f"us-orders-{number:04}" for number in range(60)), 60),
        ("(" + "|".join(f"eu-bills-{number:02}" for number in range(60)) + ").*", 2_500),
    ],
)
def test_ordinary_expressions_over_ten_thousand_names(text: str, matching: int) -> None:
    expression = Expression(text, ascii_only=True)
    expression.check_work(len(NAMES), SIZE_BYTES)
    assert len(expression.matches(NAMES)) == matching


@pytest.mark.parametrize(
    "text", ["(a?){500}a{500}", "[ab]*a[ab]{100}c?", "[ab]*a" + "[ab]" * 60 + ".*", "(.|a.)" * 100, "(.*a){50}b"]
)
def test_expressions_of_too_much_work(text: str) -> None:
    with pytest.raises(PenstockError, match="too much work") as caught:
        Expression(text, ascii_only=True).check_work(10_000, 1_000_000)
    assert caught.value.code is Code.INVALID_REGEX
    Expression(text, ascii_only=True).check_work(50, 1_000)


def test_long_names_alone_are_work() -> None:
    with pytest.raises(PenstockError, match="too much work"):
        Expression("a").check_work(1, MOST_WORK + 1)


def test_an_expression_with_other_letters_is_what_it_says() -> None:
    assert Expression("ä?orders|größe", ascii_only=True).matches(["orders", "größe", "gr"]) == ["orders", "größe"]
    assert Expression(".").matches(["ä", "a"]) == ["ä", "a"]
