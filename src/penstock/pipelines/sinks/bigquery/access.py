"""Which table, and how it is reached: Google's clients for REST and gRPC, with an account's credentials or, over plain
`http://`, with none."""

import functools
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.pipelines.errors import SinkError

_SCOPES: Final = ("https://www.googleapis.com/auth/bigquery", "https://www.googleapis.com/auth/bigquery.insertdata")


@dataclass(frozen=True, slots=True)
class Access:
    """A table and the way to it; it travels to the tasks, which open connections of their own.

    Attributes:
        credentials: a service account's file, the same path on every machine; "": Application Default Credentials.
        endpoint, grpc_endpoint: URLs in place of Google's; `http://` is plain and without credentials.
        timeout_s: how long an answer is waited for.
    """

    project: str
    dataset: str
    table: str
    credentials: str = ""
    endpoint: str = ""
    grpc_endpoint: str = ""
    timeout_s: float = 60.0

    def __str__(self) -> str:
        return f"{self.project}.{self.dataset}.{self.table}"

    @property
    def path(self) -> str:
        """The table as the Storage Write API names it."""
        return f"projects/{self.project}/datasets/{self.dataset}/tables/{self.table}"

    def open_rest(self) -> Any:
        """Google's `bigquery.Client`. Its types are half told, as are those of the other one: hence Any."""
        from google.api_core.client_options import ClientOptions
        from google.cloud.bigquery import Client

        options = ClientOptions(api_endpoint=self.endpoint) if self.endpoint else None
        return Client(self.project, self._credentials(self.endpoint), client_options=options)

    def open_grpc(self) -> Any:
        """Google's `BigQueryWriteClient`."""
        from google.api_core.client_options import ClientOptions
        from google.cloud.bigquery_storage_v1 import BigQueryWriteClient
        from google.cloud.bigquery_storage_v1.services.big_query_write.transports import BigQueryWriteGrpcTransport

        if _is_plain(self.grpc_endpoint):
            import grpc

            unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
            channel = grpc.insecure_channel(urlsplit(self.grpc_endpoint).netloc, options=unlimited)
            transport = BigQueryWriteGrpcTransport(channel=channel)
            return BigQueryWriteClient(transport=transport)  # type: ignore[no-untyped-call]
        host = urlsplit(self.grpc_endpoint).netloc
        options = ClientOptions(api_endpoint=host) if host else None
        credentials = self._credentials(self.grpc_endpoint)
        return BigQueryWriteClient(credentials=credentials, client_options=options)  # type: ignore[no-untyped-call]

    def _credentials(self, endpoint: str) -> Any:
        from google.auth.credentials import AnonymousCredentials

        if not _is_plain(endpoint):
            return _load_credentials(self.credentials)
        return AnonymousCredentials()  # type: ignore[no-untyped-call]


def parse_table(text: str, sink: str) -> tuple[str, str, str]:
    """Project, dataset and table; a project may hold dots and a colon (`example.com:project`)."""
    parts = text.rsplit(".", 2)
    if len(parts) != 3 or not all(parts):
        raise SinkError(f"sink {sink}: bigquery is {text!r}; write project.dataset.table")
    return parts[0], parts[1], parts[2]


def _is_plain(endpoint: str) -> bool:
    return endpoint.startswith("http://")


@functools.lru_cache(maxsize=8)
def _load_credentials(file: str) -> Any:
    """Kept in the process: a token serves many micro-batches, and fetching one is a request."""
    if not file:
        import google.auth

        return google.auth.default(scopes=_SCOPES)[0]
    from google.oauth2.service_account import Credentials

    try:
        return Credentials.from_service_account_file(file, scopes=_SCOPES)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise SinkError(f"credentials {file}: {error}. Name the JSON file of a service account") from None
