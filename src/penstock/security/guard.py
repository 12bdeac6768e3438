"""All of one broker's security in one place: who is let in, what they may do, and who has to go when that changes.

rules change ──► the policy is another one (`loader`) ──► whoever is not valid any more is sent away
"""

import asyncio
import hmac
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.engine.access import THE_CLUSTER, Access, Operation, Resource, Subject
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.ports.clock import Clock
from penstock.ports.metadata import MetadataConflict, MetadataStore, MetadataUnavailable
from penstock.ports.randomness import Randomness
from penstock.security import paths
from penstock.security.authentication import Authenticator
from penstock.security.changes import Changes
from penstock.security.decoys import make_secret
from penstock.security.directory import encode_decoy
from penstock.security.key_changes import KeyChanges, UsedKeys
from penstock.security.loader import InThread, Loader
from penstock.security.methods import Method, SuperUsers
from penstock.security.modes import Mode, may_change_rules
from penstock.security.passwords import Passwords
from penstock.security.rule_changes import RuleChanges
from penstock.security.scram import Mechanism, derive
from penstock.security.sealing import SealingKeys
from penstock.security.secret import Secret
from penstock.security.user_changes import UserChanges, draw_password, may_change
from penstock.tasks import Tasks

log_ = get_logger("security")
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
        users, rules, keys: how each of them is changed. Who asks is not asked there: `check_change` does.
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
        self.authenticator = Authenticator(self.loader, clock, randomness, passwords, self._used)
        self._store = store
        self._randomness = randomness
        self._in_thread = in_thread
        self._inside: dict[object, _Inside] = {}
        self._tasks = Tasks(fail)
        self.loader.listeners.append(lambda _: self._look_round())

    async def start(self) -> None:
        """Return when the rules are in force. Raises `StartupError` if they cannot be read."""
        await self.loader.start(self._keep_decoy)
        self._tasks.spawn(self.loader.run(), "follow users and rules")
        self._tasks.spawn(self._go_round(), "send away those whose time is up")

    async def _keep_decoy(self) -> None:
        if await self._store.get(paths.DECOY) is None:
            with suppress(MetadataConflict):  # another broker was quicker
                made = encode_decoy(make_secret(self._randomness))
                await self._store.transact(expect={paths.DECOY: 0}, put={paths.DECOY: made})

    @property
    def has_users(self) -> bool:
        """Whether anybody is there who might log in, as far as is known here."""
        directory = self.loader.directory
        return directory is not None and bool(directory.users or directory.credentials)

    async def make_first_admin(self, password: Secret | None) -> Secret | None:
        """Who may do everything, if nobody is there yet; the password, if it was made here.

        Waits for the store. Raises PenstockError UNACCEPTABLE_CREDENTIAL.
        """
        if self.has_users:
            return None
        chosen = password or draw_password(self._randomness)
        while not self.has_users:
            try:
                await self.users.bootstrap(FIRST_ADMIN, chosen)
            except PenstockError as error:
                if error.code is Code.NOT_ALLOWED:  # there is somebody: made by another broker, or here
                    break
                if error.code is not Code.NOT_AVAILABLE:
                    raise
                log_.limited("first admin").warning("the first user cannot be made yet", error=str(error))
                await asyncio.sleep(_ROUND_S)
        return chosen if password is None and await self._is_first_admins(chosen) else None

    async def _is_first_admins(self, password: Secret) -> bool:
        """Whether it was we who made it: a change that the store did not answer for may have been made."""
        directory = self.loader.directory
        kept = directory.credentials.get(FIRST_ADMIN) if directory is not None else None
        keys = kept.keys.get(Mechanism.SHA_256) if kept is not None else None
        if keys is None:
            return False
        made = await self._in_thread(derive, Mechanism.SHA_256, password.reveal(), keys.salt, keys.iterations)
        return hmac.compare_digest(made.stored_key, keys.stored_key)

    def check_change(
        self, subject: Subject, operation: Operation = Operation.ALTER, resource: Resource = THE_CLUSTER
    ) -> None:
        """Whether somebody may change users, roles, rules or keys: asked before each of it, by every door.

        Raises PenstockError: NOT_AUTHORISED, in any mode; NOT_ALLOWED for who has come by an API key.
        """
        if not may_change_rules(self.loader.mode, self.loader.rules, subject, operation, resource):
            raise self.loader.access.refuse(subject, operation, resource)
        if not may_change(subject):
            raise PenstockError(
                Code.NOT_ALLOWED, "an API key changes no users, rules or keys", help="log in by password or certificate"
            )

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
            await self._save_used()

    async def _save_used(self) -> None:
        try:
            await self._used.save()
        except (MetadataUnavailable, PenstockError):
            return  # the next round saves it
        except Exception:  # noqa: BLE001 - no note of this kind is worth a broker
            log_.limited("last use").exception("when API keys were last used cannot be saved")

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
