"""Receipts: what was made is read as it was, and whatever else somebody gives back is refused by what is wrong."""

import random
import string

import pytest

from penstock.engine.queues.receipts import RECEIPT_CHARS, Receipt, make_receipt, parse_receipt
from penstock.errors import Code, PenstockError

ROUNDS = 300
LETTERS = string.ascii_letters + string.digits + "-_"
PARTITIONS = (0, 1, 9_999, (1 << 32) - 1)
OFFSETS = (0, 1, 1 << 40, (1 << 63) - 1)
LEASES = (0, 1, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)


def random_receipt(rng: random.Random) -> Receipt:
    drawn = rng.choice(PARTITIONS), rng.choice(OFFSETS), rng.choice(LEASES)
    return Receipt(*drawn) if rng.random() < 0.5 else Receipt(*(rng.randrange(most + 1) for most in drawn))


def refused(text: str) -> str:
    with pytest.raises(PenstockError) as raised:
        parse_receipt(text)
    assert raised.value.code is Code.INVALID_REQUEST
    assert raised.value.help
    return str(raised.value)


def test_what_was_made_is_read_as_it_was() -> None:
    for seed in range(ROUNDS):
        receipt = random_receipt(random.Random(seed))
        text = make_receipt(*receipt)
        assert parse_receipt(text) == receipt
        assert len(text) == RECEIPT_CHARS == 34
        assert set(text) <= set(LETTERS)
        assert not text.startswith("-")  # a command would take it for an option


def test_any_changed_letter_is_noticed() -> None:
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        text = make_receipt(*random_receipt(rng))
        at = rng.randrange(len(text))
        other = rng.choice(LETTERS.replace(text[at], ""))
        refused(text[:at] + other + text[at + 1 :])


def test_letters_in_other_places_are_noticed() -> None:
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        text = make_receipt(*random_receipt(rng))
        one, two = sorted(rng.sample(range(len(text)), 2))
        swapped = text[:one] + text[two] + text[one + 1 : two] + text[one] + text[two + 1 :]
        if swapped != text:
            refused(swapped)


def test_garbage_is_refused() -> None:
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        length = rng.choice((0, 1, RECEIPT_CHARS - 1, RECEIPT_CHARS, RECEIPT_CHARS + 1, 5000))
        refused("".join(rng.choice(LETTERS + "+/= \n\0é€") for _ in range(length)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has 0 characters, and not 34"),
        ("A" * 33, "has 33 characters"),
        ("A" * 5000, f"receipt '{'A' * 57}...' has 5000 characters"),
        ("+" * 34, "is no base64 as receipts have it"),
        ("é" * 34, "is no base64"),
        (make_receipt(1, 2, 3)[:-1] + "\n", "is no base64"),
        (make_receipt(1, 2, 3)[:-2] + "AA", "is not as it was given: its checksum differs"),
    ],
)
def test_what_is_wrong_is_told(text: str, told: str) -> None:
    assert told in refused(text)


def test_a_version_that_is_not_known_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("penstock.engine.queues.receipts._VERSION", 2)
        later = make_receipt(1, 2, 3)
    assert "has version 2, and 1 is known here" in refused(later)


def test_an_offset_below_nothing_is_none() -> None:
    assert "is for offset -1" in refused(make_receipt(1, -1, 3))


def test_receipts_that_were_given_stay_good() -> None:
    """Consumers may have kept them through an upgrade."""
    text = "AQAAAAcAAAAAAAAAKgAAAAAAAAAJnkWqlA"
    assert (make_receipt(7, 42, 9), parse_receipt(text)) == (text, Receipt(7, 42, 9))
