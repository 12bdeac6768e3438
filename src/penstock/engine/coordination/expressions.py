"""Regular expressions clients send, and how much work they may make.

RE2 needs time linear in the text, but what it needs per byte is up to the expression: with one that has to remember a
hundred places where it might be, it works on all of them at every byte. That cannot be seen before it has been done, so
the work is bounded by what it can be at most: the instructions of the program times the bytes of all names. The syntax
is that of RE2J, which Java's clients and Kafka use.
"""

import re
from collections.abc import Iterable

import re2

from penstock.errors import Code, PenstockError

LONGEST_EXPRESSION = 1024  # bytes; the program RE2 makes of it grows with it
MOST_WORK = 32_000_000  # instructions times bytes: 5 to 15 ns each at worst, so a third of a second; as a rule a tenth
_MEMORY_BYTES = 1 << 20  # of one program and its caches, which are kept; the work is bounded without more
_LAST_LOOP = re.compile(r"(?<!\\)\.[*+](?=\)*\$?$)")
_LAST_LOOPS = re.compile(r"(?<!\\)\.[*+](?=\$?(?:\||$))")
_REPEATS = re.compile(r"[*+?{]")


class Expression:
    """Args:
    text: as the client wrote it.
    ascii_only: whether all it will be held against is ASCII; programs are smaller then.

    Raises:
        PenstockError: INVALID_REGEX, with RE2's own words.
    """

    __slots__ = ("_compiled", "_is_plain", "_text")

    def __init__(self, text: str, *, ascii_only: bool = False) -> None:
        self._text = text
        self._compiled = _compile(text, ascii_only=ascii_only and text.isascii())
        self._is_plain = _is_plain(text)

    def check_work(self, names: int, size_bytes: int) -> None:
        """Whether so many names of so many bytes together can be looked at in one go; INVALID_REGEX if not."""
        steps = names if self._is_plain else size_bytes
        if self._compiled.programsize * steps + size_bytes > MOST_WORK:
            raise PenstockError(
                Code.INVALID_REGEX,
                f"regular expression {self._text!r} is too much work: {self._compiled.programsize} instructions for "
                "each letter of all the names there are",  # how many is not for who may not see them
                help="use a shorter one with fewer repetitions, or name what you want",
            )

    def matches(self, names: Iterable[str]) -> list[str]:
        """Those that the whole of it matches."""
        fullmatch = self._compiled.fullmatch
        # Bytes, because RE2 converts the spans of a match in text back to characters.
        return [name for name in names if fullmatch(name.encode())]


def _is_plain(text: str) -> bool:
    """Whether each instruction is about one place in the name, so that each is looked at about once per name.

    So it is without repetitions: names, or beginnings of names, one beside the other. A `.*` with nothing behind it is
    none. Two groups can be one behind the other, and their lengths multiply.
    """
    loops = _LAST_LOOP if "(" in text else _LAST_LOOPS
    return text.count("(") <= 1 and _REPEATS.search(loops.sub("", text)) is None


def _compile(text: str, *, ascii_only: bool) -> "re2._Regexp":
    size = len(text.encode())
    if size > LONGEST_EXPRESSION:
        raise PenstockError(
            Code.INVALID_REGEX,
            f"the regular expression has {size} bytes, {LONGEST_EXPRESSION} are allowed",
            help="use a shorter one, or name what you want",
        )
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    options.never_capture = True
    if ascii_only:
        options.encoding = re2.Options.Encoding.LATIN1
    try:
        return re2.compile(text.encode() if ascii_only else text, options=options)
    except re2.error as error:
        reason = error.args[0]
        why = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise PenstockError(
            Code.INVALID_REGEX,
            f"regular expression {text!r} is not valid: {why}",
            help="the syntax is that of RE2, without look-around and back-references",
        ) from None
