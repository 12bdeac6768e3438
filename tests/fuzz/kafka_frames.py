"""Coverage-guided noise for the Kafka door: `python -m tests.fuzz.kafka_frames -max_total_time=600 [corpus]`.

Each input is one connection's bytes. Anything but answers or a closed connection is a crash.
"""

import asyncio
import struct
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["penstock"]):
    from penstock.net import connection as connection_module
    from penstock.protocols.kafka import session as session_module

from tests.doors.bad_frames import good_requests
from tests.doors.kafka import Door, open_door
from tests.doors.transport import RecordingLog, RecordingTransport

from penstock.testing.virtual_clock import VirtualLoop


def main() -> None:
    import random

    loop = VirtualLoop(0)
    asyncio.set_event_loop(loop)
    log = RecordingLog()
    connection_module.log_ = log  # type: ignore[assignment]
    session_module.log_ = log  # type: ignore[assignment]

    async def start() -> Door:
        door = await open_door(auto_create=False)
        await door.topic(partitions=2)
        return door

    door = loop.run_until_complete(start())

    async def one(data: bytes) -> None:
        connection, transport = door.connection(), RecordingTransport()
        connection.connected(transport)  # type: ignore[arg-type]
        position = 0
        while position < len(data) and transport.reading and not transport.aborted:
            room = connection.get_buffer()
            size = min(len(room), len(data) - position)
            room[:size] = data[position : position + size]
            connection.received(size)
            position += size
        await asyncio.sleep(0.01)
        connection.disconnected()
        if log.bugs:
            raise AssertionError(log.bugs[0])

    arguments = sys.argv
    if not [each for each in arguments[1:] if not each.startswith("-")]:
        corpus = Path(tempfile.mkdtemp(prefix="kafka-frames-"))
        for number, frame in enumerate(good_requests(random.Random(0), 1)):
            (corpus / str(number)).write_bytes(struct.pack(">i", len(frame)) + frame)
        arguments = [*arguments, str(corpus)]
    atheris.Setup(arguments, lambda data: loop.run_until_complete(one(data)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
