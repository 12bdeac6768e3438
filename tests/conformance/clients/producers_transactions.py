"""The producers of one case with every client, abandoned or not; they are closed when it ends."""

import contextlib
from collections.abc import Mapping
from types import TracebackType

from .aio_transactions import AioTransactions
from .client import Client
from .confluent_transactions import ConfluentTransactions
from .java import JavaClient
from .java_transactions import JavaTransactions
from .kafka_python_transactions import KafkaPythonTransactions
from .transactions import TIMEOUT_MS, TransactionalProducer, Transactions

TRANSACTIONS: dict[str, type[Transactions]] = {
    each.name: each for each in (ConfluentTransactions, KafkaPythonTransactions, AioTransactions, JavaTransactions)
}


class Producers:
    """Opens transactional producers of one client."""

    def __init__(self, name: str, bootstrap: str, clients: Mapping[str, Client]) -> None:
        if name == JavaTransactions.name:
            java = clients["java"]
            assert isinstance(java, JavaClient)
            self.client: Transactions = JavaTransactions(java)
        else:
            self.client = TRANSACTIONS[name](bootstrap)  # type: ignore[call-arg]
        self._opened: list[TransactionalProducer] = []

    def open(self, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS) -> TransactionalProducer:
        """A producer ready to begin."""
        producer = self.client.open(transactional_id, timeout_ms)
        self._opened.append(producer)
        producer.init()
        return producer

    def __enter__(self) -> "Producers":
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        for each in self._opened:
            # What a fenced or abandoned one has to say at its end is no matter of the case.
            with contextlib.suppress(Exception):
                each.close()
