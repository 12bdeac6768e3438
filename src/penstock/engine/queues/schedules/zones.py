"""Time zones by their IANA names: of the system, or of the tzdata package where the system has none.

They are files, so they are read in a thread, each once; what is asked for on the loop has been read before.
"""

import re
from collections.abc import Iterable
from datetime import UTC, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.engine.queues.schedules.cron import Cron
from penstock.errors import Code, PenstockError
from penstock.ports.disk import Disk

DEFAULT: Final = "UTC"
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,30}(/[A-Za-z0-9_+-]{1,30}){0,2}")
_SHOWN: Final = 60
_MOST: Final = 2000
"""There are some 600; files with such names that are no zones are not kept."""


class Zones:
    """Those that a broker has read."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._known: dict[str, tzinfo] = {DEFAULT: UTC}

    async def load(self, names: Iterable[str]) -> None:
        """Read those that are not known yet; what is no zone stays unknown."""
        new = sorted({name for name in names if name not in self._known and _NAME.fullmatch(name)})
        if not new:
            return
        for name, zone in (await self._disk.run(_read_all, new)).items():
            if len(self._known) < _MOST:
                self._known[name] = zone

    async def check(self, name: str) -> None:
        """Raises PenstockError INVALID_SCHEDULE for what is no zone."""
        await self.load([name])
        if name not in self._known:
            raise PenstockError(
                Code.INVALID_SCHEDULE,
                f"time zone {name[:_SHOWN]!r} is unknown",
                help="name it as the IANA does, such as Europe/Berlin, America/New_York or UTC",
            )

    def cron(self, expression: str, zone: str) -> Cron | None:
        """None if the zone is not known. Raises PenstockError INVALID_SCHEDULE."""
        known = self._known.get(zone)
        return None if known is None else Cron(expression, known)


def _read_all(names: Iterable[str]) -> dict[str, tzinfo]:
    """Blocking."""
    found: dict[str, tzinfo] = {}
    for name in names:
        try:
            found[name] = ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            continue
    return found
