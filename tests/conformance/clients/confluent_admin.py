"""confluent-kafka's AdminClient."""

from collections.abc import Mapping, Sequence

from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    ResourceType,
)

from .admin import BROKER, TOPIC, Admin, Change, Cluster, Entry
from .client import DEADLINE_S
from .confluent import QUIET, settle

_RESOURCES = {TOPIC: ResourceType.TOPIC, BROKER: ResourceType.BROKER}


class ConfluentAdmin(Admin):
    name = "confluent"
    filters_keys = False
    all_synonyms = False

    def __init__(self, bootstrap: str) -> None:
        # Kept for good: a future of a collected AdminClient fails instead of waiting.
        self.client = AdminClient({"bootstrap.servers": bootstrap}, logger=QUIET)

    def create_partitions(self, topic: str, total: int, *, validate_only: bool = False) -> None:
        wanted = [NewPartitions(topic, total)]
        settle(self.client.create_partitions(wanted, operation_timeout=DEADLINE_S, validate_only=validate_only)[topic])

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        places = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        futures = self.client.delete_records(places, request_timeout=DEADLINE_S)
        return {place.partition: int(settle(future).low_watermark) for place, future in futures.items()}

    def settings(self, name: str, *, kind: int = TOPIC, keys: Sequence[str] | None = None) -> dict[str, Entry]:
        assert keys is None
        resource = ConfigResource(_RESOURCES[kind], name)
        found = settle(self.client.describe_configs([resource], request_timeout=DEADLINE_S)[resource])
        return {key: _entry(each) for key, each in found.items()}

    def alter(self, name: str, *changes: Change, kind: int = TOPIC, validate_only: bool = False) -> None:
        entries = [
            ConfigEntry(each.name, each.value, incremental_operation=AlterConfigOpType[each.operation])
            for each in changes
        ]
        resource = ConfigResource(_RESOURCES[kind], name, incremental_configs=entries)
        futures = self.client.incremental_alter_configs(
            [resource], validate_only=validate_only, request_timeout=DEADLINE_S
        )
        settle(futures[resource])

    def replace(self, topic: str, config: Mapping[str, str]) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic, set_config=dict(config))
        settle(self.client.alter_configs([resource], request_timeout=DEADLINE_S)[resource])

    def cluster(self) -> Cluster:
        found = settle(self.client.describe_cluster(request_timeout=DEADLINE_S))
        nodes = tuple((each.id, each.host, each.port) for each in found.nodes)
        return Cluster(found.cluster_id, found.controller.id, nodes)


def _entry(found: ConfigEntry) -> Entry:
    return Entry(
        found.value,
        ConfigSource(found.source).name,
        found.is_read_only,
        found.is_sensitive,
        tuple((each.name, each.value, ConfigSource(each.source).name) for each in found.synonyms.values()),
        is_default=found.is_default,
    )
