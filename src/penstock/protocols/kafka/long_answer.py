"""Answers with thousands of rows: each is made and encoded by itself, and others have their turn after so many."""

from penstock.protocols.kafka.handlers import Context, Fields
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import element_of, encode, schema_of

ROWS_AT_ONCE = 100  # a millisecond or two
READ_AT_ONCE = 1000  # the same; more than there are in a request that is decoded at once, see `Api.parks`


class LongAnswer:
    """Args:
    arrays: the way to the rows, from the outermost array to theirs.
    """

    __slots__ = ("_around", "_left", "_schema", "_turns", "_unread_left")

    def __init__(self, context: Context, api: Api, version: int, *arrays: str) -> None:
        self._turns = context.turns
        self._left = ROWS_AT_ONCE
        self._unread_left = READ_AT_ONCE
        self._schema = self._around = schema_of(api.name, version, "response")
        for array in arrays:
            self._around = self._schema
            self._schema = element_of(self._schema, array)

    async def count_row(self) -> None:
        """Note one more row of the request that was read; returns when one may go on."""
        self._unread_left -= 1
        if self._unread_left == 0:
            self._unread_left = READ_AT_ONCE
            await self._turns.next()

    async def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._left = ROWS_AT_ONCE
            await self._turns.next()

    async def row(self, fields: Fields) -> bytes:
        """A row as it goes out; `encode` takes it as it is."""
        await self._count()
        return encode(self._schema, fields)

    async def around(self, fields: Fields) -> bytes:
        """The same of what rows are in, of which there may be thousands, too."""
        await self._count()
        return encode(self._around, fields)
