"""Bytes that are shown nowhere: not by `repr`, in a text, a log or a traceback's locals, not by pickling."""

import hmac
from typing import NoReturn

HIDDEN = "***"


class Secret:
    """A password, a key, a token. Two are compared in constant time."""

    __slots__ = ("_value",)
    __hash__ = None  # type: ignore[assignment]  # a dictionary compares as quickly as it can

    def __init__(self, value: bytes | str) -> None:
        self._value = value.encode() if isinstance(value, str) else bytes(value)

    def reveal(self) -> bytes:
        """The bytes. Whoever asks answers for where they go."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def __str__(self) -> str:
        return HIDDEN

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")
