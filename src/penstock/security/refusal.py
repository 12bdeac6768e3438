"""The one error of everything that comes before somebody is known, and the one text of it."""

from penstock.errors import Code, PenstockError

TEXT = "authentication failed"


class NotAuthenticated(PenstockError):
    """Who the peer says it is could not be proved.

    Attributes:
        reason: for our logs alone: told to a peer, it would say whether a user is there.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(Code.NOT_AUTHENTICATED, TEXT, help="check user, password or key, and ask who runs the cluster")
        self.reason = reason
