"""A task's rows by `tabledata.insertAll`: in the table as soon as they are answered.

A row's insertId is made of its micro-batch, its task, its content and how many equal rows came before it in the task,
so a row that is sent again has the id it had, whatever order the rows come in. Two equal rows of two tasks keep
different ids: they are two rows.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.pipelines.errors import SinkUnavailable
from penstock.pipelines.sinks.bigquery.fields import Field
from penstock.pipelines.sinks.bigquery.projection import Rows
from penstock.pipelines.sinks.bigquery.rows_json import for_insert, for_letter
from penstock.pipelines.sinks.bigquery.trouble import Backoff, persist
from penstock.pipelines.sinks.contract import Rejected

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.pipelines.sinks.bigquery.access import Access

REQUEST_BYTES: Final = 9_900_000
"""What the rows of one request may take: the service's 10 MB, less what stands around the rows."""
_ROW_OVERHEAD_BYTES: Final = 80
"""What a request says of a row beside its values: `{"json": , "insertId": "<32 digits>"}, `, rounded up."""
_PASSING: Final = frozenset(
    {"stopped", "timeout", "backendError", "internalError", "rateLimitExceeded", "quotaExceeded"}
)
"""Reasons that say nothing against the row itself."""


class Row(NamedTuple):
    """A row ready to be sent, and where it came from."""

    values: dict[str, Any]
    insert_id: str
    size_bytes: int
    batch: "pa.RecordBatch"
    at: int

    def reject(self, reason: str) -> Rejected:
        return Rejected(for_letter(self.batch, self.at), reason)


class RowMaker:
    """Rows of a task with their ids."""

    def __init__(self, fields: tuple[Field, ...], prefix: str) -> None:
        self._fields = fields
        self._prefix = prefix.encode()
        self._seen: Counter[bytes] = Counter()

    def make(self, rows: Rows) -> list[Row]:
        made = []
        for at, values in enumerate(for_insert(rows.ready, self._fields)):
            text = json.dumps(values).encode()  # as the client will write it, so that the size is the request's
            content = blake2b(text, digest_size=16).digest()
            number = self._seen[content]
            self._seen[content] += 1
            name = b"%b/%b/%d" % (self._prefix, content, number)
            insert_id = blake2b(name, digest_size=16).hexdigest()
            made.append(Row(values, insert_id, len(text) + _ROW_OVERHEAD_BYTES, rows.source, at))
        return made


class Inserts:
    """Requests under way, at most `at_once`."""

    def __init__(
        self,
        client: Any,
        access: "Access",
        backoff: Backoff,
        at_once: int,
        *,
        ignore_unknown: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._access = access
        self._backoff = backoff
        self._at_once = at_once
        self._ignore_unknown = ignore_unknown
        self._sleep = sleep
        self._doing = f"inserting into table {access}"
        self._pool = ThreadPoolExecutor(at_once, "insertAll")
        self._under_way: set[Future[tuple[int, list[Rejected]]]] = set()
        self.rows = 0
        self.rejected: list[Rejected] = []

    def send(self, rows: Sequence[Row]) -> None:
        """Send rows; waits only when `at_once` requests have no answer yet."""
        while len(self._under_way) >= self._at_once:
            self._collect()
        self._under_way.add(self._pool.submit(self._insert, list(rows)))

    def finish(self) -> None:
        """Wait for all answers."""
        while self._under_way:
            self._collect()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _collect(self) -> None:
        done, self._under_way = wait(self._under_way, return_when=FIRST_COMPLETED)
        for each in done:
            rows, rejected = each.result()
            self.rows += rows
            self.rejected += rejected

    def _insert(self, rows: list[Row]) -> tuple[int, list[Rejected]]:
        """Runs in the pool: one request, until every row of it is in the table or refused."""
        inserted, rejected, retry = 0, [], 0
        while True:
            errors = {each["index"]: each["errors"] for each in self._request(rows)}
            again = []
            for at, row in enumerate(rows):
                if at not in errors:
                    inserted += 1
                elif all(each.get("reason") in _PASSING for each in errors[at]):
                    again.append(row)
                else:
                    rejected.append(row.reject(_reason(errors[at])))
            if not again:
                return inserted, rejected
            if retry >= self._backoff.retries:
                raise SinkUnavailable(f"{self._doing} failed for {len(again)} rows ({retry + 1} times): {errors}")
            if len(again) == len(rows):
                self._sleep(self._backoff.delay_s(retry))
                retry += 1
            rows = again

    def _request(self, rows: list[Row]) -> Sequence[dict[str, Any]]:
        return persist(
            lambda: self._client.insert_rows_json(
                str(self._access),
                [each.values for each in rows],
                [each.insert_id for each in rows],
                skip_invalid_rows=True,
                ignore_unknown_values=self._ignore_unknown,
                retry=None,
                timeout=self._access.timeout_s,
            ),
            self._backoff,
            self._doing,
            sleep=self._sleep,
        )


def _reason(errors: list[dict[str, Any]]) -> str:
    return "; ".join(": ".join(filter(None, (each.get("location"), each.get("message")))) for each in errors)
