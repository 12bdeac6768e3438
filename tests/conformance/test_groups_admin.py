"""Groups listed, described and emptied by every client's admin."""

from collections.abc import Callable, Iterator

import pytest

from .clients import ClientError
from .clients.groups import Committed, Described, GroupAdmin, Listing, wait_until
from .clients.java_groups import JavaGroupAdmin
from .clients.members_groups import GROUP_ADMINS, Members, places_of, settle
from .conftest import fresh_name

PARTITIONS = 4
UNKNOWN_MEMBER_ID = 25
GROUP_ID_NOT_FOUND = 69
PROTOCOLS = {"java-range": ("CLASSIC", "range"), "java-consumer": ("CONSUMER", "uniform")}


@pytest.fixture
def admin(members: Members, request: pytest.FixtureRequest) -> Iterator[GroupAdmin]:
    opened = members.admin(request.param)
    yield opened
    opened.close()


@pytest.fixture
def java(members: Members) -> JavaGroupAdmin:
    opened = members.admin(JavaGroupAdmin)
    assert isinstance(opened, JavaGroupAdmin)
    return opened


def admins(*flavours: str) -> pytest.MarkDecorator:
    """One case per admin client and flavour of members that it knows of."""
    pairs = [(each, flavour) for each in GROUP_ADMINS for flavour in flavours]
    able = [(each, flavour) for each, flavour in pairs if each.new_protocol or not flavour.endswith("-consumer")]
    names = [f"{each.name}-{flavour}" for each, flavour in able]
    return pytest.mark.parametrize(("admin", "flavour"), able, indirect=["admin"], ids=names)


@admins("java-range", "java-consumer")
def test_listed_and_described(members: Members, admin: GroupAdmin, new_topic: Callable[..., str], flavour: str) -> None:
    topic, group = new_topic("described", partitions=PARTITIONS), fresh_name("described")
    kind, assignor = PROTOCOLS[flavour]
    one = members.join(flavour, group, topic, client_id="one")
    two = members.join(flavour, group, topic, client_id="two", instance="fixed")
    settle([one, two], places_of(topic, PARTITIONS))

    def described() -> Described:
        found = admin.describe(group)
        return found._replace(members=tuple(sorted(found.members, key=str)))

    # aiokafka's version of the request does not know of instances.
    instance = "fixed" if admin.name != "aiokafka" else None
    wanted = Described("Stable", assignor, (("one", None, one.assigned), ("two", instance, two.assigned)))
    wait_until(lambda: described() == wanted, lambda: f"{described()} is not {wanted}")
    listed = admin.groups()[group]
    assert listed in (
        Listing("Stable", kind, "consumer"),
        Listing("Stable", kind, None),
        Listing(None, None, "consumer"),
    )
    members.leave(one)
    members.leave(two)
    # Neither protocol has a static member leave when it closes.
    wait_until(lambda: len(described().members) == 1, described)
    members.admin(JavaGroupAdmin).remove_members(group, "fixed")  # type: ignore[attr-defined]
    wait_until(lambda: described().state == "Empty", described)
    assert described().members == ()
    assert (admin.groups()[group].state or "Empty") == "Empty"


def error_or_state(admin: GroupAdmin, group: str) -> int | str:
    try:
        return admin.describe(group).state
    except ClientError as failure:
        return failure.code


@admins("java-range")
def test_a_group_that_never_was(admin: GroupAdmin, flavour: str) -> None:
    group = fresh_name("unknown")
    assert group not in admin.groups()
    # Older versions of the request have no error for it.
    assert error_or_state(admin, group) in (GROUP_ID_NOT_FOUND, "Dead")


@admins("java-range")
def test_a_group_of_offsets_alone(
    members: Members, admin: GroupAdmin, new_topic: Callable[..., str], flavour: str
) -> None:
    topic, group = new_topic("alone"), fresh_name("alone")
    members.join(flavour, group, places=((topic, 0),)).commit({(topic, 0): Committed(1)})
    assert admin.groups()[group].state in ("Empty", None)
    found = admin.describe(group)
    assert (found.state, found.members) == ("Empty", ())


def test_epochs_of_the_newer_protocol(members: Members, java: JavaGroupAdmin, new_topic: Callable[..., str]) -> None:
    topic, group = new_topic("epochs", partitions=2), fresh_name("epochs")
    first = members.join("confluent-consumer", group, topic)
    settle([first], places_of(topic, 2))
    before = java.ask("describeGroup", group=group)
    second = members.join("java-consumer", group, topic)
    settle([first, second], places_of(topic, 2))
    wait_until(
        lambda: java.ask("describeGroup", group=group)["state"] == "Stable",
        lambda: java.ask("describeGroup", group=group),
    )
    after = java.ask("describeGroup", group=group)
    assert after["epoch"] > before["epoch"]
    assert {each["epoch"] for each in after["members"]} == {after["epoch"]} == {after["targetEpoch"]}
    assert {each["host"] for each in after["members"]} == {"/127.0.0.1"}


@pytest.mark.parametrize("flavour", ["java-range", "confluent-range", "kafka-python-range"])
def test_removed_members_join_again(
    members: Members, java: JavaGroupAdmin, new_topic: Callable[..., str], flavour: str
) -> None:
    topic, group = new_topic("removed", partitions=2), fresh_name("removed")
    member = members.join(flavour, group, topic)
    settle([member], places_of(topic, 2))
    (before,) = java.ask("describeGroup", group=group)["members"]
    java.remove_members(group)

    def again() -> bool:
        found = java.ask("describeGroup", group=group)
        ids = [each["id"] for each in found["members"]]
        return found["state"] == "Stable" and len(ids) == 1 and ids != [before["id"]]

    wait_until(again, lambda: java.ask("describeGroup", group=group))


def test_removing_a_static_member_frees_its_partitions(
    members: Members, java: JavaGroupAdmin, new_topic: Callable[..., str]
) -> None:
    topic, group = new_topic("freed", partitions=2), fresh_name("freed")
    staying = members.join("java-range", group, topic, instance="staying")
    gone = members.join("java-range", group, topic, instance="gone")
    settle([staying, gone], places_of(topic, 2))
    members.leave(gone)
    assert staying.assigned != frozenset(places_of(topic, 2)), "the broker keeps a static member's place"
    java.remove_members(group, "gone")
    settle([staying], places_of(topic, 2))
    with pytest.raises(ClientError) as failure:
        java.remove_members(group, "gone")
    assert failure.value.code == UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("flavour", ["java-range", "confluent-range"])
def test_a_double_of_a_static_member_fences_it(members: Members, new_topic: Callable[..., str], flavour: str) -> None:
    topic, group = new_topic("double", partitions=2), fresh_name("double")
    original = members.join(flavour, group, topic, instance="only-one")
    settle([original], places_of(topic, 2))
    double = members.join(flavour, group, topic, instance="only-one")
    settle([double], places_of(topic, 2))

    def fenced() -> bool:
        try:
            return original.assigned is None
        except AssertionError as failure:
            return "fenced" in str(failure).lower()

    wait_until(fenced, lambda: "the first one goes on")
    members.forget(original)
