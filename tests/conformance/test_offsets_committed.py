"""Offsets committed by every client's consumers, fetched back, changed and deleted by every admin."""

from collections.abc import Callable, Iterator

import pytest
from kio.schema.errors import ErrorCode

from .clients import ClientError
from .clients.groups import Committed, GroupAdmin, wait_until
from .clients.java_groups import JavaGroupAdmin
from .clients.members_groups import GROUP_ADMINS, PLAIN, Members, places_of, settle
from .conftest import Judges, fresh_name
from .records import Record
from .wire import Wire

OFFSET_METADATA_TOO_LARGE = 12
UNKNOWN_MEMBER_ID = 25
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
GROUP_SUBSCRIBED_TO_TOPIC = 86
METADATA = "reached in the morning, ü"


@pytest.fixture
def admin(members: Members, request: pytest.FixtureRequest) -> Iterator[GroupAdmin]:
    opened = members.admin(request.param)
    yield opened
    opened.close()


def admins(wanted: Callable[[type[GroupAdmin]], bool] = lambda _: True) -> pytest.MarkDecorator:
    """One case per admin client that can do it."""
    able = [each for each in GROUP_ADMINS if wanted(each)]
    return pytest.mark.parametrize("admin", able, indirect=True, ids=[each.name for each in able])


@pytest.fixture
def filled(judges: Judges, new_topic: Callable[..., str]) -> str:
    """A topic of three partitions with ten records each."""
    topic = new_topic("filled", partitions=3)
    for partition in range(3):
        judges["confluent"].produce(topic, partition, [Record(b"%d:%d" % (partition, n)) for n in range(10)])
    return topic


@pytest.mark.parametrize("flavour", PLAIN)
def test_a_successor_goes_on_where_the_group_was(members: Members, filled: str, flavour: str) -> None:
    group, places = fresh_name("successor"), places_of(filled, 3)
    first = members.join(flavour, group, filled)
    wait_until(lambda: len(first.received) == 30, lambda: f"only {first.values()}")
    wanted = {place: Committed(4 + place[1], METADATA) for place in places}
    first.commit(wanted)
    for place, found in first.committed(*places).items():
        # aiokafka's consumers hand out the offset alone.
        assert found in (wanted[place], Committed(wanted[place].offset))
    members.leave(first)
    second = members.join(flavour, group, filled)
    rest = sorted(b"%d:%d" % (partition, n) for partition in range(3) for n in range(4 + partition, 10))
    wait_until(lambda: len(second.received) >= len(rest), lambda: f"only {second.values()}")
    assert sorted(second.values()) == rest
    second.seek(places[0], second.committed(places[0])[places[0]].offset)
    again = [b"0:%d" % n for n in range(4, 10)]
    wait_until(lambda: len(second.received) >= len(rest + again), lambda: f"only {second.values()}")
    assert second.values()[len(rest) :] == again
    second.commit()
    assert {each.offset for each in second.committed(*places).values()} == {10}


@pytest.mark.parametrize("flavour", PLAIN)
def test_commits_that_nobody_asked_for(members: Members, filled: str, flavour: str) -> None:
    group = fresh_name("auto")
    member = members.join(flavour, group, filled, auto_commit_ms=100)
    place = (filled, 0)
    wait_until(lambda: member.committed(place).get(place, Committed(0)).offset == 10, lambda: member.committed(place))


@pytest.mark.parametrize("flavour", PLAIN)
def test_a_closing_member_commits(members: Members, filled: str, flavour: str) -> None:
    group = fresh_name("closing")
    member = members.join(flavour, group, filled, auto_commit_ms=60_000)
    wait_until(lambda: len(member.received) == 30, lambda: f"only {member.values()}")
    members.leave(member)
    offsets = members.admin(JavaGroupAdmin).offsets(group)
    assert {place: each.offset for place, each in offsets.items()} == dict.fromkeys(places_of(filled, 3), 10)


@pytest.mark.parametrize("flavour", PLAIN)
def test_metadata_has_a_limit(members: Members, filled: str, flavour: str) -> None:
    member = members.join(flavour, fresh_name("limit"), filled)
    settle([member], places_of(filled, 3))
    place = (filled, 0)
    member.commit({place: Committed(1, "m" * 4095)})  # confluent-kafka adds a byte of its own
    with pytest.raises(ClientError) as failure:
        member.commit({place: Committed(2, "m" * 4097)})
    assert failure.value.code == OFFSET_METADATA_TOO_LARGE
    assert member.committed(place)[place].offset == 1


@pytest.mark.parametrize("flavour", PLAIN)
def test_a_reader_without_a_group_protocol_commits_too(members: Members, filled: str, flavour: str) -> None:
    group, place = fresh_name("simple"), (filled, 1)
    member = members.join(flavour, group, places=(place,))
    member.commit({place: Committed(7)})
    assert member.committed(place, (filled, 2)) == {place: Committed(7)}


@admins()
def test_offsets_listed(members: Members, admin: GroupAdmin, filled: str, new_topic: Callable[..., str]) -> None:
    group, other = fresh_name("listed"), new_topic("other")
    member = members.join("java-range", group, places=tuple(places_of(filled, 3)))
    wanted = {(filled, 0): Committed(1, METADATA), (filled, 2): Committed(3, ""), (other, 0): Committed(0, "x")}
    member.commit(wanted)
    if not admin.shows_metadata:
        wanted = {place: Committed(each.offset) for place, each in wanted.items()}
    assert admin.offsets(group) == wanted, "all of them"
    assert admin.offsets(group, (filled, 0), (filled, 1)) == {(filled, 0): wanted[filled, 0]}
    assert admin.offsets(fresh_name("unknown")) == {}
    assert admin.offsets(fresh_name("unknown"), (filled, 0)) == {}


@admins(lambda each: each.can_change_offsets)
def test_offsets_changed(members: Members, admin: GroupAdmin, filled: str) -> None:
    group, places = fresh_name("changed"), places_of(filled, 3)
    admin.alter_offsets(group, {places[0]: 2, places[1]: 8})
    assert {place: each.offset for place, each in admin.offsets(group).items()} == {places[0]: 2, places[1]: 8}
    member = members.join("confluent-range", group, filled, reset="latest")
    settle([member], places)
    wait_until(lambda: len(member.received) == 10, lambda: f"only {member.values()}")
    assert min(each.offset for each in member.received if each.place == places[0]) == 2
    with pytest.raises(ClientError) as failure:
        admin.alter_offsets(group, {places[0]: 0})
    assert failure.value.code == UNKNOWN_MEMBER_ID, "not while it has members"


@admins(lambda each: each.can_delete_offsets)
@pytest.mark.parametrize("flavour", ["java-range", "java-consumer"])
def test_offsets_deleted(
    members: Members, admin: GroupAdmin, filled: str, new_topic: Callable[..., str], flavour: str
) -> None:
    group, places, other = fresh_name("deleted"), places_of(filled, 3), new_topic("unread")
    member = members.join(flavour, group, filled)
    settle([member], places)
    member.commit({place: Committed(1) for place in [*places, (other, 0)]})
    with pytest.raises(ClientError) as failure:
        admin.delete_offsets(group, places[0])
    assert failure.value.code == GROUP_SUBSCRIBED_TO_TOPIC
    admin.delete_offsets(group, (other, 0))
    assert admin.offsets(group).keys() == set(places)
    members.leave(member)
    admin.delete_offsets(group, places[0], places[2])
    assert admin.offsets(group).keys() == {places[1]}
    with pytest.raises(ClientError) as failure:
        admin.delete_offsets(fresh_name("unknown"), places[0])
    assert failure.value.code == GROUP_ID_NOT_FOUND


@admins(lambda each: each.can_change_offsets)
@pytest.mark.parametrize("flavour", ["confluent-range", "confluent-consumer"])
def test_groups_deleted(members: Members, admin: GroupAdmin, filled: str, flavour: str) -> None:
    group, place = fresh_name("gone"), (filled, 0)
    member = members.join(flavour, group, filled)
    settle([member], places_of(filled, 3))
    member.commit({place: Committed(5)})
    with pytest.raises(ClientError) as failure:
        admin.delete(group)
    assert failure.value.code == NON_EMPTY_GROUP
    members.leave(member)
    admin.delete(group)
    assert group not in admin.groups()
    assert admin.offsets(group) == {}
    with pytest.raises(ClientError) as failure:
        admin.delete(group)
    assert failure.value.code == GROUP_ID_NOT_FOUND


def test_offsets_go_with_their_topic(members: Members, judges: Judges, new_topic: Callable[..., str]) -> None:
    doomed, kept, group = new_topic("doomed"), new_topic("kept"), fresh_name("with-topic")
    member = members.join("java-range", group, places=((kept, 0),))
    member.commit({(doomed, 0): Committed(3), (kept, 0): Committed(4)})
    judges["java"].delete_topic(doomed)
    admin = members.admin(JavaGroupAdmin)
    wait_until(lambda: admin.offsets(group).keys() == {(kept, 0)}, lambda: admin.offsets(group))


def commit(wire: Wire, version: int, group: str, topic: str, **who: object) -> ErrorCode:
    """Commit offset 1 of the topic's first partition by hand."""
    place = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    answer = wire.call(
        "offset_commit",
        version,
        group_id=group,
        group_instance_id=None,
        retention_time=-1,
        topics=[{"name": topic, "partitions": [place]}],
        **who,
    )
    code: ErrorCode = answer.topics[0].partitions[0].error_code
    return code


@pytest.mark.parametrize("version", range(2, 10))
def test_commits_of_strangers(members: Members, wire: Wire, filled: str, version: int) -> None:
    group = fresh_name("strangers")
    nobody = {"generation_id_or_member_epoch": -1, "member_id": ""}
    assert commit(wire, version, group, filled, **nobody) is ErrorCode.none, "an empty group takes them"
    member = members.join("java-range", group, filled)
    settle([member], places_of(filled, 3))
    admin = members.admin(JavaGroupAdmin)
    assert isinstance(admin, JavaGroupAdmin)
    (described,) = admin.ask("describeGroup", group=group)["members"]
    assert commit(wire, version, group, filled, **nobody) is ErrorCode.unknown_member_id
    stranger = {"generation_id_or_member_epoch": 1, "member_id": "stranger"}
    assert commit(wire, version, group, filled, **stranger) is ErrorCode.unknown_member_id
    late = {"generation_id_or_member_epoch": 0, "member_id": described["id"]}
    assert commit(wire, version, group, filled, **late) is ErrorCode.illegal_generation
    own = {"generation_id_or_member_epoch": 1, "member_id": described["id"]}
    assert commit(wire, version, group, filled, **own) is ErrorCode.none


def test_commits_of_another_epoch(members: Members, wire: Wire, filled: str) -> None:
    """With the newer protocol a commit carries the member's epoch; older clients' versions cannot say it."""
    group = fresh_name("epochs")
    member = members.join("java-consumer", group, filled)
    settle([member], places_of(filled, 3))
    admin = members.admin(JavaGroupAdmin)
    assert isinstance(admin, JavaGroupAdmin)

    def described() -> dict[str, object]:
        (found,) = admin.ask("describeGroup", group=group)["members"]
        return dict(found)

    wait_until(lambda: described()["epoch"] != 0, described)
    who = {"member_id": described()["id"]}
    epoch = described()["epoch"]
    assert isinstance(epoch, int)
    assert commit(wire, 9, group, filled, generation_id_or_member_epoch=epoch, **who) is ErrorCode.none
    stale = commit(wire, 9, group, filled, generation_id_or_member_epoch=epoch + 1, **who)
    assert stale is ErrorCode.stale_member_epoch
    assert commit(wire, 8, group, filled, generation_id_or_member_epoch=epoch + 1, **who) in (
        ErrorCode.stale_member_epoch,
        ErrorCode.unsupported_version,
    )
    stranger = {"generation_id_or_member_epoch": epoch, "member_id": "stranger"}
    assert commit(wire, 9, group, filled, **stranger) is ErrorCode.unknown_member_id
