"""The sink on the driver: checks the table, has the tasks write, commits what they wrote."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks.bigquery import answers, fields, mapping
from penstock.pipelines.sinks.bigquery.access import Access
from penstock.pipelines.sinks.bigquery.batcher import Limits
from penstock.pipelines.sinks.bigquery.commits import Outcome, commit, is_committed
from penstock.pipelines.sinks.bigquery.intents import Intent, Intents
from penstock.pipelines.sinks.bigquery.tasks import Job, insert_writer, stream_writer
from penstock.pipelines.sinks.bigquery.trouble import Backoff, foreign_errors, persist, told
from penstock.pipelines.sinks.contract import BatchId, Reject
from penstock.pipelines.sinks.parts import write_parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

KEPT_S: Final = 4 * 3600.0
"""How long BigQuery keeps the rows of a finalized stream that is not committed, at least."""


class BigQuerySink:
    """One table."""

    def __init__(
        self, name: str, access: Access, options: Mapping[str, Any], limits: Limits, backoff: Backoff, intents: Intents
    ) -> None:
        self._name = name
        self._access = access
        self._options = options
        self._limits = limits
        self._backoff = backoff
        self._intents = intents
        self._rest: Any = None
        self._grpc: Any = None
        self._columns: StructType | None = None
        self._plan: mapping.Plan = ()
        self._fresh = False

    @property
    def _by_streams(self) -> bool:
        return bool(self._options["method"] == "storage_write")

    def probe(self) -> None:
        if self._table() is None and not self._options["create"]:
            raise self._missing()

    def prepare(self, schema: "StructType") -> None:
        mapped, defaults = self._options["mapping"] or {}, self._options["defaults"] or {}
        rules = fields.Rules(self._name, rest=not self._by_streams, ignore_unknown=self._options["ignore_unknown"])
        table = self._table()
        if table is None:
            if not self._options["create"]:
                raise self._missing()
            table = mapping.new_table(schema, mapped, defaults, self._name)
            plan = mapping.plan(schema, table, mapped, defaults, rules)
            self._create(table)
        else:
            plan = mapping.plan(schema, table, mapped, defaults, rules)
        self._columns, self._plan = schema, plan

    def is_written(self, identity: BatchId) -> bool:
        intent = self._intents.load(identity.query)
        if intent is None or not identity.repeats(intent.batch, self._name):
            return False
        return intent.done or self._is_settled(intent)

    def write(self, rows: "DataFrame", identity: BatchId, reject: Reject) -> int:
        if self.is_written(identity):  # the last call may have committed and not lived to hear it
            known = self._intents.load(identity.query)
            return known.rows if known else 0
        if self._columns != rows.schema:
            self.prepare(rows.schema)
        if self._options["streams"]:
            rows = rows.coalesce(self._options["streams"])
        writer = stream_writer if self._by_streams else insert_writer
        written = answers.decode(write_parts(rows, writer(self._job(identity))))
        rejected = [each for part in written for each in part.rejected]
        if rejected:
            reject(rejected)
        streams = tuple(sorted(part.stream for part in written if part.stream))
        intent = self._intents.open(identity.query, identity.batch, streams, sum(part.rows for part in written))
        if streams and self._commit(intent) is Outcome.GONE:
            raise SinkUnavailable(
                f"sink {self._name}: BigQuery does not know streams that were just finalized; the micro-batch is "
                "written again"
            )
        self._intents.finish(intent)
        return intent.rows

    def close(self) -> None:
        if self._rest is not None:
            self._rest.close()
        if self._grpc is not None:
            self._grpc.transport.close()
        self._rest = self._grpc = None

    def _job(self, identity: BatchId) -> Job:
        return Job(
            access=self._access,
            plan=self._plan,
            limits=self._limits,
            backoff=self._backoff,
            identity=identity,
            sink=self._name,
            ignore_unknown=self._options["ignore_unknown"],
            fresh=self._fresh,
        )

    def _is_settled(self, intent: Intent) -> bool:
        """What became of an intent that was open when its driver ended; what can be committed is."""
        if intent.streams:
            known = is_committed(self._open_grpc(), self._access, intent.streams[0], self._backoff)
            if not known and self._commit(intent) is Outcome.GONE:
                return self._is_lost(intent)
        self._intents.finish(intent)
        return True

    def _is_lost(self, intent: Intent) -> bool:
        """BigQuery knows nothing of the streams: whether their rows count as written."""
        if intent.age_s < KEPT_S:
            return False
        if self._options["unsure"] == "skip":
            self._intents.finish(intent)
            return True
        if self._options["unsure"] == "write":
            return False
        raise SinkError(
            f"sink {self._name}: nobody knows whether batch {intent.batch} of query {intent.query} is in table "
            f"{self._access}: it was about to be committed {intent.age_s / 3600:.0f} hours ago, and BigQuery has "
            f"forgotten its streams. Look for its {intent.rows} rows there, then set `unsure: write` if they are "
            "missing or `unsure: skip` if they are there, and start again"
        )

    def _commit(self, intent: Intent) -> Outcome:
        return commit(self._open_grpc(), self._access, intent.streams, self._backoff)

    def _open_grpc(self) -> Any:
        if self._grpc is None:
            self._grpc = self._opened(self._access.open_grpc)
        return self._grpc

    def _open_rest(self) -> Any:
        if self._rest is None:
            self._rest = self._opened(self._access.open_rest)
        return self._rest

    def _opened(self, make: Any) -> Any:
        try:
            return make()
        except foreign_errors() as error:
            raise told(error, f"sink {self._name}: opening table {self._access}") from error

    def _table(self) -> tuple[fields.Field, ...] | None:
        """The table's fields; None: there is no such table."""
        from google.api_core.exceptions import NotFound

        client = self._open_rest()

        def get() -> Any:
            try:
                return client.get_table(str(self._access), retry=None, timeout=self._access.timeout_s)
            except NotFound:
                return None

        table = persist(get, self._backoff, f"sink {self._name}: reading table {self._access}")
        return None if table is None else fields.from_table(table.schema)

    def _create(self, table: tuple[fields.Field, ...]) -> None:
        from google.cloud.bigquery import Table

        client, made = self._open_rest(), Table(str(self._access), schema=fields.to_table(table))
        persist(
            lambda: client.create_table(made, exists_ok=True, retry=None, timeout=self._access.timeout_s),
            self._backoff,
            f"sink {self._name}: making table {self._access}",
        )
        self._fresh = True

    def _missing(self) -> SinkError:
        return SinkError(
            f"sink {self._name}: there is no table {self._access}. Make it, or set `create: true` to have it made of "
            "the rows' columns"
        )
