"""confluent-kafka's ShareConsumer (librdkafka); one that is doomed runs in a process of its own."""

import json
import subprocess
import sys
from typing import Any

from confluent_kafka import AcknowledgeType, ShareConsumer

from tests.peers.kafka import ROOT

from .client import DEADLINE_S
from .shares import ShareMember, Taken


class ConfluentShareMember(ShareMember):
    name = "confluent"
    renews = False

    def __init__(self, bootstrap: str, group: str, topic: str, mode: str, most: int = 500, **more: Any) -> None:
        """With `more` settings of librdkafka's, underscores for their dots."""
        self._topic = topic
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "share.acknowledgement.mode": mode,
                "max.poll.records": most,
                "fetch.wait.max.ms": 200,
                **{name.replace("_", "."): value for name, value in more.items()},
            }
        )
        self._consumer.subscribe([topic])

    def poll(self, seconds: float) -> list[Taken]:
        taken = []
        for each in self._consumer.poll(seconds):
            assert each.error() is None, each.error()
            taken.append(Taken(each.partition(), each.offset(), each.value(), each.delivery_count()))
        return taken

    def acknowledge(self, taken: Taken, kind: int) -> None:
        self._consumer.acknowledge_offset(self._topic, taken.partition, taken.offset, AcknowledgeType(kind))

    def commit(self) -> dict[int, int]:
        found = self._consumer.commit_sync(DEADLINE_S)
        return {place.partition: 0 if failure is None else failure.args[0].code() for place, failure in found.items()}

    def leave(self) -> None:
        self._consumer.close()

    def crash(self) -> None:
        raise NotImplementedError("it lives in this process")


class DoomedShareMember(ShareMember):
    """The same in a process that can be killed."""

    def __init__(self, *arguments: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.clients.confluent_shares", json.dumps(arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def poll(self, seconds: float) -> list[Taken]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        rows = json.loads(self._process.stdout.readline())
        return [Taken(partition, offset, value.encode(), count) for partition, offset, value, count in rows]

    def acknowledge(self, taken: Taken, kind: int) -> None:
        raise NotImplementedError

    def commit(self) -> dict[int, int]:
        raise NotImplementedError

    def leave(self) -> None:
        self.crash()

    def crash(self) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    member = ConfluentShareMember(*json.loads(sys.argv[1]))
    for line in sys.stdin:
        taken = [
            (each.partition, each.offset, each.value.decode(), each.deliveries) for each in member.poll(float(line))
        ]
        print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    main()
