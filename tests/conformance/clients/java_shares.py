"""Java's KafkaShareConsumer in the JVM of the Java client; one that is doomed has a JVM of its own."""

import base64
import itertools

from .java import JavaClient
from .shares import ShareMember, Taken

_numbers = itertools.count()


class JavaShareMember(ShareMember):
    name = "java"
    renews = True

    def __init__(
        self, client: JavaClient, group: str, topic: str, mode: str, most: int = 500, *, limit: bool = False
    ) -> None:
        self._client = client
        self._member = f"share member {next(_numbers)}"
        config = {
            "group.id": group,
            "share.acknowledgement.mode": mode,
            "share.acquire.mode": "record_limit" if limit else "batch_optimized",
            "max.poll.records": str(most),
            "fetch.max.wait.ms": "200",
        }
        self._client.ask("shareJoin", member=self._member, config=config, topics=[topic])

    def poll(self, seconds: float) -> list[Taken]:
        found = self._client.ask("sharePoll", member=self._member, wait=int(seconds * 1000))
        return [
            Taken(partition, offset, base64.b64decode(value), deliveries)
            for partition, offset, value, deliveries in found["records"]
        ]

    def acknowledge(self, taken: Taken, kind: int) -> None:
        place = {"partition": taken.partition, "offset": taken.offset}
        self._client.ask("shareAcknowledge", member=self._member, type=kind, **place)

    def commit(self) -> dict[int, int]:
        found = self._client.ask("shareCommit", member=self._member)
        return dict(found["results"])

    def leave(self) -> None:
        self._client.ask("shareLeave", member=self._member)

    def crash(self) -> None:
        self._client.kill()
