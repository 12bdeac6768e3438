"""One key of a pipeline's file: what it may hold and what it means. Files are checked by tables of keys, and the
reference pages are made of them."""

from dataclasses import dataclass
from typing import Any, Final, Literal

Kind = Literal["text", "number", "flag", "texts", "map", "duration", "size", "choice", "any"]
"""duration: `90s`, `10m`, `1h` or a number of seconds, read as seconds. size: `10MB` or a number, read as bytes. texts:
a list of texts, or one text."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key.

    Attributes:
        help: one or two sentences for the reference page.
        default: what holds where the key is not given; of the type that a value is read as.
        choices: what a `choice` may be.
        least: the smallest number, duration or size.
        secret: never shown.
    """

    name: str
    kind: Kind
    help: str
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()
    least: float | None = None
    secret: bool = False


Keys = tuple[Key, ...]
NO_KEYS: Final[Keys] = ()
