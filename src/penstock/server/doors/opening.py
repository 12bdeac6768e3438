"""All doors of a broker: opened stage by stage, swept while they are open, closed in reverse."""

import errno
from collections.abc import Sequence

from penstock import obstacles
from penstock.errors import StartupError
from penstock.observe.logs import Logger, get_logger
from penstock.server.config import Address, Listener
from penstock.server.doors.door import Entrance, House
from penstock.server.doors.table import KINDS, Stage

_GOODBYE_S = 5.0


class Doors:
    """Args:
    listeners: what is to be opened, in the order in which it is told of.
    may_lack: whether one that a broker can do without is left out when another process has its port.
    """

    def __init__(
        self, house: House, listeners: Sequence[Listener], *, may_lack: bool = False, log: Logger | None = None
    ) -> None:
        self._house = house
        self._listeners = listeners
        self._may_lack = may_lack
        self._log = log or get_logger("doors")
        self._entrances: dict[str, Entrance] = {}
        self._accepting: list[tuple[Stage, Entrance]] = []
        self._left_out: set[str] = set()

    async def open(self, stage: Stage) -> None:
        """Open all doors of a stage. Raises `StartupError`; those that are open by then wait for `end`."""
        for listener in self._listeners:
            if KINDS[listener.protocol].stage is stage:
                await self._open(listener)

    async def _open(self, listener: Listener) -> None:
        kind = KINDS[listener.protocol]
        entrance = kind.make(self._house, listener)
        try:
            await entrance.open()
        except StartupError as error:
            cause = error.__cause__
            if kind.is_needed or not self._may_lack:
                raise
            if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
                raise
            self._left_out.add(listener.name)
            self._log.warning(
                f"the {kind.title} port is taken, and the broker starts without it; --{kind.name} names another",
                address=listener.address,
                why=obstacles.tell_address(cause),
            )
            return
        self._entrances[listener.name] = entrance
        self._accepting.append((kind.stage, entrance))

    async def close(self, stage: Stage) -> None:
        """Accept no more at the doors of a stage; who is connected stays."""
        for at in reversed(self._accepting):
            if at[0] is stage:
                await at[1].close()
        self._accepting = [at for at in self._accepting if at[0] is not stage]

    async def end(self) -> None:
        """Close what is open, let whoever is connected say goodbye, and part with them, the last stage first."""
        for stage in reversed(Stage):
            await self.close(stage)
            if stage in self._house.crowds:
                await self._house.crowds[stage].drain(_GOODBYE_S)

    def sweep(self) -> None:
        """Part with peers that are too slow."""
        for crowd in self._house.crowds.values():
            crowd.sweep()

    # --- being asked

    def bound(self) -> dict[str, Address]:
        """What each listener that was opened is bound to."""
        return {
            listener.name: Address(*self._entrances[listener.name].address)
            for listener in self._listeners
            if listener.name in self._entrances
        }

    def advertised(self) -> dict[str, Address]:
        """Where the peers of each of them are told to connect."""
        advertised = {listener.name: listener.advertised for listener in self._listeners}
        return {name: advertised[name] or address for name, address in self.bound().items()}

    def of(self, protocol: str) -> list[str]:
        """The names of a protocol's listeners that were opened."""
        return [each.name for each in self._listeners if each.protocol == protocol and each.name in self._entrances]

    def not_open(self) -> list[str]:
        """A line for each door that is still to be opened."""
        reasons = []
        for listener in self._listeners:
            if listener.name not in self._entrances and listener.name not in self._left_out:
                name = "" if listener.name == listener.protocol else f" {listener.name}"
                reasons.append(f"the {KINDS[listener.protocol].title} listener{name} is not open yet")
        return reasons
