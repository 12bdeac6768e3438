"""One command's records on their way: the pace they go at, what stopped them, and what is said of them in the end."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.cli.connection import Server
from penstock.cli.delivery import Account, Sender, Written
from penstock.cli.failure import CANCELLED, FAILED, UNREACHABLE, USAGE, CommandError
from penstock.cli.output import note, progress, show
from penstock.cli.record_input import Chunk, Record

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

_DELIVERY_TIMEOUT_S: Final = 60.0  # a broker that restarts is back by then; --timeout may say more
_LIST_AT_MOST: Final = 12


class Patience:
    """Says once that the server went away and is waited for."""

    def __init__(self, server: Server, *, quiet: bool) -> None:
        self._server = server
        self._told = quiet

    def hear(self, error: "KafkaError") -> None:
        if error.name() == "_ALL_BROKERS_DOWN" and not self._told:
            self._told = True
            note(f"no server at {self._server.address} any more; waiting for it")


class End(NamedTuple):
    """How it ended.

    Attributes:
        error: what stopped it, if anything did.
    """

    account: Account
    error: Exception | None = None
    interrupted: bool = False

    @property
    def is_well(self) -> bool:
        return self.error is None and self.account.failure is None

    def tell(self, output: str, *, quiet: bool, thing: str = "record") -> int:
        """Say what was delivered; returns the exit code. Raises `CommandError` if something was not."""
        if not quiet or output != "table":
            show(_summarize(self.account), output, lambda: note(_format_summary(self.account, thing)))
        if not self.is_well:
            raise _trouble(self.account, self.error, thing)
        return CANCELLED if self.interrupted else 0


def delivery_timeout_ms(server: Server) -> int:
    """How long a record may be on its way."""
    return round(max(server.timeout_s, _DELIVERY_TIMEOUT_S) * 1000)


def ask_topic(server: Server, producer: "Producer", topic: str) -> "KafkaError | None":
    """What is the matter with a topic, if anything. Raises `CommandError` for a server that does not answer.

    Asked before any input is read.
    """

    def ask() -> "KafkaError | None":
        producer.list_topics(topic, timeout=server.timeout_s)
        # The second question goes through the connection the records will take. Up by then, it also gets the producer
        # its id; librdkafka would look for one again only after half a second.
        error: KafkaError | None = producer.list_topics(topic, timeout=server.timeout_s).topics[topic].error
        return error

    error = server.run(ask)
    is_new = error is not None and error.name() == "LEADER_NOT_AVAILABLE"  # just made: librdkafka waits for it
    return None if is_new else error


def limit(chunks: Iterator[Chunk], count: int | None) -> Iterator[Chunk]:
    if count is None:
        yield from chunks
        return
    while count > 0 and (chunk := next(chunks, None)) is not None:
        yield Chunk(chunk.records[:count], chunk.size)
        count -= len(chunk.records)


def send(sender: Sender, chunks: Iterator[Chunk], total: int | None, rate: float | None, thing: str = "record") -> End:
    """Send everything.

    Args:
        total: bytes of the input, where they are known.
        rate: records a second, at most.
    """
    pace = None if rate is None else _Pace(sender, rate)
    try:
        with progress("sending", total, unit=f"{thing}s" if total is None else "bytes") as bar:
            for chunk in chunks:
                for records in [chunk.records] if pace is None else pace.admit(chunk.records):
                    sender.send(records)
                bar.advance(len(chunk.records) if total is None else chunk.size)
            sender.flush()
    except KeyboardInterrupt:
        sender.flush()
        return End(sender.account, interrupted=True)
    except (CommandError, OSError) as error:
        sender.flush()
        return End(sender.account, error)
    return End(sender.account)


class _Pace:
    """Lets records through at a steady rate, a few at a time."""

    def __init__(self, sender: Sender, rate: float) -> None:
        self._sender = sender
        self._rate = rate
        self._step = max(1, int(rate / 20))
        self._admitted = 0
        self._started = time.monotonic()

    def admit(self, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        for at in range(0, len(records), self._step):
            due = self._started + self._admitted / self._rate
            while (wait_s := due - time.monotonic()) > 0:
                self._sender.poll(min(wait_s, 0.1))
            part = records[at : at + self._step]
            self._admitted += len(part)
            yield part


def show_records(chunks: Iterator[Chunk], topic: str, *, quiet: bool, thing: str = "record") -> int:
    """What would be sent, in the form --json reads."""
    import orjson

    from penstock.cli.record_text import describe_content, escape_json

    terminal, count = sys.stdout.isatty(), 0
    for chunk in chunks:
        for record in chunk.records:
            described = {
                "topic": record.topic or topic,
                "partition": record.partition if record.partition >= 0 else None,
                "timestamp": record.timestamp_ms or None,
                **describe_content(record.key, record.value, record.headers),
            }
            line = orjson.dumps(described, option=orjson.OPT_APPEND_NEWLINE)
            sys.stdout.buffer.write(escape_json(line) if terminal else line)
        count += len(chunk.records)
    sys.stdout.buffer.flush()
    if not quiet:
        note(f"{_format_count(count, thing)} would be sent")
    return 0


def _trouble(account: Account, error: Exception | None, thing: str) -> CommandError:
    """What went wrong, as one error with what went well."""
    from penstock.obstacles import is_lasting

    # A failed delivery that stopped the reading is the account's failure already.
    texts = [account.failure] if account.failure else []
    if error is not None and str(error) != account.failure:
        strerror = getattr(error, "strerror", None)
        texts.append(f"{getattr(error, 'filename', '')}: {strerror}" if strerror else str(error))
    lost = f", {account.failed:,} not" if account.failed else ""
    texts.append(f"{_format_count(account.delivered, thing)} delivered{lost}")
    code = UNREACHABLE if account.unreachable else FAILED
    if isinstance(error, OSError) and is_lasting(error) and not account.delivered and not account.failed:
        code = USAGE
    return CommandError("; ".join(texts), code=code)


def _summarize(account: Account) -> Mapping[str, Any]:
    return {
        "records": account.delivered,
        "bytes": account.size,
        "failed": account.failed,
        "partitions": [
            {
                "topic": topic,
                "partition": partition,
                "records": written.records,
                "first_offset": written.first_offset,
                "last_offset": written.last_offset,
            }
            for (topic, partition), written in sorted(account.partitions.items())
        ],
    }


def _format_summary(account: Account, thing: str) -> str:
    text = f"{_format_count(account.delivered, thing)}, {account.size:,} byte{'' if account.size == 1 else 's'}"
    places = sorted(account.partitions.items())
    shown = [f"{topic}/{partition}{_format_offsets(written)}" for (topic, partition), written in places[:_LIST_AT_MOST]]
    if len(places) > _LIST_AT_MOST:
        shown.append(f"and {len(places) - _LIST_AT_MOST} more")
    return f"{text}, to partition{'s' if len(places) > 1 else ''} {', '.join(shown)}" if shown else text


def _format_count(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _format_offsets(written: Written) -> str:
    if written.first_offset is None:
        return ""
    if written.first_offset == written.last_offset:
        return f" (offset {written.first_offset})"
    return f" (offsets {written.first_offset} to {written.last_offset})"
