"""A client of groups that need not do as it should, and a neighbour in the same shard that must not notice."""

from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

from tests.doors.kafka import Client, Door, batch_of, with_door
from tests.doors.transport import RecordingLog

from penstock.engine.coordination.internal_topics import shard_of
from penstock.engine.groups.classic_requests import GroupLimits
from penstock.engine.groups.groups import GroupSettings
from penstock.net import connection as connection_module
from penstock.protocols.kafka import session as session_module

OK, UNKNOWN_TOPIC, TOO_LARGE, GENERATION, INCONSISTENT, BAD_GROUP, UNKNOWN_MEMBER = 0, 3, 12, 22, 23, 24, 25
BAD_SESSION, REBALANCE, BAD_REQUEST, POLICY, NON_EMPTY, NOT_FOUND = 26, 27, 42, 44, 68, 69
ID_REQUIRED, FULL, FENCED_INSTANCE, SUBSCRIBED, FENCED_EPOCH, UNRELEASED = 79, 81, 82, 86, 110, 111
BAD_ASSIGNOR, STALE_EPOCH, BAD_REGEX = 112, 113, 128
LONG = "x" * 30_000
SHARDS = 16
SESSION_MS = 30_000
METADATA = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"  # a subscription to topic t


def names_beside(group_id: str, prefix: str) -> list[str]:
    """Names that live in the shard of a group."""
    wanted = shard_of(group_id, SHARDS)
    return [name for name in (f"{prefix}{number}" for number in range(2000)) if shard_of(name, SHARDS) == wanted]


NEIGHBOUR = names_beside("g", "neighbour-")[0]


def run(body: Callable[[Door, Client], Awaitable[None]], classic: GroupLimits | None = None) -> None:
    """With a neighbour in the same shard, a member before and after; no request may fail by a mistake of ours."""

    async def main(door: Door) -> None:
        door.engine.groups._settings = GroupSettings(classic=classic or GroupLimits())
        await door.topic("t", 2)
        neighbour = await door.client()
        member = await Member.of(neighbour, NEIGHBOUR, session_ms=1_800_000)
        await body(door, await door.client())
        begun = door.clock.monotonic()
        assert await member.heartbeat() == OK
        assert await commit(neighbour, NEIGHBOUR, member.member_id, member.generation) == OK
        assert (await neighbour.produce(batch_of(b"x")))["error_code"] == OK
        assert door.clock.monotonic() - begun < 1

    log = RecordingLog()
    with patch.object(connection_module, "log_", log), patch.object(session_module, "log_", log):
        with_door(main)
    assert not log.bugs, log.bugs[0]


async def join(client: Client, group_id: str = "g", version: int = 9, **fields: Any) -> dict[str, Any]:
    return await client.ask("join_group", version, **join_fields(group_id, **fields))


def join_fields(group_id: str = "g", **fields: Any) -> dict[str, Any]:
    usual = {
        "session_timeout": SESSION_MS, "rebalance_timeout": 60_000, "member_id": "", "group_instance_id": None,
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": METADATA}],
    }  # fmt: skip
    return {"group_id": group_id, **usual, **fields}


class Member:
    """Somebody who is in a group by the rules."""

    def __init__(self, client: Client, group_id: str) -> None:
        self.client, self.group_id = client, group_id
        self.member_id, self.generation = "", -1
        self.instance_id: str | None = None

    @classmethod
    async def of(
        cls, client: Client, group_id: str = "g", *, session_ms: int = SESSION_MS, instance_id: str | None = None
    ) -> "Member":
        made = cls(client, group_id)
        made.instance_id = instance_id
        fields: dict[str, Any] = {"session_timeout": session_ms, "group_instance_id": instance_id}
        answer = await join(client, group_id, **fields)
        if answer["error_code"] == ID_REQUIRED:
            answer = await join(client, group_id, member_id=answer["member_id"], **fields)
        assert answer["error_code"] == OK
        made.member_id, made.generation = answer["member_id"], answer["generation_id"]
        assert await made.sync() == OK
        return made

    async def sync(self, *assignments: tuple[str, bytes], **fields: Any) -> int:
        given = [{"member_id": member_id, "assignment": data} for member_id, data in assignments]
        usual = {
            "group_id": self.group_id, "generation_id": self.generation, "member_id": self.member_id,
            "group_instance_id": self.instance_id, "protocol_type": "consumer", "protocol_name": "range",
        }  # fmt: skip
        answer = await self.client.ask("sync_group", 5, **{**usual, "assignments": given, **fields})
        code: int = answer["error_code"]
        return code

    async def heartbeat(self, **fields: Any) -> int:
        usual = {
            "group_id": self.group_id, "generation_id": self.generation, "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }  # fmt: skip
        code: int = (await self.client.ask("heartbeat", 4, **{**usual, **fields}))["error_code"]
        return code

    async def leave(self, **fields: Any) -> int:
        leaving = {"member_id": self.member_id, "group_instance_id": self.instance_id, **fields}
        answer = await self.client.ask("leave_group", 5, group_id=self.group_id, members=[leaving])
        assert answer["error_code"] == OK
        code: int = answer["members"][0]["error_code"]
        return code


async def commit(
    client: Client, group_id: str = "g", member_id: str = "", generation: int = -1, version: int = 9, **fields: Any
) -> int:
    row = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    row |= {name: fields.pop(name) for name in list(fields) if name in row}
    answer = await client.ask(
        "offset_commit", version, group_id=group_id, member_id=member_id, generation_id_or_member_epoch=generation,
        topics=[{"name": "t", "partitions": [row]}], **fields,
    )  # fmt: skip
    code: int = answer["topics"][0]["partitions"][0]["error_code"]
    return code


async def beat(client: Client, group_id: str = "c", member_id: str = "m", epoch: int = 0, **fields: Any) -> Any:
    usual: dict[str, Any] = {"rebalance_timeout": -1, "subscribed_topic_names": None, "topic_partitions": None}
    if epoch == 0:
        usual = {"rebalance_timeout": 1000, "subscribed_topic_names": ("t",), "topic_partitions": ()}
    return await client.ask(
        "consumer_group_heartbeat", 1, group_id=group_id, member_id=member_id, member_epoch=epoch, **{**usual, **fields}
    )


async def share_beat(client: Client, group_id: str = "s", member_id: str = "m", epoch: int = 0, **fields: Any) -> Any:
    usual: dict[str, Any] = {"rack_id": None, "subscribed_topic_names": ("t",) if epoch == 0 else None}
    return await client.ask(
        "share_group_heartbeat", 1, group_id=group_id, member_id=member_id, member_epoch=epoch, **{**usual, **fields}
    )


async def fetch_all(client: Client, group_id: str, version: int = 9) -> dict[str, Any]:
    (answer,) = (await client.ask("offset_fetch", version, groups=[{"group_id": group_id, "topics": None}]))["groups"]
    return answer
