"""The end of pending streams, seen from the driver: all of them become rows of the table at once, or none."""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Final

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks.bigquery.access import Access
from penstock.pipelines.sinks.bigquery.trouble import Backoff, persist

_COMMITTED: Final = "STREAM_ALREADY_COMMITTED"
_GONE: Final = ("STREAM_NOT_FOUND", "INVALID_STREAM_STATE", "TABLE_NOT_FOUND")
_PASSING: Final = "KMS_SERVICE_ERROR"


class Outcome(Enum):
    COMMITTED = auto()
    """The rows are in the table."""
    GONE = auto()
    """BigQuery does not know the streams, or has thrown their rows away."""


def commit(client: Any, access: Access, streams: Sequence[str], backoff: Backoff) -> Outcome:
    """Commit finalized streams; asked again, it says what became of them the first time.

    Raises:
        SinkUnavailable: nobody knows what became of them.
        SinkError: they can be neither committed nor given up.
    """
    from google.api_core.exceptions import GoogleAPICallError
    from google.cloud.bigquery_storage_v1 import types

    request = types.BatchCommitWriteStreamsRequest(parent=access.path, write_streams=streams)

    def ask() -> list[Any]:
        try:
            answer = client.batch_commit_write_streams(request, retry=None, timeout=access.timeout_s)
        except GoogleAPICallError as error:
            if found := storage_errors(error):
                return found
            raise
        return [] if "commit_time" in answer else list(answer.stream_errors)

    errors = persist(ask, backoff, f"committing {len(streams)} streams of table {access}")
    codes = {each.code.name for each in errors}
    if codes <= {_COMMITTED}:
        return Outcome.COMMITTED
    if codes <= set(_GONE):
        return Outcome.GONE
    text = "; ".join(f"{each.entity}: {each.code.name} {each.error_message}" for each in errors)
    if _PASSING in codes:
        raise SinkUnavailable(f"committing streams of table {access} failed: {text}")
    raise SinkError(f"committing streams of table {access} failed: {text}")


def is_committed(client: Any, access: Access, stream: str, backoff: Backoff) -> bool | None:
    """Whether a stream's rows are in the table; None: BigQuery does not know the stream."""
    from google.api_core.exceptions import NotFound

    def ask() -> bool | None:
        try:
            answer = client.get_write_stream(name=stream, retry=None, timeout=access.timeout_s)
        except NotFound:
            return None
        return "commit_time" in answer

    return persist(ask, backoff, f"asking for a stream of table {access}")


def storage_errors(error: Any) -> list[Any]:
    """The `StorageError`s in the details of an error."""
    from google.cloud.bigquery_storage_v1.types import StorageError

    plain = StorageError.pb()
    found = []
    for detail in error.details:
        if hasattr(detail, "Is") and detail.Is(plain.DESCRIPTOR):
            message = plain()
            detail.Unpack(message)
            found.append(StorageError.wrap(message))
    return found
