"""A task's rows in a pending stream of its own: nobody sees them until the driver commits.

Appends carry offsets and go out up to `at_once` ahead of their answers, which come in the order of the appends. When
one fails, the answers of those behind it are waited for, and all of them go out again from its offset: an append that
had arrived after all is known by its offset. The count at the end must be ours, or the stream is not committed.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks.bigquery.projection import Rows
from penstock.pipelines.sinks.bigquery.rows_json import for_letter
from penstock.pipelines.sinks.bigquery.trouble import Backoff, foreign_errors, is_passing, persist, told
from penstock.pipelines.sinks.contract import Rejected

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.pipelines.sinks.bigquery.access import Access

_ALREADY_EXISTS: Final = 6
_OUT_OF_RANGE: Final = 11
REQUEST_BYTES: Final = 9_900_000
"""What the rows of one append may take: the service's 10 MB, less what stands around the rows."""


@dataclass(slots=True)
class _Append:
    """Rows on their way."""

    rows: Rows
    offset: int = 0


class Stream:
    """A pending stream, from its creation to its end."""

    def __init__(
        self,
        client: Any,
        access: "Access",
        schema: "pa.Schema",
        backoff: Backoff,
        at_once: int,
        sleep: Callable[[float], None],
    ) -> None:
        self._client = client
        self._access = access
        self._schema = schema
        self._backoff = backoff
        self._at_once = at_once
        self._sleep = sleep
        self._doing = f"writing to table {access}"
        self.name = self._create()
        self._connection: _Connection | None = None
        self._under_way: deque[_Append] = deque()
        self._offset = 0
        self._retries = 0
        self.rejected: list[Rejected] = []

    def append(self, rows: Rows) -> None:
        """Send rows; waits only when `at_once` appends have no answer yet."""
        while len(self._under_way) >= self._at_once:
            self._settle_first()
        append = _Append(rows)
        self._under_way.append(append)
        self._send(append)

    def finish(self) -> int:
        """Wait for all answers and end the stream; returns how many rows it holds."""
        while self._under_way:
            self._settle_first()
        self.close()
        answer = persist(
            lambda: self._client.finalize_write_stream(name=self.name, retry=None, timeout=self._access.timeout_s),
            self._backoff,
            self._doing,
            sleep=self._sleep,
        )
        if answer.row_count != self._offset:
            raise SinkUnavailable(
                f"{self._doing}: stream {self.name} holds {answer.row_count} rows where {self._offset} were written; "
                "it is left uncommitted and the micro-batch is written again"
            )
        return self._offset

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _create(self) -> str:
        from google.cloud.bigquery_storage_v1 import types

        pending = types.WriteStream(type_=types.WriteStream.Type.PENDING)
        made = persist(
            lambda: self._client.create_write_stream(
                parent=self._access.path, write_stream=pending, retry=None, timeout=self._access.timeout_s
            ),
            self._backoff,
            self._doing,
            sleep=self._sleep,
        )
        return str(made.name)

    def _send(self, append: _Append) -> None:
        from google.cloud.bigquery_storage_v1 import types
        from google.protobuf.wrappers_pb2 import Int64Value

        append.offset = self._offset
        data = types.AppendRowsRequest.ArrowData(
            rows=types.ArrowRecordBatch(serialized_record_batch=append.rows.ready.serialize().to_pybytes())
        )
        if self._connection is None:
            self._connection = _Connection(self._client, self.name, self._access.timeout_s)
            data.writer_schema = types.ArrowSchema(serialized_schema=self._schema.serialize().to_pybytes())
        self._connection.send(
            types.AppendRowsRequest(
                write_stream=self.name, offset=Int64Value(value=append.offset), arrow_rows=data, trace_id="penstock"
            )
        )
        self._offset += len(append.rows)

    def _settle_first(self) -> None:
        """Learn what became of the oldest append, and mend it if it failed."""
        first = self._under_way[0]
        try:
            answer = self._receive()
        except foreign_errors() as error:
            self._wait_or_give_up(error)
            self._send_again(first)
            return
        if not answer.error.code or answer.error.code == _ALREADY_EXISTS:
            self._under_way.popleft()
            self._retries = 0
            return
        self._drain()
        if answer.error.code == _OUT_OF_RANGE:
            raise SinkUnavailable(f"{self._doing}: {answer.error.message}; the micro-batch is written again")
        if answer.row_errors:
            self._drop(first, {each.index: each.message for each in answer.row_errors})
        else:
            self._wait_or_give_up(_error_of(answer))
        self._send_again(first)

    def _receive(self) -> Any:
        assert self._connection is not None
        return self._connection.receive()

    def _drain(self) -> None:
        """Wait until those behind the failed one have failed too, so that none of them can still arrive."""
        with suppress(*foreign_errors()):
            for _ in range(len(self._under_way) - 1):
                self._receive()

    def _drop(self, append: _Append, errors: dict[int, str]) -> None:
        known = {at: reason for at, reason in errors.items() if 0 <= at < len(append.rows)}
        if not known:
            raise SinkError(f"{self._doing} failed: rows refused that were not sent: {errors}")
        self.rejected += [Rejected(for_letter(append.rows.source, at), known[at]) for at in sorted(known)]
        append.rows = append.rows.without(known)

    def _wait_or_give_up(self, error: BaseException) -> None:
        if not is_passing(error) or self._retries >= self._backoff.retries:
            raise told(error, self._doing, self._retries) from error
        self._sleep(self._backoff.delay_s(self._retries))
        self._retries += 1

    def _send_again(self, first: _Append) -> None:
        self.close()  # the failed one may have been the one with the schema; a new connection begins with it
        self._offset = first.offset
        self._under_way = deque(each for each in self._under_way if len(each.rows))
        for each in self._under_way:
            self._send(each)


def _error_of(answer: Any) -> BaseException:
    from google.api_core.exceptions import from_grpc_status

    error: BaseException = from_grpc_status(answer.error.code, answer.error.message)  # type: ignore[no-untyped-call]
    return error


class _Connection:
    """One AppendRows call: requests go out at once, answers are fetched."""

    def __init__(self, client: Any, stream: str, timeout_s: float) -> None:
        from google.api_core.gapic_v1.routing_header import to_grpc_metadata

        self._timeout_s = timeout_s
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # The transport's own call, not the client's: that one waits for the first answer before it returns.
        route: Any = to_grpc_metadata((("write_stream", stream),))  # type: ignore[no-untyped-call]
        self._call = client.transport.append_rows(self._outgoing(), metadata=(route,))

    def _outgoing(self) -> Iterator[Any]:
        return iter(self._requests.get, None)

    def send(self, request: Any) -> None:
        self._requests.put(request)

    def receive(self) -> Any:
        """The next answer.

        Raises:
            GoogleAPICallError: the call has ended.
        """
        import grpc

        exceptions = import_module("google.api_core.exceptions")
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._call.cancel()

        timer = threading.Timer(self._timeout_s, give_up)
        timer.start()
        try:
            return next(self._call)
        except StopIteration:
            raise exceptions.ServiceUnavailable("the connection was closed by the server") from None
        except grpc.RpcError as error:
            if late.is_set():
                raise exceptions.DeadlineExceeded(f"no answer within {self._timeout_s:g} s") from error
            raise exceptions.from_grpc_error(error) from error
        finally:
            timer.cancel()

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()
