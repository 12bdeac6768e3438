"""Answers with thousands of rows: each is made and encoded by itself, and others have their turn after so many."""

import asyncio

from penstock.protocols.kafka.handlers import Api, Fields
from penstock.protocols.kafka.messages import element_of, encode, schema_of

ROWS_AT_ONCE = 500  # some 3 ms


class Turns:
    """Counts what a handler does, and lets others have the loop now and then."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = ROWS_AT_ONCE

    async def count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._left = ROWS_AT_ONCE
            await asyncio.sleep(0)


class LongAnswer(Turns):
    """Args:
    arrays: the way to the rows, from the outermost array to theirs.
    """

    __slots__ = ("_schema",)

    def __init__(self, api: Api, version: int, *arrays: str) -> None:
        super().__init__()
        self._schema = schema_of(api.name, version, "response")
        for array in arrays:
            self._schema = element_of(self._schema, array)

    async def row(self, fields: Fields) -> bytes:
        """A row as it goes out; `encode` takes it as it is."""
        await self.count()
        return encode(self._schema, fields)
