"""The JSON of a question: an object, read field by field. What does not fit is refused by its name."""

from base64 import b64encode
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

import orjson

from penstock.engine.access import Kind, Operation
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka_wire.penstock_verb import MAX_DOCUMENT_BYTES
from penstock.security.rules import Effect, Pattern, Rule

E = TypeVar("E", bound=StrEnum)

MAX_ROWS: Final = 1000
"""In one answer; whoever wants more asks again."""
_MAX_RULES: Final = 1000
_MAX_TEXT_CHARS: Final = 1024


class Document:
    """Its methods raise PenstockError INVALID_REQUEST."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    @classmethod
    def parse(cls, data: bytes, known: frozenset[str]) -> "Document":
        """Refuses fields that are not known: left out, they may have been what narrows a right."""
        if len(data) > MAX_DOCUMENT_BYTES:
            raise refused(f"a document of {len(data)} bytes; allowed: {MAX_DOCUMENT_BYTES}")
        try:
            fields = orjson.loads(data or b"{}")
        except orjson.JSONDecodeError as error:
            raise refused(f"the document is no JSON: {error}") from None
        if not isinstance(fields, dict):
            raise refused(f"the document is no JSON object but {_shown(fields)}")
        _check_known(fields, known)
        return cls(fields)

    def text(self, name: str, otherwise: str | None = None) -> str:
        """Without a value for its absence it has to be there."""
        found: str = self._get(name, str, "a text", otherwise, _MAX_TEXT_CHARS)
        return found

    def long_text(self, name: str, most: int) -> str:
        """A text of so many characters, which has to be there."""
        found: str = self._get(name, str, "a text", None, most)
        return found

    def flag(self, name: str) -> bool:
        found: bool = self._get(name, bool, "true or false", False)
        return found

    def has(self, name: str) -> bool:
        """Whether the field is there, and is not null."""
        return self._fields.get(name) is not None

    def maybe(self, name: str, lowest: int, highest: int) -> int | None:
        """A number that need not be there."""
        return self.number(name, lowest, highest) if self.has(name) else None

    def number(self, name: str, lowest: int, highest: int, otherwise: int | None = None) -> int:
        """Without a value for its absence it has to be there."""
        found: int = self._get(name, int, "a whole number", otherwise)
        if isinstance(found, bool) or not lowest <= found <= highest:
            raise refused(f"{name}: {found} is not a whole number from {lowest} to {highest}")
        return found

    def word(self, name: str, words: type[E], otherwise: E | None = None) -> E:
        return read_word(name, self._get(name, str, "a text", otherwise), words)

    def texts(self, name: str, most: int) -> list[str]:
        found: list[str] = self._get(name, list, "a list", [], most)
        for each in found:
            if not isinstance(each, str) or len(each) > _MAX_TEXT_CHARS:
                raise refused(f"{name}: a list of texts of at most {_MAX_TEXT_CHARS} characters, and {_shown(each)}")
        return found

    def numbers(self, name: str, most: int, highest: int) -> list[int]:
        found: list[int] = self._get(name, list, "a list", [], most)
        for each in found:
            if not isinstance(each, int) or isinstance(each, bool) or not 0 <= each <= highest:
                raise refused(f"{name}: a list of whole numbers from 0 to {highest}, and {_shown(each)}")
        return found

    def pairs(self, name: str) -> dict[str, str]:
        """Texts by name; none if the field is not there."""
        found: dict[str, str] = self._get(name, dict, "an object", {})
        for key, value in found.items():
            if not isinstance(value, str) or len(value) > _MAX_TEXT_CHARS:
                raise refused(
                    f"{name}: {key[:50]} is {_shown(value)}, and no text of at most {_MAX_TEXT_CHARS} characters"
                )
        return found

    def rows(self, name: str, known: frozenset[str], most: int) -> list["Document"]:
        """A list of objects with these fields."""
        return [_row(name, each, known) for each in self._get(name, list, "a list", None, most)]

    def rules(self, name: str) -> list[Rule] | None:
        """As `rule_fields` writes them; None if the field is not there."""
        if self._fields.get(name) is None:
            return None
        return [read_rule(each) for each in self._get(name, list, "a list", [], _MAX_RULES)]

    def _get(self, name: str, kind: type, what: str, otherwise: Any = None, most: int | None = None) -> Any:
        found = self._fields.get(name)
        if found is None:
            if otherwise is None:
                raise refused(f"{name} is missing")
            return otherwise
        if not isinstance(found, kind):
            raise refused(f"{name}: {_shown(found)} is not {what}")
        if most is not None and isinstance(found, str | list) and len(found) > most:
            raise refused(f"{name} has a length of {len(found)}; allowed: {most}")
        return found


def _row(name: str, fields: object, known: frozenset[str]) -> Document:
    if not isinstance(fields, dict):
        raise refused(f"{name}: a list of objects, and {_shown(fields)}")
    _check_known(fields, known)
    return Document(fields)


def _check_known(fields: Mapping[str, Any], known: frozenset[str]) -> None:
    for name in fields:
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise refused(f"field {name[:50]!r} is not known to this broker, which knows {there}")


def read_rule(fields: object) -> Rule:
    """Raises PenstockError INVALID_REQUEST."""
    if not isinstance(fields, dict) or sorted(fields) != sorted(Rule._fields):
        raise refused(f"a rule has {', '.join(Rule._fields)}, and not {_shown(fields)}")
    for name, value in fields.items():
        if not isinstance(value, str):
            raise refused(f"{name} of a rule: {_shown(value)} is not a text")
    return Rule(
        fields["principal"],
        fields["host"],
        read_word("operation", fields["operation"], Operation),
        read_word("kind", fields["kind"], Kind),
        read_word("pattern", fields["pattern"], Pattern),
        fields["name"],
        read_word("effect", fields["effect"], Effect),
    )


def rule_fields(rule: Rule) -> dict[str, str]:
    """The rule as JSON has it."""
    return {name: str(value) for name, value in rule._asdict().items()}


def read_word(name: str, said: str, words: type[E]) -> E:
    try:
        return words(said)
    except ValueError:
        raise refused(f"{name}: {_shown(said)} is not one of {', '.join(words)}") from None


def bytes_fields(name: str, content: bytes | None) -> Mapping[str, str | None]:
    """Bytes as JSON has them: as text where they are UTF-8, else in base64."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(content).decode()}


def refused(what: str) -> PenstockError:
    return PenstockError(Code.INVALID_REQUEST, what)


def _shown(value: object) -> str:
    return repr(value)[:50]
