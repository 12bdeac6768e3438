"""Every key that is kept in the metadata store, and what is under it.

cluster                     which cluster this is
secret                      by what the cluster's secret is known, without telling it; none where certificates will do
features                    the feature level of the cluster: what every broker in it can, and may be asked for
topics/{name}               a topic: its id, partitions and settings; that the key is there makes the topic exist
partitions/{topic id}/{n}   a partition: who holds, follows and leads it, in which epoch; written before its topic
deleted/{topic id}          a topic that is gone, and the brokers that may still have files of it
brokers/{id}                a broker that is there, where it listens; bound to a lease
members/{id}                a broker that was ever there: how often it has started
admitted/{id}               the start of a broker after which it may lead and be in sync
ends/{topic id}/{n}/{id}    how far the log of a broker goes that started uncleanly, when no clean one is left
controller                  the broker that elects; bound to its lease; the key's revision is the controller's epoch
configs/{id}                settings of a broker that were changed while it ran; of all brokers under `default`
groups/{group}              what is set for a group; the name is quoted as in URLs
producer-ids                the first producer id not given out
sec/...                     users, rules, API keys: see security/paths.py

A single broker keeps `cluster`, `topics/`, `producer-ids`, `groups/` and `sec/`, and `creating/`, `growing/`,
`removing/`: what it was about to do when it stopped (engine/topics.py).
"""

from uuid import UUID

from penstock.engine.groups.group_configs import GROUPS
from penstock.engine.topics import TOPICS

__all__ = ["GROUPS", "TOPICS"]
CLUSTER = "cluster"
SECRET = "secret"  # noqa: S105 - the name of a key
FEATURES = "features"
PARTITIONS = "partitions/"
DELETED = "deleted/"
BROKERS = "brokers/"
MEMBERS = "members/"
ADMITTED = "admitted/"
CONTROLLER = "controller"
ENDS = "ends/"
CONFIGS = "configs/"
ALL_BROKERS = "default"
EVERYTHING = ""


def partition_key(topic_id: UUID, index: int) -> str:
    return f"{PARTITIONS}{topic_id}/{index:06d}"


def read_partition_key(key: str) -> tuple[UUID, int]:
    topic_id, _, index = key.removeprefix(PARTITIONS).partition("/")
    return UUID(topic_id), int(index)


def broker_key(broker_id: int) -> str:
    return f"{BROKERS}{broker_id}"


def member_key(broker_id: int) -> str:
    return f"{MEMBERS}{broker_id}"


def admitted_key(broker_id: int) -> str:
    return f"{ADMITTED}{broker_id}"


def config_key(broker_id: int | None) -> str:
    """Of one broker, or of all of them."""
    return f"{CONFIGS}{ALL_BROKERS if broker_id is None else broker_id}"


def end_key(topic_id: UUID, index: int, broker_id: int) -> str:
    return f"{ENDS}{topic_id}/{index:06d}/{broker_id}"


def read_end_key(key: str) -> tuple[UUID, int, int]:
    topic_id, index, broker_id = key.removeprefix(ENDS).split("/")
    return UUID(topic_id), int(index), int(broker_id)
