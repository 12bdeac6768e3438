"""kafka-python's KafkaAdminClient."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

from .admin import TOPIC, Admin, Change, Cluster, Entry
from .client import DEADLINE_S, NO_MATCH, ClientError

T = TypeVar("T")
_TIMEOUT_MS = int(DEADLINE_S * 1000)


class KafkaPythonAdmin(Admin):
    name = "kafka-python"
    describe_errors = False
    knows_groups = True

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._opened: KafkaAdminClient | None = None

    @property
    def client(self) -> KafkaAdminClient:
        if self._opened is None:
            self._opened = KafkaAdminClient(bootstrap_servers=self._bootstrap, request_timeout_ms=_TIMEOUT_MS)
        return self._opened

    def create_partitions(self, topic: str, total: int, *, validate_only: bool = False) -> None:
        _try(lambda: self.client.create_partitions({topic: total}, _TIMEOUT_MS, validate_only))

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        places = {TopicPartition(topic, partition): offset for partition, offset in before.items()}
        found = _try(lambda: self.client.delete_records(places, _TIMEOUT_MS))
        return {place.partition: each["low_watermark"] for place, each in found.items()}

    def settings(self, name: str, *, kind: int = TOPIC, keys: Sequence[str] | None = None) -> dict[str, Entry]:
        resource = ConfigResource(ConfigResourceType(kind), name, None if keys is None else list(keys))
        found = _try(lambda: self.client.describe_configs([resource], include_synonyms=True, config_filter="all"))
        return {
            key: Entry(
                each["value"],
                each["config_source"],
                each["read_only"],
                each["is_sensitive"],
                tuple((synonym["name"], synonym["value"], synonym["source"]) for synonym in each["synonyms"]),
                kind=each["config_type"],
            )
            for key, each in found[ConfigResourceType(kind).name.lower()][name].items()
        }

    def alter(self, name: str, *changes: Change, kind: int = TOPIC, validate_only: bool = False) -> None:
        config = {each.name: (AlterConfigOp[each.operation], each.value) for each in changes}
        self._alter(ConfigResource(ConfigResourceType(kind), name, config), incremental=True, check=validate_only)

    def replace(self, topic: str, config: Mapping[str, str]) -> None:
        # This client adds the settings the caller left out, so it never resets one here.
        self._alter(ConfigResource(ConfigResourceType.TOPIC, topic, dict(config)), incremental=False, check=False)

    def _alter(self, resource: ConfigResource, *, incremental: bool, check: bool) -> None:
        # Names it would refuse by itself are the broker's to refuse.
        done = _try(
            lambda: self.client.alter_configs(
                [resource], validate_only=check, raise_on_unknown=False, incremental=incremental
            )
        )
        said = done[resource.resource_type.name.lower()][resource.name]
        if said != "OK":
            number = re.match(r"\[Error (-?\d+)\]", said)
            raise ClientError(int(number.group(1)) if number else NO_MATCH, said)

    def cluster(self) -> Cluster:
        found = _try(self.client.describe_cluster)
        nodes = tuple((each["broker_id"], each["host"], each["port"]) for each in found["brokers"])
        return Cluster(found["cluster_id"], found["controller_id"], nodes)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


def _try(work: Callable[[], T]) -> T:
    try:
        return work()
    except KafkaError as failure:
        raise ClientError(getattr(failure, "errno", NO_MATCH), repr(failure)) from failure
