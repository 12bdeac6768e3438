"""What clients do to the simulated cluster while it is broken, and what must be true of it in the end."""

from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tests.simulation.world import World


class Workload(Protocol):
    """One kind of work. Made for one run, by a `WorkloadFactory`; everything random comes from its `Random`.

    In this order: `set_up` on a healthy cluster; `clients` run while the nemesis is at work and until shortly after;
    `finish` on the healed cluster, when every client has come to its end; then `check`.
    """

    async def set_up(self) -> None:
        """Make topics and whatever else has to be there before anything breaks."""

    def clients(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What runs during the faults.

        Each begins nothing new once `world.is_over`, ends what it has begun, and returns. One that has not returned
        when the cluster has had its time to recover is a violation, and so is whatever one raises.
        """

    async def finish(self) -> None:
        """Read everything for the last time."""

    def check(self) -> list[str]:
        """Every promise that was broken, one line each."""

    def counters(self) -> dict[str, int]:
        """What was done, so that a run that did nothing is noticed; added up over all workloads."""


WorkloadFactory = Callable[["World", Random], Workload]
