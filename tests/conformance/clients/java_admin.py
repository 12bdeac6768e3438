"""The Java Admin client, in the JVM of the Java client."""

from collections.abc import Mapping, Sequence
from typing import Any

from .admin import TOPIC, Admin, Change, Cluster, Entry
from .java import JavaClient


class JavaAdmin(Admin):
    name = "java"
    filters_keys = False
    can_replace = False
    knows_groups = True

    def __init__(self, client: JavaClient) -> None:
        self._client = client

    def create_partitions(self, topic: str, total: int, *, validate_only: bool = False) -> None:
        self._client.ask("createPartitions", topic=topic, total=total, validateOnly=validate_only)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        return dict(self._client.ask("deleteRecords", topic=topic, before=list(before.items()))["low"])

    def settings(
        self, name: str, *, kind: int = TOPIC, keys: Sequence[str] | None = None, details: bool = True
    ) -> dict[str, Entry]:
        assert keys is None
        found = self._client.ask("describeConfigs", type=kind, name=name, details=details)["entries"]
        return {
            key: Entry(
                each["value"],
                each["source"],
                each["readOnly"],
                each["sensitive"],
                tuple((other, value, source) for other, value, source in each["synonyms"]),
                each["default"],
                each["type"],
                each["documentation"],
            )
            for key, each in found.items()
        }

    def alter(self, name: str, *changes: Change, kind: int = TOPIC, validate_only: bool = False) -> None:
        packed = [(each.operation, each.name, each.value) for each in changes]
        self._client.ask("alterConfigs", type=kind, name=name, changes=packed, validateOnly=validate_only)

    def cluster(self) -> Cluster:
        found = self._client.ask("describeCluster")
        nodes = tuple((node, host, port) for node, host, port, _fenced in found["nodes"])
        return Cluster(found["clusterId"], found["controller"], nodes)

    def ask(self, verb: str, **details: Any) -> dict[str, Any]:
        """A command only the Java client has; see java/AdminJudge.java."""
        return self._client.ask(verb, **details)
