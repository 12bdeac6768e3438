"""Answers of one connection that go out when they are there, not in the turn of their requests.

What one request waits for must not hold up the others: brokers have one connection to each other for all partitions.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from penstock.net.connection import Connection, Part
from penstock.observe.logs import get_logger
from penstock.protocols.kafka_wire.codec import encode_response_head

log_ = get_logger("kafka")
Body = tuple[Sequence[Part], int]
"""The parts behind the head of an answer, and how many bytes they are."""


class LateAnswers:
    """Args:
    api: the name of the request, for people.
    """

    def __init__(self, connection: Connection, api: str) -> None:
        self._connection = connection
        self._api = api
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.is_over = False

    def __len__(self) -> int:
        """Requests that are not answered yet."""
        return len(self._tasks)

    def begin(self, correlation_id: int, answer: Coroutine[Any, Any, Body]) -> Coroutine[Any, Any, list[Part]]:
        """Have a request answered when its answer is there; what is returned is all that it gets in its turn."""
        task = asyncio.get_running_loop().create_task(self._serve(correlation_id, answer))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return _nothing()

    def give_up_oldest(self) -> None:
        """Cancel what makes the oldest answer, which may still say why it is none."""
        next(iter(self._tasks)).cancel()

    def close(self) -> None:
        self.is_over = True
        for task in list(self._tasks):
            task.cancel()

    async def _serve(self, correlation_id: int, answer: Coroutine[Any, Any, Body]) -> None:
        try:
            parts, size = await answer
        except Exception:  # noqa: BLE001 - a bug of ours must cost this connection only
            log_.limited("bug").exception("request failed", api=self._api, peer=self._connection.peer)
            self._connection.abort()
        else:
            self._connection.send_late([encode_response_head(correlation_id, size, flexible=False), *parts])


async def _nothing() -> list[Part]:
    return []
