"""From the name on a certificate to a user's: Kafka's `ssl.principal.mapping.rules`.

A list of rules, of which the first that matches the whole name decides:

    DEFAULT                          the name as it is
    RULE:pattern/replacement/[LU]    what the pattern matches, replaced, then in lower or upper case

In a pattern and a replacement `\\/` is a slash; in a replacement `$1` is the pattern's first group. A name that no rule
matches is nobody's. Patterns are matched by RE2, which takes time in proportion to the name whatever the pattern is;
what RE2 cannot match (looking ahead or behind, references back) is refused when the rules are read.
"""

from dataclasses import dataclass
from typing import Any, Final

import re2

from penstock.errors import WrongSettings

SETTING: Final = "ssl.principal.mapping.rules"
_RULE: Final = "RULE:"
_LONGEST: Final = 1024  # bytes of a name
_FORM: Final = "a rule is DEFAULT or RULE:pattern/replacement/, with L or U behind it"


@dataclass(frozen=True, slots=True)
class _Rule:
    """
    Attributes:
        pattern: None takes every name as it is.
        replacement: text, and numbers of groups.
        case: L, U or nothing.
    """

    pattern: Any = None
    replacement: tuple[str | int, ...] = ()
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        # As Java's replaceAll: also a second, empty match at the end, such as `.*` has, is replaced.
        found: str = self.pattern.sub(self._expand, name)
        return found.lower() if self.case == "L" else found.upper() if self.case == "U" else found

    def _expand(self, match: Any) -> str:
        return "".join(part if isinstance(part, str) else match.group(part) or "" for part in self.replacement)


class CertificateRules:
    """Rules, parsed. Raises `WrongSettings` for what is none."""

    def __init__(self, text: str = "DEFAULT") -> None:
        self._rules = _parse(text)

    def user_of(self, name: str) -> str | None:
        """Who has the certificate of this name; None is nobody.

        Names that are longer than 1,024 bytes, or have characters that do not show, are nobody's.
        """
        if len(name.encode(errors="replace")) > _LONGEST or not name.isprintable():
            return None
        for rule in self._rules:
            found = rule.apply(name)
            if found is not None:
                return found or None
        return None


def _parse(text: str) -> tuple[_Rule, ...]:
    rules: list[_Rule] = []
    text = text.strip()
    at = 0
    while at < len(text):
        start = at
        if text.startswith(_RULE, at):
            pattern, at = _part(text, at + len(_RULE))
            replacement, at = _part(text, at)
            case = text[at : at + 1] if text[at : at + 1] in ("L", "U") else ""
            at += len(case)
            rules.append(_make(pattern, replacement, case))
        else:
            at = text.find(",", at)
            at = len(text) if at < 0 else at
            if text[start:at].strip() == "DEFAULT":
                rules.append(_Rule())
            elif text[start:at].strip():
                raise _wrong(text[start:at].strip(), _FORM)
        rest = text[at:].lstrip()
        if rest and not rest.startswith(","):
            raise _wrong(text[start:].strip(), f"{rest!r} is behind the end of the rule")
        at = len(text) - len(rest[1:].lstrip())
    if not rules:
        raise _wrong(text, "there is no rule, so that nobody would get in")
    return tuple(rules)


def _part(text: str, start: int) -> tuple[str, int]:
    """Up to the next slash that is none of the text, and where it goes on behind it."""
    at = start
    while at < len(text) and text[at] != "/":
        at += 2 if text[at] == "\\" else 1
    if at >= len(text):
        raise _wrong(text[start:], "it has no '/' at its end; one within it is '\\/'")
    return text[start:at], at + 1


def _make(pattern: str, replacement: str, case: str) -> _Rule:
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        told = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        raise _wrong(pattern, f"RE2 cannot match it: {told}") from None
    return _Rule(compiled, tuple(_parts_of(replacement, compiled.groups)), case)


def _parts_of(replacement: str, groups: int) -> list[str | int]:
    """Text and groups. A number that no group has is text, as in Kafka; without any group it is an error."""
    parts: list[str | int] = []
    at = 0
    while at < len(replacement):
        char = replacement[at]
        digits = 1
        while replacement[at + 1 : at + 1 + digits].isdecimal() and at + digits < len(replacement):
            digits += 1
        number = replacement[at + 1 : at + digits]
        if char == "\\" and at + 1 < len(replacement):
            parts.append(replacement[at + 1])
            at += 2
        elif char == "$" and number:
            if not groups and number[0] != "0":
                raise _wrong(replacement, f"it names group {number}, and the pattern has none")
            taken = len(number)
            while taken > 1 and int(number[:taken]) > groups:
                taken -= 1
            group = int(number[:taken])
            if group <= groups:
                parts.append(group)
                at += 1 + taken
            else:
                parts.append("$")
                at += 1
        elif char == "$":
            raise _wrong(replacement, "'$' is not in front of a group's number; '\\$' is the character")
        else:
            parts.append(char)
            at += 1
    return parts


def _wrong(text: str, reason: str) -> WrongSettings:
    return WrongSettings(f"{SETTING}: {text!r}: {reason}")
