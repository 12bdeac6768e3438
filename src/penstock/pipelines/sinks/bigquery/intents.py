"""What the driver is about to commit, written down before it does.

One file per query. An intent is `open` from before the commit until its outcome is known; rows that were rejected are
with the dead letters before it is opened, so whoever finds it open only has to learn what became of its streams.

    streams finalized ── rows rejected ── intent open ── commit ── intent done
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from penstock.pipelines.errors import PipelineError, SinkError
from penstock.pipelines.home import sealed


@dataclass(frozen=True, slots=True)
class Intent:
    """A micro-batch and the streams that hold its rows.

    Attributes:
        rows: in the streams.
        opened_ms: when it was written down.
    """

    query: str
    batch: int
    streams: tuple[str, ...]
    rows: int
    opened_ms: int
    done: bool = False

    @property
    def age_s(self) -> float:
        return time.time() - self.opened_ms / 1000


class Intents:
    """The intents of one sink."""

    def __init__(self, directory: Path, sink: str) -> None:
        self._directory = directory
        self._sink = sink

    def path(self, query: str) -> Path:
        return self._directory / f"intent-{quote(query, safe='')}.json"

    def load(self, query: str) -> Intent | None:
        """The last intent of a query.

        Raises:
            SinkError: the file is damaged or of a later release.
        """
        path = self.path(query)
        try:
            body = sealed.load(path, "Look whether the table has the last micro-batch, then remove the file")
        except PipelineError as error:
            raise SinkError(f"sink {self._sink}: {error}") from None
        if body is None:
            return None
        return Intent(
            query=body["query"],
            batch=body["batch"],
            streams=tuple(body["streams"]),
            rows=body["rows"],
            opened_ms=body["opened_ms"],
            done=body["done"],
        )

    def open(self, query: str, batch: int, streams: tuple[str, ...], rows: int) -> Intent:
        """Write an intent down; it takes the place of the query's last one."""
        intent = Intent(query, batch, streams, rows, int(time.time() * 1000))
        self._save(intent)
        return intent

    def finish(self, intent: Intent) -> None:
        """Its rows are in the table."""
        self._save(replace(intent, done=True))

    def _save(self, intent: Intent) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        body = {
            "query": intent.query,
            "batch": intent.batch,
            "streams": list(intent.streams),
            "rows": intent.rows,
            "opened_ms": intent.opened_ms,
            "done": intent.done,
        }
        sealed.save(self.path(intent.query), body)
