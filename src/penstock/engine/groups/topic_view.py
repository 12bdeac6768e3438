"""The topics as groups see them: names, ids and partition counts, without the internal ones."""

from collections.abc import Sequence
from uuid import UUID

from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS
from penstock.engine.groups.known_topics import TopicInfo
from penstock.engine.topics import Topic, Topics


class EngineTopics:
    """A `TopicView` of the engine's topics."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._names: tuple[str, ...] = ()
        self._names_at = -1

    @property
    def revision(self) -> int:
        return self._topics.revision

    def get(self, name: str) -> TopicInfo | None:
        return _info(self._topics.get(name))

    def get_by_id(self, topic_id: UUID) -> TopicInfo | None:
        return _info(self._topics.get_by_id(topic_id))

    def names(self) -> Sequence[str]:
        if self._names_at != self._topics.revision:
            self._names = tuple(topic.name for topic in self._topics if topic.name not in INTERNAL_TOPICS)
            self._names_at = self._topics.revision
        return self._names


def _info(topic: Topic | None) -> TopicInfo | None:
    return TopicInfo(topic.name, topic.topic_id, len(topic.partitions)) if topic is not None else None
