"""A regular expression stands for the topics that its member may see, and what is told of its group has no others."""

from typing import Any
from uuid import UUID

import pytest

from tests.conformance.wire import Wire

from .brokers import ADMIN, call, log_in
from .conftest import House
from .model import Model, Need
from .questions import NO_GROUP
from .rules import SUPER, THEMES, all_rules

HERE = "127.0.0.1"


@pytest.mark.parametrize("theme", THEMES)
def test_members_get_what_they_may_see_and_no_more_is_told(theme: str, house: House) -> None:
    model = Model(all_rules(), [SUPER])
    with log_in(house.addresses.kafka, ADMIN) as admin:
        call(admin, "find_coordinator", 4, key_type=0, coordinator_keys=[NO_GROUP])
        for user in THEMES[theme]:
            seen = {name for name in house.world.ids if model.may(user, HERE, Need("DESCRIBE", "topic", name))}
            with log_in(house.addresses.kafka, user) as wire:
                code, got = _join(wire, user)
                described = call(wire, "consumer_group_describe", 1, group_ids=[NO_GROUP])["groups"][0]
                _beat(wire, user, member_epoch=-1)
            hidden = [name for name in house.world.ids if name not in seen and f"{name}'" in repr(described)]
            assert not hidden, f"{user} is told of {hidden}: {described['error_message']}"
            joins = model.may(user, HERE, Need("READ", "group", NO_GROUP))
            assert (code, got) == ((0, {house.world.ids[name] for name in seen}) if joins else (30, set())), user
            looks = model.may(user, HERE, Need("DESCRIBE", "group", NO_GROUP))
            assert not joins or (described["error_code"], _topics(described)) == ((0, seen) if looks else (30, set()))
        call(admin, "delete_groups", 2, groups_names=[NO_GROUP])


def _join(wire: Wire, user: str) -> tuple[int, set[UUID]]:
    """The error code, and the topics that a new member gets something of."""
    joining = {"member_epoch": 0, "rebalance_timeout": 60_000, "subscribed_topic_regex": ".*", "topic_partitions": ()}
    told = _beat(wire, user, **joining)
    given = told["assignment"] or {"topic_partitions": ()}
    return told["error_code"], {topic["topic_id"] for topic in given["topic_partitions"]}


def _beat(wire: Wire, user: str, **values: Any) -> dict[str, Any]:
    return call(wire, "consumer_group_heartbeat", 1, group_id=NO_GROUP, member_id=user, **values)


def _topics(described: dict[str, Any]) -> set[str]:
    parts = (member["target_assignment"]["topic_partitions"] for member in described["members"])
    return {topic["topic_name"] for part in parts for topic in part}
