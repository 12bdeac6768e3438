"""Whom a client's certificate names, at doors whose listeners take certificates for a login (`auth: certificate`)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.engine.access import Subject
from penstock.server.config import Listener

if TYPE_CHECKING:
    from penstock.security.guard import Guard


class Recogniser:
    """
    Args:
        guard: users and rules, as soon as they are there.
    """

    def __init__(self, listener: Listener, guard: "Callable[[], Guard | None]") -> None:
        """Raises `WrongSettings` for rules of names that cannot be read."""
        self._door = listener.name
        self._guard = guard
        self._rules = None
        if listener.tls is not None and "certificate" in listener.auth:
            from penstock.security.certificate_rules import CertificateRules

            self._rules = CertificateRules(listener.tls.names)

    def recognise(self, certificate: bytes | None, host: str) -> Subject | None:
        """Who shows this certificate (DER), which TLS has checked; None where that is nobody, or does not count."""
        guard = self._guard()
        if certificate is None or self._rules is None or guard is None:
            return None
        from penstock.security.authentication import Certificate, Peer
        from penstock.security.certificate_names import java_name, subject_of
        from penstock.security.refusal import NotAuthenticated

        try:
            name = self._rules.user_of(java_name(subject_of(certificate)))
            if name is None:
                return None
            return guard.authenticator.recognise(Certificate(name), Peer(host, self._door))
        except (NotAuthenticated, ValueError):
            return None  # it may still prove that it is somebody else
