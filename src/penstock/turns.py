"""Turns on the event loop for work that comes in steps and is in no hurry: one step of all of it in each turn of the
loop, first come, first served. So however many ask for long lists at the same time, whoever wants something short waits
for one step at most.
"""

import asyncio
from collections import deque


class Turns:
    """The slow work of one broker. Whoever does it keeps its steps to a few milliseconds."""

    def __init__(self) -> None:
        self._used = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Whether a step may be taken at once."""
        if self._used or self._waiting:
            return False
        self._used = True
        asyncio.get_running_loop().call_soon(self._over)
        return True

    async def next(self) -> None:
        """Return when it is one's turn for a step."""
        if self.take():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _over(self) -> None:
        """The loop has come round: one more step."""
        self._used = False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # who waited may have been cancelled
                self._used = True
                asyncio.get_running_loop().call_soon(self._over)
                turn.set_result(None)
                return
