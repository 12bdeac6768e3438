"""Names of users and roles: what they may be, so that no two of them look alike and none starts a line of its own."""

import unicodedata
from typing import Final

from penstock.errors import Code, PenstockError

MAX_NAME_BYTES: Final = 255
_RESERVED: Final = frozenset({"*", "ANONYMOUS"})


def user_principal(name: str) -> str:
    return f"User:{name}"


def check_user_name(name: str) -> None:
    """Raises PenstockError INVALID_REQUEST."""
    _check(name, "user")
    if name in _RESERVED:
        raise _refused("user", name, "it stands for everybody, or for nobody")


def check_role_name(name: str) -> None:
    """Raises PenstockError INVALID_REQUEST."""
    _check(name, "role")
    if ":" in name:
        raise _refused("role", name, "what follows ':' is the prefix that a role is given for")


def _check(name: str, what: str) -> None:
    problem = name_problem(name)
    if problem:
        raise _refused(what, name, problem)


def name_problem(name: str, max_bytes: int = MAX_NAME_BYTES) -> str:
    """Why it cannot be a name; empty if it can."""
    if not name or len(name) > max_bytes:
        return f"a name has 1 to {max_bytes} bytes"
    if not name.isprintable():  # control characters, marks of direction, halves of pairs, blanks of other widths
        return "it has characters that cannot be seen"
    if len(name.encode()) > max_bytes:
        return f"a name has 1 to {max_bytes} bytes"
    if name != name.strip():
        return "it begins or ends with a blank"
    if not unicodedata.is_normalized("NFC", name):
        return "it is not in Unicode's normal form C, so another name could look the same"
    return ""


def _refused(what: str, name: str, why: str) -> PenstockError:
    return PenstockError(Code.INVALID_REQUEST, f"{what} name {name[:MAX_NAME_BYTES]!r}: {why}")
