"""How what security keeps is changed: one transaction that raises `sec/rev`, which expects it as it was seen."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import Code, PenstockError
from penstock.ports.metadata import MetadataConflict, MetadataUnavailable
from penstock.security import paths
from penstock.security.directory import Directory, Unreadable, encode_revision
from penstock.security.loader import Loader

MAX_KEYS: Final = 98
"""In one change, beside `sec/rev`; a transaction of the store may have a hundred."""
_TRIES: Final = 50


@dataclass(slots=True)
class Change:
    put: dict[str, bytes] = field(default_factory=dict)
    delete: list[str] = field(default_factory=list)


Plan = Callable[[Directory], Change]


class Changes:
    """Makes changes: each is decided on the rules in force here, and refused by the store if it has newer ones.

    Then it is decided again. So of two that are made at the same time, here or elsewhere, one has seen the other.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._changing = asyncio.Lock()

    async def make(self, plan: Plan) -> None:
        """Return when a change is made, and in force here if the store answers.

        Args:
            plan: decides; may be called several times. What it raises is raised.

        Raises:
            PenstockError: NOT_AVAILABLE: it may have been made or not.
        """
        async with self._changing:
            for _ in range(_TRIES):
                if await self._try(plan):
                    return
        raise PenstockError(Code.NOT_AVAILABLE, "others keep changing users and rules", help="Try again.")

    async def make_all(self, plans: Iterable[Plan]) -> None:
        """Make changes one after the other, for what is too much for one."""
        for plan in plans:
            await self.make(plan)

    async def _try(self, plan: Plan) -> bool:
        directory = self._loader.directory
        if directory is None:
            raise PenstockError(Code.NOT_AVAILABLE, "users and rules are not loaded yet", help="Try again.")
        change = plan(directory)
        if not change.put and not change.delete:
            return True
        assert len(change.put) + len(change.delete) <= MAX_KEYS
        revision = encode_revision(directory.revision + 1)
        try:
            await self._loader.store.transact(
                expect={paths.REVISION: directory.seen},
                put={**change.put, paths.REVISION: revision},
                delete=change.delete,
            )
        except MetadataConflict:
            await self._look()
            return False
        except MetadataUnavailable as error:
            raise _unavailable("the change may or may not have been made", error) from error
        with suppress(PenstockError):  # it is made; the loader will hear of it
            await self._look()
        return True

    async def _look(self) -> None:
        try:
            await self._loader.refresh()
        except (MetadataUnavailable, Unreadable) as error:
            raise _unavailable(
                "users and rules are not known to be the newest, so nothing was changed", error
            ) from error


def _unavailable(what: str, error: Exception) -> PenstockError:
    return PenstockError(Code.NOT_AVAILABLE, f"{what}: {error}", help="Look what is there, then try again.")
