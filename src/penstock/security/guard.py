"""All of one broker's security in one place: who is let in, what they may do, and who has to go when that changes.

rules change ──► the policy is another one (`loader`) ──► whoever is not valid any more is sent away
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.engine.access import Access, Subject
from penstock.errors import PenstockError
from penstock.ports.clock import Clock
from penstock.ports.metadata import MetadataStore, MetadataUnavailable
from penstock.ports.randomness import Randomness
from penstock.security.authentication import Authenticator
from penstock.security.changes import Changes
from penstock.security.key_changes import KeyChanges, UsedKeys
from penstock.security.loader import InThread, Loader
from penstock.security.methods import Method, SuperUsers
from penstock.security.modes import Mode
from penstock.security.passwords import Passwords
from penstock.security.rule_changes import RuleChanges
from penstock.security.sealing import SealingKeys
from penstock.security.secret import Secret
from penstock.security.user_changes import UserChanges
from penstock.tasks import Tasks

FIRST_ADMIN: Final = "admin"
_ROUND_S: Final = 1.0


class _Inside(NamedTuple):
    subject: Subject
    proved_by: int
    """The revision of its password when it came."""
    send_away: Callable[[], None]


class Guard:
    """Args:
    access: whose policy it sets from now on.
    in_thread: runs a function off the event loop.
    fail: told of what nobody expected: the broker stops, rather than go by rules that nobody renews.

    Attributes:
        users, rules, keys: how each of them is changed. Who asks is not asked there.
        authenticator: who somebody is.
        loader: what is in force.
    """

    def __init__(
        self,
        store: MetadataStore,
        access: Access,
        clock: Clock,
        randomness: Randomness,
        in_thread: InThread,
        fail: Callable[[BaseException], None],
        *,
        mode: Mode,
        supers: Iterable[str],
        sealing: SealingKeys,
    ) -> None:
        self.loader = Loader(store, access, clock, mode, supers=SuperUsers(supers), in_thread=in_thread)
        changes = Changes(self.loader)
        self.users = UserChanges(changes, clock, randomness, in_thread)
        self.rules = RuleChanges(changes, self.loader)
        self.keys = KeyChanges(changes, self.loader, sealing, clock, randomness)
        passwords = Passwords(clock, randomness, in_thread)
        self._used = UsedKeys(store)
        self.authenticator = Authenticator(self.loader, clock, randomness, sealing.decoy, passwords, self._used)
        self._inside: dict[object, _Inside] = {}
        self._tasks = Tasks(fail)
        self.loader.listeners.append(lambda _: self._look_round())

    async def start(self) -> None:
        """Return when the rules are in force. Raises `StartupError` if they cannot be read."""
        await self.loader.start()
        self._tasks.spawn(self.loader.run(), "follow users and rules")
        self._tasks.spawn(self._go_round(), "send away those whose time is up")

    async def make_first_admin(self, password: Secret | None) -> Secret | None:
        """Who may do everything, if nobody is there yet; the password, if it was made here.

        Raises PenstockError.
        """
        directory = self.loader.directory
        if directory is None or directory.users or directory.credentials:
            return None
        return await self.users.bootstrap(FIRST_ADMIN, password)

    def admit(self, connection: object, subject: Subject, send_away: Callable[[], None]) -> None:
        """Somebody is inside, who is sent away when the user, the password or the key is gone."""
        self._inside[connection] = _Inside(subject, self._proved_by(subject), send_away)

    def dismiss(self, connection: object) -> None:
        """Somebody has left."""
        self._inside.pop(connection, None)

    async def _go_round(self) -> None:
        """A key may end without a change of anything."""
        while True:
            await asyncio.sleep(_ROUND_S)
            self._look_round()
            with suppress(MetadataUnavailable, PenstockError):  # the next round saves it
                await self._used.save()

    def _look_round(self) -> None:
        for subject, proved_by, send_away in list(self._inside.values()):
            if not self.authenticator.is_valid(subject) or self._proved_by(subject) != proved_by:
                send_away()

    def _proved_by(self, subject: Subject) -> int:
        """When the password that somebody has come by was changed last; 0: there is none, or it came by none."""
        directory = self.loader.directory
        if directory is None or subject.method not in (Method.PASSWORD, Method.SCRAM):
            return 0
        kept = directory.credentials.get(subject.principal.partition(":")[2])
        return 0 if kept is None else kept.revision

    async def stop(self) -> None:
        await self._tasks.cancel_all()
