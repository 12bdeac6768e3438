"""Settings described and changed by hand, every version: strange types, doubles, missing values."""

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.peers.broker import Broker

from .admin_apis import versions
from .clients.admin import BROKER, TOPIC
from .conftest import PEER, eventually, fresh_name
from .wire import Wire

SET, DELETE, APPEND = 0, 1, 2


def describe_configs(wire: Wire, *resources: tuple[int, str, list[str] | None], version: int = 4) -> tuple[Any, ...]:
    wanted = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": keys} for kind, name, keys in resources
    ]
    answer = wire.call("describe_configs", version, resources=wanted, include_synonyms=True, include_documentation=True)
    return tuple(answer.results)


def alter_incrementally(
    wire: Wire, *resources: tuple[int, str, list[tuple[str, int, str | None]]], version: int = 1
) -> list[ErrorCode]:
    wanted = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [
                {"name": key, "config_operation": operation, "value": value} for key, operation, value in changes
            ],
        }
        for kind, name, changes in resources
    ]
    answer = wire.call("incremental_alter_configs", version, resources=wanted, validate_only=False)
    return _codes(answer.responses, resources)


def alter(
    wire: Wire, *resources: tuple[int, str, list[tuple[str, str | None]]], version: int = 2, validate_only: bool = False
) -> list[ErrorCode]:
    wanted = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": key, "value": value} for key, value in config],
        }
        for kind, name, config in resources
    ]
    answer = wire.call("alter_configs", version, resources=wanted, validate_only=validate_only)
    return _codes(answer.responses, resources)


def _codes(responses: tuple[Any, ...], asked: tuple[tuple[int, str, Any], ...]) -> list[ErrorCode]:
    """The codes in the order of the request; a broker may answer in any."""
    assert sorted((each.resource_type, each.resource_name) for each in responses) == sorted(
        (kind, name) for kind, name, _ in asked
    )
    found = {(each.resource_type, each.resource_name): each.error_code for each in responses}
    return [found[kind, name] for kind, name, _ in asked]


def setting(wire: Wire, topic: str, key: str) -> str | None:
    ((found,),) = (result.configs for result in describe_configs(wire, (TOPIC, topic, [key])))
    return str(found.value)


@pytest.mark.parametrize("version", versions("describe_configs"))
def test_describe_configs(wire: Wire, new_topic: Callable[..., str], node: int, version: int) -> None:
    topic = new_topic("shown", **{"retention.ms": "12345678"})
    whole, chosen, broker, missing = describe_configs(
        wire,
        (TOPIC, topic, None),
        (TOPIC, topic, ["retention.ms", "no.such.setting", "retention.ms"]),
        (BROKER, str(node), None),
        (TOPIC, fresh_name("never-made"), None),
        version=version,
    )
    assert [each.error_code for each in (whole, chosen, broker)] == [ErrorCode.none] * 3
    assert missing.error_code is ErrorCode.unknown_topic_or_partition
    assert missing.configs == ()
    (found,) = chosen.configs
    assert found in whole.configs
    assert (found.name, found.value, found.config_source, found.read_only) == ("retention.ms", "12345678", 1, False)
    assert (found.synonyms[0].name, found.synonyms[0].value, found.synonyms[0].source) == (
        "retention.ms",
        "12345678",
        1,
    )
    names = [each.name for each in whole.configs]
    assert len(set(names)) == len(names)
    assert len(broker.configs) > 10
    if version >= 3:
        assert found.config_type == 5  # a long
        assert found.documentation


def test_odd_resources(wire: Wire, new_topic: Callable[..., str], node: int) -> None:
    topic = new_topic("odd")
    found = describe_configs(
        wire,
        *((kind, topic, None) for kind in (-1, 0, 3, 99)),
        (BROKER, str(node + 98), None),
        (BROKER, "one", None),
    )
    assert [each.error_code for each in found] == [ErrorCode.invalid_request] * 6
    assert [each.resource_type for each in found] == [-1, 0, 3, 99, BROKER, BROKER]
    assert all(each.configs == () for each in found)
    wrong = describe_configs(wire, (TOPIC, "not/a/name", None), (TOPIC, "", None))
    assert [each.error_code for each in wrong] == [ErrorCode.invalid_topic_exception] * 2
    # No keys and no list of keys both ask for all. Kafka tells again what is asked for again, Penstock does not.
    everything, also, *again = describe_configs(wire, (TOPIC, topic, None), (TOPIC, topic, []), (TOPIC, topic, None))
    assert everything == also
    assert again == ([everything] if PEER == "kafka" else [])
    assert describe_configs(wire) == ()


@pytest.mark.parametrize("version", versions("incremental_alter_configs"))
def test_incremental_alter_configs(wire: Wire, new_topic: Callable[..., str], version: int) -> None:
    topic, other = new_topic("steps"), new_topic("steps")
    found = alter_incrementally(
        wire,
        (TOPIC, topic, [("retention.ms", SET, "7654321"), ("cleanup.policy", APPEND, "compact")]),
        (TOPIC, other, [("retention.ms", SET, "soon")]),
        (TOPIC, fresh_name("never-made"), [("retention.ms", SET, "1000000")]),
        version=version,
    )
    assert found == [ErrorCode.none, ErrorCode.invalid_config, ErrorCode.unknown_topic_or_partition]
    wanted = "7654321"
    assert eventually(lambda: setting(wire, topic, "retention.ms"), lambda value: value == wanted) == wanted
    assert setting(wire, topic, "cleanup.policy") == "delete,compact"
    assert alter_incrementally(wire, version=version) == []


def test_odd_steps(wire: Wire, new_topic: Callable[..., str], node: int) -> None:
    topic, other = new_topic("odd", **{"retention.ms": "1234567"}), new_topic("other")

    def code(*changes: tuple[str, int, str | None], kind: int = TOPIC, name: str = topic) -> ErrorCode:
        return alter_incrementally(wire, (kind, name, list(changes)))[0]

    assert code() is ErrorCode.none, "nothing to do"
    assert code(("retention.ms", SET, None)) is ErrorCode.invalid_request
    assert code(("cleanup.policy", APPEND, None)) is ErrorCode.invalid_request
    assert code(("retention.ms", SET, "")) is ErrorCode.invalid_config
    assert code(("", SET, "1")) is ErrorCode.invalid_config
    assert code(("retention.ms", SET, "1"), ("retention.ms", SET, "2")) is ErrorCode.invalid_request
    for operation in (-1, 4, 127):  # Kafka fails on these with an error of its own
        assert code(("retention.ms", operation, "1")) is not ErrorCode.none
    for kind in (-1, 0, 3, 99):
        assert code(("retention.ms", SET, "1"), kind=kind) is ErrorCode.invalid_request
    assert code(("retention.ms", SET, "1"), name="not/a/name") is ErrorCode.invalid_topic_exception
    assert code(("node.id", SET, "7"), kind=BROKER, name=str(node)) is ErrorCode.invalid_request
    assert code(("node.id", SET, "7"), kind=BROKER, name=str(node + 98)) is ErrorCode.invalid_request
    one = (TOPIC, topic, [("retention.ms", SET, "99")])
    assert alter_incrementally(wire, one, one, (TOPIC, other, [("segment.ms", SET, "777777")])) == [
        ErrorCode.invalid_request,
        ErrorCode.invalid_request,
        ErrorCode.none,
    ]
    assert eventually(lambda: setting(wire, other, "segment.ms"), lambda value: value == "777777") == "777777"
    assert setting(wire, topic, "retention.ms") == "1234567"
    assert code(("retention.ms", DELETE, "ignored"), ("segment.ms", DELETE, None)) is ErrorCode.none
    assert eventually(lambda: setting(wire, topic, "retention.ms"), lambda value: value != "1234567") != "1234567"


def test_spaces_around_a_value(wire: Wire, new_topic: Callable[..., str]) -> None:
    topic = new_topic("spaces")
    changes: list[tuple[str, int, str | None]] = [
        ("retention.ms", SET, " 7654321 "),
        ("cleanup.policy", SET, "compact, delete"),
    ]
    assert alter_incrementally(wire, (TOPIC, topic, changes)) == [ErrorCode.none]
    assert eventually(lambda: setting(wire, topic, "retention.ms"), lambda value: value == "7654321") == "7654321"
    assert setting(wire, topic, "cleanup.policy") == "compact,delete"


@pytest.mark.parametrize("version", versions("alter_configs"))
def test_alter_configs(wire: Wire, new_topic: Callable[..., str], node: int, version: int) -> None:
    topic = new_topic("whole", **{"retention.ms": "1234567", "segment.ms": "555555"})
    default = setting(wire, new_topic("default"), "segment.ms")

    def code(*config: tuple[str, str | None], validate_only: bool = False) -> ErrorCode:
        return alter(wire, (TOPIC, topic, list(config)), version=version, validate_only=validate_only)[0]

    assert code(("retention.ms", "soon")) is ErrorCode.invalid_config
    assert code(("retention.ms", None)) is ErrorCode.invalid_request
    assert code(("retention.ms", "1"), ("retention.ms", "2")) is ErrorCode.invalid_request
    assert code(("retention.ms", "soon"), validate_only=True) is ErrorCode.invalid_config
    assert code(("retention.ms", "7654321"), validate_only=True) is ErrorCode.none
    assert alter(
        wire,
        (99, topic, [("retention.ms", "1")]),
        (TOPIC, fresh_name("never-made"), [("retention.ms", "1000000")]),
        (BROKER, str(node), [("node.id", "7")]),
        version=version,
    ) == [ErrorCode.invalid_request, ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_request]
    assert setting(wire, topic, "retention.ms") == "1234567"
    assert code(("retention.ms", "7654321")) is ErrorCode.none
    assert eventually(lambda: setting(wire, topic, "retention.ms"), lambda value: value == "7654321") == "7654321"
    assert setting(wire, topic, "segment.ms") == default
    assert code() is ErrorCode.none, "an empty list resets them all"
    assert eventually(lambda: setting(wire, topic, "retention.ms"), lambda value: value != "7654321") != "7654321"
    assert alter(wire, version=version) == []


def test_settings_replaced_twice_in_one_request(broker: Broker, wire: Wire, new_topic: Callable[..., str]) -> None:
    if broker.name != "penstock":
        pytest.skip("Apache Kafka never answers an AlterConfigs that names a resource twice")
    one = (TOPIC, new_topic("twice"), [("retention.ms", "1000000")])
    assert alter(wire, one, one) == [ErrorCode.invalid_request] * 2


def test_list_config_resources(wire: Wire, new_topic: Callable[..., str], node: int) -> None:
    topic = new_topic("resource")

    def ask(*kinds: int) -> set[tuple[int, str]]:
        answer = wire.call("list_config_resources", 1, resource_types=list(kinds))
        assert answer.error_code is ErrorCode.none
        found = [(each.resource_type, each.resource_name) for each in answer.config_resources]
        assert len(set(found)) == len(found)
        return set(found)

    assert wire.call("list_config_resources", 0).config_resources == (), "version 0 lists client metrics only"
    assert ask() >= {(TOPIC, topic), (BROKER, str(node))}
    assert (TOPIC, topic) in ask(TOPIC, TOPIC)
    assert ask(BROKER) == {(BROKER, str(node))}
    for kinds in ([99], [0], [TOPIC, 99]):
        answer = wire.call("list_config_resources", 1, resource_types=kinds)
        assert answer.error_code is ErrorCode.unsupported_version
        assert answer.config_resources == ()
