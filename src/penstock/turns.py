"""Turns on the event loop for work that comes in steps and is in no hurry: one step of all of it, then a few turns of
the loop without any, first come, first served. So however many ask for long lists at the same time, whoever wants
something short waits for a step or two.
"""

import asyncio
from collections import deque
from typing import Final

FREE_TURNS: Final = 3
"""Turns of the loop without a step, after each. A record takes four turns to be safe: read, have the sync begun, hear
of its end, answer. It would wait for a step in each of them; where nobody is served, a free turn costs microseconds.
"""
BUSY_S: Final = 0.003
REST_S: Final = 0.001
"""After so long the loop rests for so long, if steps are still waited for. A thread that has done its work, such as
syncing a record, has to get the interpreter's lock to say so, and a loop that is never idle may take it back each time
before the thread has woken up. Without the rest a record waits for two to three times as many steps.
"""


class Turns:
    """The slow work of one broker. Whoever does it keeps its steps to a few milliseconds."""

    def __init__(self) -> None:
        self._used = False
        self._free_turns = 0
        self._rested_s = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Whether a step may be taken at once."""
        if self._used or self._waiting:
            return False
        self._begin()
        return True

    async def next(self) -> None:
        """Return when it is one's turn for a step."""
        if self.take():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _begin(self) -> None:
        self._used = True
        self._free_turns = FREE_TURNS
        asyncio.get_running_loop().call_soon(self._come_round)

    def _come_round(self) -> None:
        """The loop has come round: one more step, when others have had enough turns, and threads time."""
        loop = asyncio.get_running_loop()
        if self._free_turns:
            self._free_turns -= 1
            loop.call_soon(self._come_round)
            return
        if not self._waiting:
            self._rested_s = loop.time()
        elif loop.time() - self._rested_s >= BUSY_S:
            self._rested_s = loop.time() + REST_S
            loop.call_later(REST_S, self._come_round)
            return
        self._used = False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # who waited may have been cancelled
                self._begin()
                turn.set_result(None)
                return
