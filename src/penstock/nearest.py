"""What somebody probably meant who wrote a name that is unknown."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_LONGEST: Final = 60
"""Of what is compared: that takes time with its square, and a peer may send any name."""
_MOST: Final = 3
_LIKE: Final = 0.6
_HARDLY_ELSE: Final = 0.85


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """`did you mean a, b or c?`: up to three known names like it, one if that is as good as sure; or `otherwise`."""
    near = get_close_matches(name[:_LONGEST], list(known), _MOST, _LIKE)
    if get_close_matches(name[:_LONGEST], near[:1], 1, _HARDLY_ELSE):
        near = near[:1]
    if not near:
        return otherwise
    return f"did you mean {' or '.join(filter(None, [', '.join(near[:-1]), near[-1]]))}?"
