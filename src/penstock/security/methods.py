"""By what somebody has proved who they are, and who may do everything if they have proved it so.

A name alone makes nobody a super user: the name of a certificate may be that of a user by chance, or on purpose.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from penstock.engine.access import Subject
from penstock.errors import WrongSettings


class Method(StrEnum):
    PASSWORD = "password"  # noqa: S105 - a way to log in
    SCRAM = "scram"
    API_KEY = "api key"
    CERTIFICATE = "certificate"


OF_USERS: Final = frozenset({Method.PASSWORD, Method.SCRAM, Method.API_KEY})
"""What only users that are kept here can prove themselves by."""
_CERTIFICATE: Final = "certificate "


class SuperUsers:
    """Those who may do everything, whatever the rules say; a key of theirs may still narrow it.

    Args:
        names: `User:admin` for a user that is kept here, `certificate User:CN=admin` for whoever comes with such a
            certificate.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Raises `WrongSettings`."""
        self._proved: set[tuple[str, str]] = set()
        for name in names:
            is_certificate = name.startswith(_CERTIFICATE)
            principal = name.removeprefix(_CERTIFICATE)
            kind, _, text = principal.partition(":")
            if kind != "User" or text in ("", "*", "ANONYMOUS"):
                raise WrongSettings(
                    f"super user {name!r} is not of the form User:name or 'certificate User:CN=name'; nobody is "
                    "one by '*' or ANONYMOUS"
                )
            methods = (Method.CERTIFICATE,) if is_certificate else OF_USERS
            self._proved |= {(principal, method) for method in methods}

    def has(self, subject: Subject) -> bool:
        return (subject.principal, subject.method) in self._proved
