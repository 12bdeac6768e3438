"""The Java client's transactional producers, in the JVM of the Java client: the newest version of the protocol."""

import base64
import itertools
from collections.abc import Mapping
from typing import Any

from .client import DEADLINE_S, ClientError
from .groups import Member, Place
from .java import JavaClient
from .java_groups import JavaMember
from .transactions import TIMEOUT_MS, Aborted, Fenced, TransactionalProducer, Transactions

_numbers = itertools.count()


class JavaProducer(TransactionalProducer):
    def __init__(self, client: JavaClient, transactional_id: str, timeout_ms: int) -> None:
        self._client = client
        self._name = f"producer {next(_numbers)}"
        config = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": str(timeout_ms),
            "max.block.ms": str(int(DEADLINE_S * 1000)),
            "request.timeout.ms": str(TIMEOUT_MS // 2),
            "delivery.timeout.ms": str(TIMEOUT_MS),
        }
        self._ask("openProducer", config=config)

    def _ask(self, verb: str, **details: Any) -> dict[str, Any]:
        try:
            return self._client.ask(verb, producer=self._name, **details)
        except ClientError as failure:
            text = str(failure)
            if "ProducerFenced" in text or "InvalidProducerEpoch" in text:
                raise Fenced(failure.code, text) from failure
            if "TransactionAbort" in text or "Abortable" in text or "CommitFailed" in text:
                raise Aborted(failure.code, text) from failure
            raise

    def init(self) -> None:
        self._ask("initTransactions")

    def begin(self) -> None:
        self._ask("beginTransaction")

    def send(self, topic: str, partition: int, *values: bytes) -> None:
        packed = [base64.b64encode(each).decode() for each in values]
        self._ask("send", topic=topic, partition=partition, values=packed)

    def send_offsets(self, offsets: Mapping[Place, int], member: Member) -> None:
        assert isinstance(member, JavaMember)
        self._send_offsets(offsets, member.name)

    def send_offsets_as(self, offsets: Mapping[Place, int], group: str, generation: int, member_id: str) -> None:
        """As a member that the group may not know."""
        self._send_offsets(offsets, [group, generation, member_id])

    def send_receipts(self, receipts: Mapping[Place, str], group: str) -> None:
        """Of messages of a queue, as metadata of an offset that says nothing; in the name of nobody in the group."""
        offsets = [(*place, 0, text) for place, text in receipts.items()]
        self._ask("sendOffsets", offsets=offsets, group=[group, -1, ""])

    def _send_offsets(self, offsets: Mapping[Place, int], group: Any) -> None:
        self._ask("sendOffsets", offsets=[(*place, offset, "") for place, offset in offsets.items()], group=group)

    def commit(self) -> None:
        self._ask("commitTransaction")

    def abort(self) -> None:
        self._ask("abortTransaction")

    def close(self) -> None:
        self._ask("closeProducer")


class JavaTransactions(Transactions):
    name = "java"
    reader = "java-range"

    def __init__(self, client: JavaClient) -> None:
        self._client = client

    def open(self, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> JavaProducer:
        return JavaProducer(self._client, transactional_id, timeout_ms)

    def end(self, topic: str, partition: int, isolation: str) -> int:
        return int(self.ask("latestOffset", topic=topic, partition=partition, isolation=isolation)["offset"])

    def ask(self, verb: str, **details: Any) -> dict[str, Any]:
        """A command of java/TransactionJudge.java with all it answers."""
        return self._client.ask(verb, **details)
