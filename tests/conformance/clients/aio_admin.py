"""aiokafka's AIOKafkaAdminClient: the oldest versions of each request."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from .admin import SOURCES, TOPIC, Admin, Cluster, Entry
from .aio import run
from .client import ClientError


class AioAdmin(Admin):
    name = "aiokafka"
    can_increment = False

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def create_partitions(self, topic: str, total: int, *, validate_only: bool = False) -> None:
        async def work() -> None:
            async with self._admin() as admin:
                await admin.create_partitions({topic: NewPartitions(total)}, validate_only=validate_only)

        run(work())

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        async def work() -> dict[int, int]:
            wanted = {TopicPartition(topic, partition): RecordsToDelete(at) for partition, at in before.items()}
            async with self._admin() as admin:
                found = await admin.delete_records(wanted)
            return {place.partition: low for place, low in found.items()}

        return run(work())

    def settings(self, name: str, *, kind: int = TOPIC, keys: Sequence[str] | None = None) -> dict[str, Entry]:
        async def work() -> dict[str, Entry]:
            resource = ConfigResource(ConfigResourceType(kind), name, dict.fromkeys(keys) if keys else None)
            async with self._admin() as admin:
                answer = await admin.describe_configs([resource], include_synonyms=True)
            code, message, _kind, _name, entries = answer[0].resources[0]
            if code:
                raise ClientError(code, message)
            return {
                key: Entry(
                    value,
                    SOURCES[source],
                    read_only,
                    sensitive,
                    tuple((other, its_value, SOURCES[its_source]) for other, its_value, its_source in synonyms),
                )
                for key, value, read_only, source, sensitive, synonyms in entries
            }

        return run(work())

    def replace(self, topic: str, config: Mapping[str, str]) -> None:
        async def work() -> None:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(config))
            async with self._admin() as admin:
                answer = await admin.alter_configs([resource])
            code, message, _kind, _name = answer[0].resources[0]
            if code:
                raise ClientError(code, message)

        run(work())

    def cluster(self) -> Cluster:
        async def work() -> Cluster:
            async with self._admin() as admin:
                found = await admin.describe_cluster()
            nodes = tuple((each["node_id"], each["host"], each["port"]) for each in found["brokers"])
            return Cluster(found["cluster_id"], found["controller_id"], nodes)

        return run(work())

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()
