"""Where rows go that reach no sink: undecoded ones, quarantined ones and those that a sink refused.

A dead letter is a record with the row, or the bytes it came as, and headers that say which pipeline, which step, why
and from where. Written once for each micro-batch, as everything else.
"""

import json
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.pipelines.errors import SinkUnavailable
from penstock.pipelines.home.events import EventLog
from penstock.pipelines.home.sealed import sync_directory
from penstock.pipelines.model import Spec
from penstock.pipelines.run.quality import ISSUE_SCHEMA
from penstock.pipelines.run.sources import kafka_options
from penstock.pipelines.sinks.contract import BatchId, Rejected
from penstock.pipelines.sinks.topic import TopicWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PREFIX: Final = "penstock."
_MOST_LOGGED: Final = 100
_HEADERS: Final = "array<struct<key:string,value:binary>>"


class Letters:
    """Of one pipeline. May be pickled."""

    def __init__(self, spec: Spec, name: str, events: EventLog) -> None:
        """`name`: of the pipeline, as sinks know it."""
        self._spec = spec
        self._name = name
        self._events = events
        self._kind, self._target = spec.dead_letters.kind, spec.dead_letters.target
        self._writers: dict[str, TopicWriter] = {}

    def prepare(self) -> None:
        if self._kind == "topic":
            self._writer("").create(1, {})
        elif self._kind == "file":
            self._folder().mkdir(parents=True, exist_ok=True)

    def write(self, issues: "DataFrame", identity: BatchId, *, part: str = "") -> None:
        """The issues of a micro-batch; `part` tells those of the steps ("") from those of each sink."""
        if self._kind == "topic":
            writer = self._writer(part)
            if not writer.is_written(identity):
                writer.write(self._records(issues), identity)
        elif self._kind == "file":
            self._write_file(issues, identity, part)
        elif self._kind == "log":
            self._log(issues, identity)

    def write_rejected(self, spark: "SparkSession", rows: Sequence[Rejected], identity: BatchId, *, sink: str) -> None:
        # A sink that is tried again may refuse other rows than at first; those are other letters.
        digest = sha256(b"".join(sorted(each.row for each in rows))).hexdigest()[:16]
        identity = BatchId(f"{identity.query}-{digest}", identity.batch)
        columns: list[tuple[Any, ...]] = [
            (f"sink {sink}", 0, each.reason, {}, None, bytearray(each.row)) for each in rows
        ]
        self.write(spark.createDataFrame(columns, ISSUE_SCHEMA), identity, part=sink)

    def _writer(self, part: str) -> TopicWriter:
        if part not in self._writers:
            name = f"penstock-pipeline/{self._name}/letters/{part}"
            options = kafka_options(self._spec.server, self._spec.client)
            self._writers[part] = TopicWriter(self._target, name, options)
        return self._writers[part]

    def _records(self, issues: "DataFrame") -> "DataFrame":
        from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

        said = F.create_map(
            F.lit("pipeline"), F.lit(self._spec.name), F.lit("step"), F.col("node"), F.lit("reason"), F.col("reason")
        )
        entries = F.map_entries(F.map_concat(said, "origin"))
        headers = F.transform(
            entries,
            lambda each: F.struct(
                F.concat(F.lit(PREFIX), each["key"]).alias("key"), each["value"].cast("binary").alias("value")
            ),
        )
        return issues.select("key", "value", headers.cast(_HEADERS).alias("headers"))

    def _write_file(self, issues: "DataFrame", identity: BatchId, part: str) -> None:
        """One file for a micro-batch, under a name that a repeat writes again."""
        stem = f"{identity.query}-{identity.batch:09d}" + (f"-{part}" if part else "")
        path = self._folder() / f"{stem}.jsonl"
        temporary = path.with_suffix(".tmp")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                for row in issues.toLocalIterator():
                    file.write(json.dumps(self._letter(row)) + "\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_directory(path.parent)
        except OSError as error:
            raise SinkUnavailable(f"dead letters: {temporary}: {error.strerror}") from error

    def _log(self, issues: "DataFrame", identity: BatchId) -> None:
        for row in issues.limit(_MOST_LOGGED).collect():
            letter = self._letter(row)
            self._events.write("warning", "dead-letter", letter.pop("reason"), batch=identity.batch, **letter)

    def _letter(self, row: Any) -> dict[str, Any]:
        return {
            "pipeline": self._spec.name,
            "step": row.node,
            "reason": row.reason,
            **dict(row.origin or {}),
            "key": _text(row.key),
            "value": _text(row.value),
        }

    def _folder(self) -> Path:
        return self._spec.directory / self._target


def _text(data: bytearray | None) -> str | None:
    """Bytes that are no text have their strange ones escaped."""
    return None if data is None else bytes(data).decode("utf-8", "backslashreplace")
