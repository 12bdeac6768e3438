"""Keys of users that are not there, which nobody can tell from those of users that are.

A name always has the same decoy: salt and iterations like those of some user, drawn by the name. So what is told of
names that are nobody's is spread as what is told of users, whoever made these: Kafka's tools hash less often than we
do, and have salts of letters and digits. The secret by which all that is drawn is in the metadata store, the same for
all brokers, and depends on no other.
"""

import hashlib
import hmac
import re
import string
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.ports.randomness import Randomness
from penstock.security.scram import ITERATIONS, SALT_BYTES, Mechanism, ScramKeys

SECRET_BYTES: Final = 32
_ALPHABETS: Final = (
    string.digits,
    string.digits + "abcdef",
    string.digits + "ABCDEF",
    string.digits + string.ascii_lowercase,
    string.digits + string.ascii_uppercase,
    string.digits + string.ascii_letters,
)
"""What salts that are text are made of; the first one that fits counts."""
_TABLES: Final = {
    alphabet: (
        bytes(ord(alphabet[each % len(alphabet)]) for each in range(256)),
        bytes(range(256 - 256 % len(alphabet), 256)),  # by these, some would come more often than others
    )
    for alphabet in _ALPHABETS
}
_TEXT: Final = re.compile(rb"[\x20-\x7e]+")
_JAVA: Final = re.compile(rb"[1-9a-z][0-9a-z]{21,25}")
_JAVA_NUMBERS: Final = 1 << 130
_JAVA_DIGITS: Final = _ALPHABETS[3]
"""Kafka's salts are numbers below that one, written with these digits."""
T = TypeVar("T")


class Form(NamedTuple):
    """What the salts of a user look like: of how many bytes, and if they are text, of which kind."""

    size: int
    alphabet: str = ""
    """Empty: they are any bytes."""
    marks: tuple[tuple[int, int], ...] = ()
    """What stands between letters and digits, and where."""
    is_java: bool = False


class Model(NamedTuple):
    """What may be told of a user's keys of one mechanism."""

    iterations: int
    form: Form


_OURS: Final = Model(ITERATIONS, Form(SALT_BYTES))


class _Urn(Generic[T]):
    """What there is, each as often as there is."""

    def __init__(self, things: Iterable[T]) -> None:
        counts = sorted(Counter(things).items(), key=repr)
        self._things = [thing for thing, _ in counts]
        self._ends = list(accumulate(count for _, count in counts))

    def draw(self, number: int, none: T) -> T:
        """By a number of 64 bits."""
        if not self._things:
            return none
        return self._things[bisect_right(self._ends, number * self._ends[-1] >> 64)]


class Models:
    """Args:
    users: the keys of each.
    """

    def __init__(self, users: Iterable[Mapping[Mechanism, ScramKeys]] = ()) -> None:
        found = [{each: _model_of(keys) for each, keys in kept.items()} for kept in users]
        self._all = _Urn(tuple(like.get(each) for each in Mechanism) for like in found if like)
        self._of = {each: _Urn(like[each] for like in found if each in like) for each in Mechanism}

    def draw(self, number: int) -> dict[Mechanism, Model]:
        """The mechanisms that a user has keys for, and what they are like; none: only where there are no users."""
        drawn = self._all.draw(number, ())
        return {each: model for each, model in zip(Mechanism, drawn, strict=False) if model is not None}

    def draw_of(self, mechanism: Mechanism, number: int) -> Model:
        return self._of[mechanism].draw(number, _OURS)


def decoy_keys(secret: bytes, models: Models, mechanism: Mechanism, user: str) -> ScramKeys:
    """For an exchange of SCRAM."""
    return _decoy(secret, models, user, mechanism)[1]


def decoy_password(secret: bytes, models: Models, user: str) -> tuple[Mechanism, ScramKeys]:
    """What a password is checked against."""
    return _decoy(secret, models, user, None)


def _decoy(secret: bytes, models: Models, user: str, asked: Mechanism | None) -> tuple[Mechanism, ScramKeys]:
    """The same work for every name."""
    drawn = hmac.digest(secret, b"user\0" + user.encode(), "sha512")
    like = models.draw(int.from_bytes(drawn[:8], "big"))
    mechanism = asked or next(iter(like), Mechanism.SHA_256)
    model = like.get(mechanism) or models.draw_of(mechanism, int.from_bytes(drawn[8:16], "big"))
    # What it is like is part of it: where a name is like another user now, it is as if its password was changed.
    likeness = f"{mechanism}\0{model.iterations}\0{model.form.size}\0{model.form.alphabet}"
    seed = hmac.digest(secret, b"salt\0" + drawn + likeness.encode(), "sha512")
    made = hmac.digest(secret, b"keys\0" + seed, mechanism.digest)  # of a secret that is not told, nor fits anything
    return mechanism, ScramKeys(_salt(model.form, seed), made, made, model.iterations)


def make_secret(randomness: Randomness) -> bytes:
    return randomness.getrandbits(SECRET_BYTES * 8).to_bytes(SECRET_BYTES, "big")


def _model_of(keys: ScramKeys) -> Model:
    return Model(keys.iterations, _form_of(keys.salt))


def _form_of(salt: bytes) -> Form:
    size = len(salt)
    if _TEXT.fullmatch(salt) is None:
        return Form(size)
    text = salt.decode()
    marks = tuple((at, salt[at]) for at, each in enumerate(text) if not each.isalnum())
    used = {each for each in text if each.isalnum()}
    alphabet = next(each for each in _ALPHABETS if used <= {*each})
    is_java = alphabet == _JAVA_DIGITS and _JAVA.fullmatch(salt) is not None and int(text, 36) < _JAVA_NUMBERS
    return Form(size, alphabet, marks, is_java)


def _salt(form: Form, seed: bytes) -> bytes:
    if form.is_java:
        least, most = 36 ** (form.size - 1), min(36**form.size, _JAVA_NUMBERS)
        return _base36(least + int.from_bytes(seed, "big") % (most - least))
    if not form.alphabet:
        return hashlib.shake_256(seed).digest(form.size)
    table, unfair = _TABLES[form.alphabet]
    text = bytearray(hashlib.shake_256(seed).digest(2 * form.size + 64).translate(table, unfair)[: form.size])
    for place, mark in form.marks:
        text[place] = mark
    return bytes(text)


def _base36(number: int) -> bytes:
    digits = []
    while number:
        number, digit = divmod(number, 36)
        digits.append(_JAVA_DIGITS[digit])
    return "".join(reversed(digits)).encode()
