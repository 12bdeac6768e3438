import pytest

from penstock.pipelines.keys import Key
from penstock.pipelines.model import Place
from penstock.pipelines.spec.tree import Items, Leaf, Node, Table
from penstock.pipelines.spec.values import Wrong, parse_duration, parse_size, read_value

_HERE = Place("f", 1)


def leaf(text: str) -> Node:
    return Leaf(text, _HERE)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("1h", 3600),
        ("500ms", 0.5),
        ("2d", 172_800),
        ("5", 5),
        ("0.25", 0.25),
        ("1h30m", 5400),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "5 apples", "10M", "1h and", "1,5s", "--5"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(Wrong):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("10MB", 10_000_000), ("64KiB", 65_536), ("5", 5), ("1.5kB", 1500), ("2GiB", 2**31), ("7B", 7), ("1_000", 1000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "5 ib", "5XB", "-5"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(Wrong):
        parse_size(text)


@pytest.mark.parametrize(
    ("key", "node", "value"),
    [
        (Key("k", "number", "", default=1), leaf("500_000"), 500_000),
        (Key("k", "number", "", default=1.0), leaf("2"), 2.0),
        (Key("k", "flag", ""), leaf("Yes"), True),
        (Key("k", "flag", ""), leaf("off"), False),
        (Key("k", "text", ""), leaf("1.10"), "1.10"),
        (Key("k", "texts", ""), leaf("a"), ("a",)),
        (Key("k", "texts", ""), Items((leaf("a"), leaf("2")), _HERE), ("a", "2")),
        (Key("k", "choice", "", choices=("a", "b")), leaf("b"), "b"),
    ],
)
def test_values_by_kind(key: Key, node: Node, value: object) -> None:
    assert read_value(key, node) == value


@pytest.mark.parametrize(
    ("key", "node", "expected"),
    [
        (Key("k", "number", "", default=1), leaf("1.5"), "a whole number"),
        (Key("k", "number", "", default=1), leaf("9" * 5000), "a whole number"),
        (Key("k", "number", "", least=1), leaf("0"), "at least 1"),
        (Key("k", "number", ""), leaf("9" * 25), "smaller"),
        (Key("k", "duration", "", least=0), leaf("-5"), "at least 0 s"),
        (Key("k", "flag", ""), leaf("maybe"), "true or false"),
        (Key("k", "text", ""), Items((), _HERE), "a text"),
        (Key("k", "texts", ""), Items((), _HERE), "with something in it"),
        (Key("k", "texts", ""), Items((Items((), _HERE),), _HERE), "a text or a list of texts"),
        (Key("k", "map", ""), leaf("x"), "a map of texts"),
        (Key("k", "map", ""), Table((), _HERE), None),
        (Key("k", "choice", "", choices=("append", "update")), leaf("apend"), "did you mean `append`?"),
    ],
)
def test_what_will_not_do(key: Key, node: Node, expected: str | None) -> None:
    if expected is None:
        assert read_value(key, node) == {}
        return
    with pytest.raises(Wrong, match=expected.replace("?", r"\?")):
        read_value(key, node)
