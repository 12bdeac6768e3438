"""What a query reads, without Spark: the names that stand where a table may stand.

A table's name follows FROM or JOIN, a comma of the same FROM clause, STREAM, or TABLE. Every open parenthesis is a
frame with a FROM clause of its own; a name that WITH gives to a query hides a source's inside the frame it is given in.
Where the grammar leaves a doubt, a name counts: a table too many is only built, one too few would be missing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
    |(?P<comment>--(?:\\\r?\n|[^\r\n])*|/\*)
    |(?P<raw>[rR](?:'[^']*(?:'|\Z)|"[^"]*(?:"|\Z)))
    |(?P<string>'(?:[^'\\]|\\.|'')*(?:'|\Z)|"(?:[^"\\]|\\.|"")*(?:"|\Z))
    |(?P<quoted>`(?:[^`]|``)*(?:`|\Z))
    |(?P<number>\d+(?:\.\d+)?\w*|\.\d+\w*)
    |(?P<word>[^\W\d]\w*)
    |(?P<sign><=>|->|=>|<>|<=|>=|!=|==|\|\||\|>|::|:=|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_END: Final = re.compile(r"/\*|\*/")
_ENDS_FROM: Final = frozenset(("SELECT", "WHERE", "HAVING", "|>"))
_ENDS_FROM_WITH_BY: Final = frozenset(("GROUP", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE"))
_BEFORE_TABLE: Final = frozenset(("STREAM", "LATERAL"))
_NO_TABLE: Final = frozenset(("SELECT", "FROM", "WITH", "TABLE", "VALUES"))
_CALLS_WITH_FROM: Final = frozenset(("EXTRACT", "TRIM", "SUBSTR", "SUBSTRING", "OVERLAY"))

RESERVED: Final = (
    _BEFORE_TABLE
    | _NO_TABLE
    | {
        "ANTI",
        "CROSS",
        "EXCEPT",
        "FULL",
        "INNER",
        "INTERSECT",
        "JOIN",
        "LEFT",
        "MINUS",
        "NATURAL",
        "ON",
        "RIGHT",
        "SEMI",
    }
    | {"UNION", "USING", "WHERE"}
)
"""What cannot be a table's name without backticks."""


class Token(NamedTuple):
    """Kind: `word`, `quoted` (a name in backticks, text without them), `string`, `number` or `sign`."""

    kind: str
    text: str

    @property
    def upper(self) -> str:
        """For comparing with keywords; of what cannot be one, nothing."""
        return self.text.upper() if self.kind in ("word", "sign") else ""


def tokens(sql: str) -> Iterator[Token]:
    """The query's tokens without spaces and comments; strings keep their quotes. Any text has tokens."""
    at = 0
    while at < len(sql):
        found = _TOKEN.match(sql, at)
        assert found is not None and found.lastgroup is not None
        at = found.end()
        kind, text = found.lastgroup, found[0]
        if kind == "comment" and text == "/*":
            at = _end_of_comment(sql, at)
        elif kind == "quoted":
            yield Token(kind, (text[1:-1] if text[1:].endswith("`") else text[1:]).replace("``", "`"))
        elif kind not in ("space", "comment"):
            yield Token("string" if kind == "raw" else kind, text)


def _end_of_comment(sql: str, at: int) -> int:
    """Comments in /* */ nest."""
    depth = 1
    while depth:
        found = _COMMENT_END.search(sql, at)
        if found is None:
            return len(sql)
        depth += 1 if found[0] == "/*" else -1
        at = found.end()
    return at


def normalise(sql: str) -> str:
    """The same text for queries that differ only in spaces and comments."""
    return " ".join(f"`{each.text}`" if each.kind == "quoted" else each.text for each in tokens(sql))


@dataclass(slots=True)
class _Frame:
    """A query or an expression in parentheses.

    Attributes:
        wants_table: the next name is a table's.
        in_from: a comma is followed by a table.
        call: the word before the parenthesis.
        hidden: names that WITH has given here.
        naming: WITH, or a comma behind one of its queries, has just been read.
        named: the name that WITH gives to the query that comes.
        body_of: the frame is the query of that name.
    """

    wants_table: bool = False
    in_from: bool = False
    has_select: bool = False
    call: str = ""
    hidden: set[str] = field(default_factory=set)
    naming: bool = False
    named: str = ""
    is_recursive: bool = False
    body_of: str = ""


def tables(sql: str) -> list[str]:
    """Names of one part that stand where a table's may, each once (whatever its case), in the order of the query."""
    return _Reading(list(tokens(sql))).run()


class _Reading:
    def __init__(self, read: list[Token]) -> None:
        self._tokens = [*read, Token("end", ""), Token("end", "")]
        self._at = 0
        self._frames = [_Frame()]
        self._found: dict[str, str] = {}

    def run(self) -> list[str]:
        while self._tokens[self._at].kind != "end":
            self._step(self._tokens[self._at])
            self._at += 1
        return list(self._found.values())

    def _step(self, token: Token) -> None:
        frame = self._frames[-1]
        match token.upper:
            case "(":
                self._open(frame)
                return
            case ")":
                self._close()
                return
            case ",":
                frame.wants_table = frame.in_from
                return
        if self._names(frame, token):
            return
        if frame.wants_table and self._table(frame, token):
            return
        self._keyword(frame, token)

    def _open(self, frame: _Frame) -> None:
        before = self._tokens[self._at - 1] if self._at else Token("end", "")
        inner = _Frame(wants_table=frame.wants_table, in_from=frame.wants_table, call=before.upper)
        if frame.named and before.upper == "AS":
            inner.body_of = frame.named
            if frame.is_recursive:
                inner.hidden.add(frame.named)
            frame.named = ""
        frame.wants_table = False
        self._frames.append(inner)

    def _close(self) -> None:
        if len(self._frames) == 1:
            return
        closed = self._frames.pop()
        frame = self._frames[-1]
        if closed.body_of:
            frame.hidden.add(closed.body_of)
            if self._tokens[self._at + 1].text == ",":
                frame.naming = True
                self._at += 1

    def _names(self, frame: _Frame, token: Token) -> bool:
        """WITH name [(columns)] AS (query): takes the name, and forgets it where something else follows."""
        if frame.naming and token.kind in ("word", "quoted"):
            if token.upper == "RECURSIVE":
                frame.is_recursive = True
                return True
            frame.naming, frame.named = False, token.text.casefold()
            return True
        frame.naming = False
        if frame.named and token.upper != "AS":
            frame.named = ""
        return False

    def _table(self, frame: _Frame, token: Token) -> bool:
        """Takes a name where a table is wanted; False: it is a keyword that means something else."""
        frame.wants_table = False
        if token.kind not in ("word", "quoted") or token.upper in _NO_TABLE:
            return False
        if token.upper == "LATERAL" and self._tokens[self._at + 1].upper == "VIEW":
            return True
        if token.upper == "IDENTIFIER" and self._tokens[self._at + 1].text == "(":
            inside = self._tokens[self._at + 2]
            if inside.kind == "string":
                self._take(inside.text[1:-1])
        name = token.text
        parts = 1
        while self._tokens[self._at + 1].text == "." and self._tokens[self._at + 2].kind in ("word", "quoted"):
            self._at += 2
            parts += 1
        if parts == 1:
            self._take(name)
        frame.wants_table = token.upper in _BEFORE_TABLE
        return True

    def _take(self, name: str) -> None:
        folded = name.casefold()
        if not any(folded in each.hidden for each in self._frames):
            self._found.setdefault(folded, name)

    def _keyword(self, frame: _Frame, token: Token) -> None:
        before = self._tokens[self._at - 1].upper if self._at else ""
        if before == ".":
            return
        match token.upper:
            case "FROM":
                # IS DISTINCT FROM, and EXTRACT(HOUR FROM at), are no clauses.
                if before != "DISTINCT" and (frame.has_select or frame.call not in _CALLS_WITH_FROM):
                    frame.wants_table = frame.in_from = True
            case "JOIN":
                frame.wants_table = frame.in_from = True
            case "TABLE":
                frame.wants_table = True
            case "WITH":
                frame.naming, frame.is_recursive = True, False
            case word if word in _ENDS_FROM:
                frame.in_from = False
                frame.has_select = frame.has_select or word == "SELECT"
            case word if word in _ENDS_FROM_WITH_BY and self._tokens[self._at + 1].upper == "BY":
                frame.in_from = False
