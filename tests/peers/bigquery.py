"""A stand-in for Google BigQuery: a real HTTP server and a real gRPC server that answer as BigQuery's documents say.

It is not BigQuery and proves nothing about it: what the sink promises was tested against this alone. It speaks REST
`tables.get`, `tables.insert`, `tabledata.insertAll` and gRPC `BigQueryWrite` (CreateWriteStream, AppendRows with Arrow
rows, GetWriteStream, FinalizeWriteStream, BatchCommitWriteStreams). It is strict where a document is: Arrow types that
are not listed are refused, a null array too, an offset that is there is ALREADY_EXISTS and a gap is OUT_OF_RANGE, rows
of a pending stream are nowhere until their commit, and an insertId is good for one row.
"""

import base64
import contextlib
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import grpc
import pyarrow as pa
from google.cloud.bigquery_storage_v1 import types
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

_SERVICE = "google.cloud.bigquery.storage.v1.BigQueryWrite"
_Codes = types.StorageError.StorageErrorCode
LIMIT_BYTES = 10_000_000


@dataclass
class Table:
    """A table: its schema as REST has it, and the rows that a query would see."""

    schema: list[dict[str, Any]]
    rows: list[dict[str, Any]] = field(default_factory=list)
    insert_ids: set[str] = field(default_factory=set)


@dataclass
class WriteStream:
    table: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    finalized: bool = False
    committed: datetime | None = None


@dataclass
class Fault:
    """What happens to the next requests of a kind.

    Attributes:
        status: an HTTP status, or the name of a gRPC code.
        drop: the connection is cut.
        after: the request is done first; only the answer is lost.
        inside: a gRPC code is in an answer of the AppendRows call, which goes on.
    """

    times: int
    status: int | str = 503
    reason: str = "backendError"
    drop: bool = False
    after: bool = False
    inside: bool = False


class BigQuery:
    """The stand-in; `with BigQuery() as server:`.

    Attributes:
        requests: how many of each kind arrived, `insertAll`, `AppendRows`, ...
        peak: how many of a kind were under way at once.
        refuse: table's row → why it is refused, for rows that BigQuery would not take.
        gate: a kind waits here before it is answered.
        errors_in_status: errors of a commit are in the status of the call, the other place that BigQuery has for them.
    """

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.datasets: set[str] = set()
        self.streams: dict[str, WriteStream] = {}
        self.requests: dict[str, int] = {}
        self.peak: dict[str, int] = {}
        self.sizes: dict[str, list[int]] = {}
        self.refuse: Callable[[dict[str, Any]], str | None] = lambda row: None
        self.gate: dict[str, Callable[[], object]] = {}
        self.arrow_schemas: list[pa.Schema] = []
        self.errors_in_status = False
        self._under_way: dict[str, int] = {}
        self._faults: dict[str, list[Fault]] = {}
        self._lock = threading.RLock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._grpc = grpc.server(ThreadPoolExecutor(32), options=[("grpc.max_receive_message_length", 32 << 20)])
        self._grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, _methods(self)),))
        self._grpc_port = self._grpc.add_insecure_port("127.0.0.1:0")

    def __enter__(self) -> "BigQuery":
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        self._grpc.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._grpc.stop(0).wait()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def grpc_endpoint(self) -> str:
        return f"http://127.0.0.1:{self._grpc_port}"

    @property
    def options(self) -> dict[str, Any]:
        """A sink's keys that lead here."""
        return {"endpoint": self.endpoint, "grpc_endpoint": self.grpc_endpoint}

    def add_table(self, name: str, *schema: dict[str, Any]) -> Table:
        """`name` is `project.dataset.table`."""
        self.datasets.add(name.rsplit(".", 1)[0])
        self.tables[name] = Table(list(schema))
        return self.tables[name]

    def fail(self, kind: str, times: int = 1, **how: Any) -> None:
        """The next requests of a kind fail: see `Fault`."""
        with self._lock:
            self._faults.setdefault(kind, []).append(Fault(times, **how))

    def forget_streams(self) -> None:
        """As if they had expired."""
        with self._lock:
            self.streams.clear()

    def fault(self, kind: str) -> Fault | None:
        with self._lock:
            waiting = self._faults.get(kind, [])
            if not waiting:
                return None
            fault = waiting[0]
            fault.times -= 1
            if fault.times <= 0:
                waiting.pop(0)
            return fault

    @contextlib.contextmanager
    def counted(self, kind: str) -> Iterator[None]:
        with self._lock:
            self.requests[kind] = self.requests.get(kind, 0) + 1
            self._under_way[kind] = self._under_way.get(kind, 0) + 1
            self.peak[kind] = max(self.peak.get(kind, 0), self._under_way[kind])
        try:
            self.gate.get(kind, lambda: None)()
            yield
        finally:
            with self._lock:
                self._under_way[kind] -= 1

    # REST

    def get_table(self, name: str) -> tuple[int, dict[str, Any]]:
        table = self.tables.get(name)
        if table is None:
            return _rest_error(404, "notFound", f"Not found: Table {name}")
        project, dataset, short = name.rsplit(".", 2)
        reference = {"projectId": project, "datasetId": dataset, "tableId": short}
        return 200, {"tableReference": reference, "schema": {"fields": table.schema}, "type": "TABLE"}

    def insert_table(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        reference = body["tableReference"]
        dataset = f"{reference['projectId']}.{reference['datasetId']}"
        name = f"{dataset}.{reference['tableId']}"
        with self._lock:
            if dataset not in self.datasets:
                return _rest_error(404, "notFound", f"Not found: Dataset {dataset}")
            if name in self.tables:
                return _rest_error(409, "duplicate", f"Already Exists: Table {name}")
            self.tables[name] = Table(body["schema"]["fields"])
        return self.get_table(name)

    def insert_all(self, name: str, body: dict[str, Any], size_bytes: int) -> tuple[int, dict[str, Any]]:
        with self._lock:
            self.sizes.setdefault("insertAll", []).append(size_bytes)
            table = self.tables.get(name)
            if table is None:
                return _rest_error(404, "notFound", f"Not found: Table {name}")
            if size_bytes > LIMIT_BYTES:
                return _rest_error(413, "invalid", "Request payload size exceeds the limit: 10485760 bytes")
            good, errors = self._judge(table, body["rows"], bool(body.get("ignoreUnknownValues")))
            if errors and not body.get("skipInvalidRows"):
                stopped = [_row_error(at, "stopped", "") for at in range(len(body["rows"])) if at not in errors]
                return 200, {"insertErrors": [*errors.values(), *stopped]}
            for insert_id, row in good:
                if insert_id is None or insert_id not in table.insert_ids:
                    table.rows.append(row)
                    table.insert_ids |= {insert_id} if insert_id else set()
        return 200, {"insertErrors": list(errors.values())} if errors else {}

    def _judge(
        self, table: Table, rows: list[dict[str, Any]], ignore_unknown: bool
    ) -> tuple[list[tuple[str | None, dict[str, Any]]], dict[int, dict[str, Any]]]:
        good, errors = [], {}
        for at, each in enumerate(rows):
            try:
                row = _from_json(each["json"], table.schema, ignore_unknown)
                wrong = self.refuse(row)
            except (ValueError, TypeError, ArithmeticError) as error:
                row, wrong = {}, str(error)
            if wrong:
                errors[at] = _row_error(at, "invalid", wrong)
            else:
                good.append((each.get("insertId"), row))
        return good, errors

    # gRPC

    def create_write_stream(self, request: Any, context: grpc.ServicerContext) -> Any:
        name = _table_name(request.parent)
        if name not in self.tables:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Requested entity was not found: table {name}")
        if request.write_stream.type_ != types.WriteStream.Type.PENDING:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "the stand-in has pending streams only")
        made = f"{request.parent}/streams/{uuid.uuid4().hex}"
        with self._lock:
            self.streams[made] = WriteStream(name)
        return types.WriteStream(name=made, type_=types.WriteStream.Type.PENDING)

    def append_rows(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        routed = dict(context.invocation_metadata()).get("x-goog-request-params", "")
        schema: pa.Schema | None = None
        for request in requests:
            if unquote(routed) != f"write_stream={request.write_stream}":
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no routing header for {request.write_stream}")
            with self.counted("AppendRows"):
                fault = self.fault("AppendRows")
                if fault and not fault.after:
                    if not fault.inside:
                        context.abort(grpc.StatusCode[str(fault.status)], "as ordered")
                    yield _append_error(grpc.StatusCode[str(fault.status)], "as ordered")
                    continue
                sent = request.arrow_rows.writer_schema.serialized_schema
                if sent:
                    schema = pa.ipc.read_schema(pa.py_buffer(sent))
                    self.arrow_schemas.append(schema)
                answer = self._append(request, schema)
                if fault:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost, as ordered")
                yield answer

    def _append(self, request: Any, schema: pa.Schema | None) -> Any:
        data = request.arrow_rows.rows.serialized_record_batch
        with self._lock:
            self.sizes.setdefault("AppendRows", []).append(len(types.AppendRowsRequest.serialize(request)))
            stream = self.streams.get(request.write_stream)
            if stream is None:
                return _append_error(grpc.StatusCode.NOT_FOUND, f"stream {request.write_stream} is not found")
            if stream.finalized:
                return _append_error(grpc.StatusCode.INVALID_ARGUMENT, "the stream is finalized")
            if schema is None:
                return _append_error(grpc.StatusCode.INVALID_ARGUMENT, "no schema in the first request of a connection")
            if self.sizes["AppendRows"][-1] > LIMIT_BYTES:
                return _append_error(grpc.StatusCode.INVALID_ARGUMENT, "the request is too large")
            table = self.tables[stream.table]
            wrong = _misfit(schema, table.schema)
            if wrong:
                return _append_error(grpc.StatusCode.INVALID_ARGUMENT, wrong)
            end = len(stream.rows)
            if request.offset is not None and request.offset < end:
                return _append_error(grpc.StatusCode.ALREADY_EXISTS, f"offset {request.offset} is there, end {end}")
            if request.offset is not None and request.offset > end:
                return _append_error(grpc.StatusCode.OUT_OF_RANGE, f"offset {request.offset}, end {end}")
            rows = pa.ipc.read_record_batch(pa.py_buffer(data), schema).to_pylist()
            errors = {at: reason for at, row in enumerate(rows) if (reason := self._wrong(row, table))}
            if errors:
                answer = _append_error(grpc.StatusCode.INVALID_ARGUMENT, "Errors found while processing rows")
                answer.row_errors = [types.RowError(index=at, message=reason) for at, reason in errors.items()]
                return answer
            stream.rows += rows
        return types.AppendRowsResponse(append_result={"offset": end}, write_stream=request.write_stream)

    def _wrong(self, row: dict[str, Any], table: Table) -> str | None:
        return _null_trouble(row, table.schema) or self.refuse(row)

    def get_write_stream(self, request: Any, context: grpc.ServicerContext) -> Any:
        stream = self.streams.get(request.name)
        if stream is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"stream {request.name} is not found")
            raise AssertionError
        answer = types.WriteStream(name=request.name, type_=types.WriteStream.Type.PENDING)
        if stream.committed:
            answer.commit_time = stream.committed
        return answer

    def finalize_write_stream(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._lock:
            stream = self.streams.get(request.name)
            if stream is None:
                context.abort(grpc.StatusCode.NOT_FOUND, f"stream {request.name} is not found")
                raise AssertionError
            stream.finalized = True
            return types.FinalizeWriteStreamResponse(row_count=len(stream.rows))

    def batch_commit(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._lock:
            errors = [found for name in request.write_streams if (found := self._commit_trouble(name))]
            if errors:
                return types.BatchCommitWriteStreamsResponse(stream_errors=errors)
            now = datetime.now(UTC)
            for name in request.write_streams:
                stream = self.streams[name]
                stream.committed = now
                self.tables[stream.table].rows += stream.rows
        return types.BatchCommitWriteStreamsResponse(commit_time=now)

    def _commit_trouble(self, name: str) -> Any:
        stream = self.streams.get(name)
        if stream is None:
            return types.StorageError(code=_Codes.STREAM_NOT_FOUND, entity=name, error_message="not found")
        if stream.committed:
            return types.StorageError(code=_Codes.STREAM_ALREADY_COMMITTED, entity=name, error_message="committed")
        if not stream.finalized:
            return types.StorageError(code=_Codes.INVALID_STREAM_STATE, entity=name, error_message="not finalized")
        return None


def _abort_with_details(context: grpc.ServicerContext, code: grpc.StatusCode, errors: list[Any]) -> None:
    details = []
    for each in errors:
        packed = AnyMessage()
        packed.Pack(types.StorageError.pb(each))
        details.append(packed)
    context.abort_with_status(rpc_status.to_status(Status(code=code.value[0], message="see details", details=details)))


def _methods(server: BigQuery) -> dict[str, Any]:
    def unary(kind: str, do: Callable[[Any, grpc.ServicerContext], Any], request: Any, response: Any) -> Any:
        def handle(message: Any, context: grpc.ServicerContext) -> Any:
            with server.counted(kind):
                fault = server.fault(kind)
                if fault and not fault.after:
                    context.abort(grpc.StatusCode[str(fault.status)], "as ordered")
                answer = do(message, context)
                if fault:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost, as ordered")
                if kind == "BatchCommitWriteStreams" and answer.stream_errors and server.errors_in_status:
                    _abort_with_details(context, grpc.StatusCode.FAILED_PRECONDITION, list(answer.stream_errors))
                return answer

        return grpc.unary_unary_rpc_method_handler(handle, request.deserialize, response.serialize)

    return {
        "CreateWriteStream": unary(
            "CreateWriteStream", server.create_write_stream, types.CreateWriteStreamRequest, types.WriteStream
        ),
        "GetWriteStream": unary(
            "GetWriteStream", server.get_write_stream, types.GetWriteStreamRequest, types.WriteStream
        ),
        "FinalizeWriteStream": unary(
            "FinalizeWriteStream",
            server.finalize_write_stream,
            types.FinalizeWriteStreamRequest,
            types.FinalizeWriteStreamResponse,
        ),
        "BatchCommitWriteStreams": unary(
            "BatchCommitWriteStreams",
            server.batch_commit,
            types.BatchCommitWriteStreamsRequest,
            types.BatchCommitWriteStreamsResponse,
        ),
        "AppendRows": grpc.stream_stream_rpc_method_handler(
            server.append_rows, types.AppendRowsRequest.deserialize, types.AppendRowsResponse.serialize
        ),
    }


def _handler(server: BigQuery) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer("tables.get", lambda body, size: server.get_table(self._name()))

        def do_POST(self) -> None:
            if self.path.split("?")[0].endswith("/insertAll"):
                self._answer("insertAll", lambda body, size: server.insert_all(self._name(), body, size))
            else:
                self._answer("tables.insert", lambda body, size: server.insert_table(body))

        def _name(self) -> str:
            parts = unquote(self.path.split("?")[0]).split("/")
            return (
                f"{parts[parts.index('projects') + 1]}.{parts[parts.index('datasets') + 1]}."
                + parts[parts.index("tables") + 1]
            )

        def _answer(self, kind: str, do: Callable[[dict[str, Any], int], tuple[int, dict[str, Any]]]) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with server.counted(kind):
                fault = server.fault(kind)
                if fault and not fault.after:
                    status, answer = _rest_error(int(fault.status), fault.reason, "as ordered")
                else:
                    status, answer = do(_parse(data) if data else {}, len(data))
                if fault and (fault.drop or fault.after):
                    self.close_connection = True
                    return
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _parse(data: bytes) -> Any:
    """JSON as a strict and careless reader has it: there is no NaN, and a number is a double."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    return json.loads(data, parse_int=lambda text: int(float(text)), parse_constant=refuse)


def _rest_error(status: int, reason: str, text: str) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"code": status, "message": text, "errors": [{"reason": reason, "message": text}]}}


def _row_error(at: int, reason: str, text: str) -> dict[str, Any]:
    return {"index": at, "errors": [{"reason": reason, "message": text, "location": "", "debugInfo": ""}]}


def _append_error(code: grpc.StatusCode, text: str) -> Any:
    return types.AppendRowsResponse(error=Status(code=code.value[0], message=text))


def _table_name(path: str) -> str:
    parts = path.split("/")
    return f"{parts[1]}.{parts[3]}.{parts[5]}"


def _kind(each: dict[str, Any]) -> str:
    return {"INT64": "INTEGER", "FLOAT64": "FLOAT", "BOOL": "BOOLEAN", "STRUCT": "RECORD"}.get(
        each["type"], each["type"]
    )


_ARROW: dict[str, Callable[[pa.DataType], bool]] = {
    "BOOLEAN": pa.types.is_boolean,
    "INTEGER": pa.types.is_integer,
    "FLOAT": lambda kind: kind in (pa.float32(), pa.float64()),
    "STRING": pa.types.is_string,
    "JSON": pa.types.is_string,
    "GEOGRAPHY": pa.types.is_string,
    "INTERVAL": pa.types.is_string,
    "BYTES": pa.types.is_binary,
    "DATE": pa.types.is_date32,
    "DATETIME": lambda kind: kind == pa.timestamp("us"),
    "TIMESTAMP": lambda kind: kind == pa.timestamp("us", "UTC"),
    "NUMERIC": lambda kind: pa.types.is_decimal128(kind) and kind.scale <= 9,
    "BIGNUMERIC": lambda kind: pa.types.is_decimal256(kind) and kind.scale <= 38,
}


def _misfit(fields: Any, schema: list[dict[str, Any]]) -> str | None:
    """Why Arrow columns do not go into a table or a record."""
    known = {each["name"].lower(): each for each in schema}
    for column in fields:
        each = known.get(column.name.lower())
        if each is None:
            return f"SCHEMA_MISMATCH_EXTRA_FIELDS: {column.name}"
        kind = column.type
        if each.get("mode") == "REPEATED":
            if not pa.types.is_list(kind):
                return f"{column.name}: {kind} for a repeated field"
            kind = kind.value_type
        if _kind(each) == "RECORD":
            if not pa.types.is_struct(kind):
                return f"{column.name}: {kind} for a record"
            if wrong := _misfit(kind, each["fields"]):
                return f"{column.name}.{wrong}"
        elif _kind(each) not in _ARROW or not _ARROW[_kind(each)](kind):
            return f"{column.name}: {kind} for {each['type']}"
    return None


def _null_trouble(row: dict[str, Any], schema: list[dict[str, Any]]) -> str | None:
    values = {name.lower(): value for name, value in row.items()}
    for each in schema:
        name, value = each["name"], values.get(each["name"].lower())
        repeated = each.get("mode") == "REPEATED"
        if value is None:
            if each.get("mode") == "REQUIRED":
                return f"field {name} is required"
            if repeated and name.lower() in values:
                return f"field {name}: a null array"
            continue
        if repeated and any(item is None for item in value):
            return f"field {name}: null in an array"
        if _kind(each) == "RECORD":
            for item in value if repeated else [value]:
                if wrong := _null_trouble(item, each["fields"]):
                    return f"{name}.{wrong}"
    return None


def _from_json(row: dict[str, Any], schema: list[dict[str, Any]], ignore_unknown: bool) -> dict[str, Any]:
    known = {each["name"].lower(): each for each in schema}
    made: dict[str, Any] = {}
    for name, value in row.items():
        each = known.get(name.lower())
        if each is None:
            if not ignore_unknown:
                raise ValueError(f"no such field: {name}.")
            continue
        repeated = each.get("mode") == "REPEATED"
        if value is None:
            made[name] = [] if repeated else None
        elif repeated:
            made[name] = [_value(item, each, ignore_unknown) for item in value]
        else:
            made[name] = _value(value, each, ignore_unknown)
    for each in schema:
        if each.get("mode") == "REQUIRED" and made.get(each["name"]) is None:
            raise ValueError(f"Missing required field: {each['name']}.")
    return made


def _value(value: Any, each: dict[str, Any], ignore_unknown: bool) -> Any:
    if value is None:
        raise ValueError(f"field {each['name']}: null in an array")
    if _kind(each) == "RECORD":
        return _from_json(value, each["fields"], ignore_unknown)
    read: dict[str, Callable[[Any], Any]] = {
        "INTEGER": int,
        "FLOAT": float,
        "NUMERIC": Decimal,
        "BIGNUMERIC": Decimal,
        "BYTES": lambda text: base64.b64decode(text, validate=True),
        "DATE": date.fromisoformat,
        "DATETIME": datetime.fromisoformat,
        "TIMESTAMP": datetime.fromisoformat,
    }
    return read.get(_kind(each), lambda same: same)(value)
