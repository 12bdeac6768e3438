"""What every client writes with every codec, every client reads back unchanged."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from .clients import CLIENTS
from .conftest import Judges
from .records import CODECS, Record, matches, sample

WRITTEN = [(writer, codec) for writer in CLIENTS for codec in CLIENTS[writer].codecs]
READ = [(writer, codec, reader) for writer, codec in WRITTEN for reader in CLIENTS if codec in CLIENTS[reader].codecs]


@dataclass(frozen=True, slots=True)
class Written:
    topic: str
    records: list[Record]


@pytest.fixture(scope="session")
def written(judges: Judges, new_topic: Callable[..., str], yesterday_ms: int) -> Callable[[str, str], Written]:
    """Each writer and codec writes its topic once, whichever reader comes first."""
    done: dict[tuple[str, str], Written] = {}

    def write(writer: str, codec: str) -> Written:
        if (writer, codec) not in done:
            client = judges[writer]
            records = sample(
                CODECS.index(codec),
                start_ms=yesterday_ms,
                plain=not client.whole_records,
                null_headers=client.null_headers,
            )
            topic = new_topic(f"matrix-{writer}-{codec}", partitions=2)
            offsets = client.produce(topic, 1, records, codec=codec)
            assert offsets == list(range(len(records)))
            done[writer, codec] = Written(topic, records)
        return done[writer, codec]

    return write


@pytest.mark.parametrize(("writer", "codec", "reader"), READ)
def test_reader_gets_what_writer_wrote(
    written: Callable[[str, str], Written], judges: Judges, writer: str, codec: str, reader: str
) -> None:
    done = written(writer, codec)
    received = judges[reader].read(done.topic, 1, 0, len(done.records))
    matches(done.records, received)
    assert judges[reader].latest(done.topic, 1) == len(done.records)
    assert judges[reader].latest(done.topic, 0) == 0, "the other partition stays empty"
