"""The clients of `tests.chaos.transactional_load`, with a new producer after each transaction that had to be aborted.

When a transaction fails, librdkafka (2.16) throws away what is queued, and gives the sequence numbers of it to what
comes next, in the same epoch. Queued is also what was sent and has to be sent again, because its leader died before it
answered; that may be in the log. The next batch is then refused for good, as out of order; or, if it has as many
records, taken for the one in the log: acknowledged, and lost. A new producer of the same transactional id has another
epoch, in which numbers begin anew.
"""

import sys

from tests.chaos import transactional_load
from tests.chaos.transactional_load import Client, Spec, Transactional


class RenewingSpec(Spec):
    """Says the same, and is run by this module."""

    __slots__ = ()

    def command(self) -> list[str]:
        interpreter, _, _, spec = super().command()
        return [interpreter, "-m", "tests.cluster.renewing_load", spec]


class Renewing(Transactional):
    def _abort(self) -> None:
        super()._abort()
        self.producer = Transactional(self._spec, self._recorder, self._coin).producer


if __name__ == "__main__":
    transactional_load.Transactional = Renewing  # type: ignore[misc]
    Client(Spec.parse(sys.argv[1])).run()
