"""Whether a password is a user's, checked against the keys of SCRAM: in threads, and once per while.

To salt a password takes a millisecond or more, on purpose. So only few are salted at a time, only so many wait, and
what was right is remembered as an HMAC by a key of this run. A user that is not there costs the same.
"""

import asyncio
import hmac
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.hosts import network_of
from penstock.ports.clock import Clock
from penstock.ports.randomness import Randomness
from penstock.security.refusal import NotAuthenticated
from penstock.security.scram import Mechanism, ScramKeys, derive
from penstock.security.secret import Secret

MAX_AT_ONCE: Final = 4
MAX_WAITING: Final = 256
MAX_WAITING_OF_ONE: Final = MAX_WAITING // 2
"""From one address, so that there is room for others."""
REMEMBERED_S: Final = 300.0
MAX_REMEMBERED: Final = 10_000
MAX_PASSWORD_BYTES: Final = 1024

Derive = Callable[[Mechanism, bytes, bytes, int], ScramKeys]
InThread = Callable[[Derive, Mechanism, bytes, bytes, int], Awaitable[ScramKeys]]


class Passwords:
    """Args:
    in_thread: runs a function off the loop; None: in a thread of asyncio's own pool.
    """

    def __init__(self, clock: Clock, randomness: Randomness, in_thread: InThread | None = None) -> None:
        self._clock = clock
        self._in_thread = in_thread or asyncio.to_thread
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._waiting: Counter[str] = Counter()
        """By the address they come from; those that nobody waits from any more are not kept."""
        self._boot_key = randomness.getrandbits(256).to_bytes(32, "big")
        self._remembered: dict[bytes, tuple[int, float]] = {}

    async def check(
        self,
        user: str,
        password: Secret,
        mechanism: Mechanism,
        keys: ScramKeys,
        credential_revision: int,
        host: str = "",
    ) -> bool:
        """Whether it is the password that the keys were made of. Raises `NotAuthenticated` if too many wait.

        Args:
            credential_revision: of the keys; what is remembered holds for that alone.
            host: where it comes from.
        """
        said = password.reveal()
        if len(said) > MAX_PASSWORD_BYTES:
            return False
        mark = hmac.digest(self._boot_key, len(user).to_bytes(4, "big") + user.encode() + said, "sha256")
        revision, until_s = self._remembered.get(mark, (-1, 0.0))
        if revision == credential_revision and self._clock.monotonic() < until_s:
            return True
        place = network_of(host)
        if self._waiting.total() >= MAX_WAITING or self._waiting[place] >= MAX_WAITING_OF_ONE:
            raise NotAuthenticated("too many passwords wait to be checked")
        self._waiting[place] += 1
        try:
            async with self._slots:
                made = await self._in_thread(derive, mechanism, said, keys.salt, keys.iterations)
        finally:
            self._waiting[place] -= 1
            if not self._waiting[place]:
                del self._waiting[place]
        if not hmac.compare_digest(made.stored_key, keys.stored_key):
            return False
        self._remember(mark, credential_revision)
        return True

    def _remember(self, mark: bytes, revision: int) -> None:
        self._remembered.pop(mark, None)
        if len(self._remembered) >= MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[mark] = (revision, self._clock.monotonic() + REMEMBERED_S)
