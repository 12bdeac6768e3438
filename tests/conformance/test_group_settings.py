"""Settings of groups through the clients that know them, and by Kafka's own command."""

import re
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.peers.broker import Broker

from .clients import ADMINS, Admin, ClientError
from .clients.admin import DEFAULT_SOURCE, DELETE, GROUP, GROUP_SOURCE, SET, Change
from .conftest import Admins, Judges, eventually, fresh_name, run_tool
from .test_admin_tools import shown
from .test_config_wire import alter, alter_incrementally, describe_configs
from .wire import Wire

INVALID_CONFIG, INVALID_REQUEST = 40, 42
LOCK, LIMIT = "share.record.lock.duration.ms", "share.delivery.count.limit"
SESSION, HEARTBEAT = "share.session.timeout.ms", "share.heartbeat.interval.ms"
KNOWING = [name for name, each in ADMINS.items() if each.knows_groups]
KINDS = {
    "consumer.heartbeat.interval.ms": "INT",
    "consumer.session.timeout.ms": "INT",
    "share.auto.offset.reset": "STRING",
    LIMIT: "INT",
    HEARTBEAT: "INT",
    "share.isolation.level": "STRING",
    LOCK: "INT",
    SESSION: "INT",
}
"""Those that every release of Kafka has that is compared with."""
DEFAULTS = {
    "share.auto.offset.reset": "latest",
    LIMIT: "5",
    HEARTBEAT: "5000",
    "share.isolation.level": "read_uncommitted",
    LOCK: "30000",
    SESSION: "45000",
}


def value(admin: Admin, group: str, name: str, wanted: str) -> str | None:
    """The setting's value, once it is as wanted or the deadline has passed."""
    return eventually(lambda: admin.settings(group, kind=GROUP)[name].value, lambda found: found == wanted)


@pytest.mark.parametrize("name", KNOWING)
def test_a_group_that_nobody_has_made_shows_its_defaults(admins: Admins, name: str) -> None:
    found = admins[name].settings(fresh_name("unmade"), kind=GROUP)
    assert set(KINDS) <= set(found)
    assert {key: found[key].value for key in DEFAULTS} == DEFAULTS
    for key in KINDS:
        assert not found[key].read_only and not found[key].sensitive, key
    for key in DEFAULTS:
        assert found[key].source == DEFAULT_SOURCE, key
        assert found[key].synonyms[-1][1:] == (DEFAULTS[key], DEFAULT_SOURCE), key
        assert found[key].kind in (None, KINDS[key], "UNKNOWN"), key


@pytest.mark.parametrize("name", KNOWING)
def test_settings_are_set_and_unset(admins: Admins, name: str) -> None:
    admin, group = admins[name], fresh_name("set")
    admin.alter(group, Change(SET, LOCK, "20000"), Change(SET, LIMIT, "3"), kind=GROUP)
    for each in KNOWING:
        assert value(admins[each], group, LOCK, "20000") == "20000", each
        found = admins[each].settings(group, kind=GROUP)
        assert (found[LIMIT].value, found[LIMIT].source) == ("3", GROUP_SOURCE), each
        assert found[LIMIT].synonyms[0] == (LIMIT, "3", GROUP_SOURCE), each
        assert found[SESSION].source == DEFAULT_SOURCE, each
    admin.alter(group, Change(DELETE, LOCK), kind=GROUP)
    assert value(admin, group, LOCK, "30000") == "30000"
    assert admin.settings(group, kind=GROUP)[LIMIT].value == "3"


@pytest.mark.parametrize("name", KNOWING)
def test_refused_settings_change_nothing(admins: Admins, name: str) -> None:
    admin, group = admins[name], fresh_name("refused")
    good = Change(SET, "consumer.session.timeout.ms", "50000")
    for bad in (
        Change(SET, "no.such.setting", "1"),
        Change(SET, "retention.ms", "1000000"),
        Change(SET, LOCK, "soon"),
        Change(SET, LOCK, "14999"),
        Change(SET, LOCK, "60001"),
        Change(SET, LIMIT, "1"),
        Change(SET, LIMIT, "11"),
        Change(SET, SESSION, "44999"),
        Change(SET, HEARTBEAT, "15001"),
        Change(SET, "share.auto.offset.reset", "none"),
        Change(SET, "share.auto.offset.reset", "by_duration:-PT1H"),
        Change(SET, "share.isolation.level", "serializable"),
    ):
        for check in (False, True):
            with pytest.raises(ClientError) as failure:
                admin.alter(group, good, bad, kind=GROUP, validate_only=check)
            assert failure.value.code == INVALID_CONFIG, bad
            assert bad.name in str(failure.value), "the refusal names the setting"
    admin.alter(group, good, kind=GROUP, validate_only=True)
    admin.alter(group, Change(SET, "share.auto.offset.reset", "by_duration:P1DT2H3M4.5S"), kind=GROUP)
    assert value(admin, group, "share.auto.offset.reset", "by_duration:P1DT2H3M4.5S") == "by_duration:P1DT2H3M4.5S"
    # The last one asked for takes its turn behind all the refused ones.
    assert admin.settings(group, kind=GROUP)["consumer.session.timeout.ms"].source != GROUP_SOURCE


def test_types_and_documentation(admins: Admins) -> None:
    found = admins.java.settings(fresh_name("typed"), kind=GROUP)
    assert {key: found[key].kind for key in KINDS} == KINDS
    assert all(entry.documentation for entry in found.values())


# --- by hand


def setting(wire: Wire, group: str, name: str) -> tuple[str, int]:
    ((found,),) = (result.configs for result in describe_configs(wire, (GROUP, group, [name])))
    return str(found.value), int(found.config_source)


def test_settings_are_replaced_by_the_older_request(wire: Wire) -> None:
    group = fresh_name("replaced")
    assert alter(wire, (GROUP, group, [(LOCK, "20000"), (LIMIT, "3")])) == [ErrorCode.none]
    assert eventually(lambda: setting(wire, group, LOCK), lambda found: found == ("20000", 8)) == ("20000", 8)
    assert alter(wire, (GROUP, group, [(LIMIT, "99")])) == [ErrorCode.invalid_config]
    assert alter(wire, (GROUP, group, [(LIMIT, None)])) == [ErrorCode.invalid_request]
    assert alter(wire, (GROUP, group, [(LIMIT, "4")])) == [ErrorCode.none]
    assert eventually(lambda: setting(wire, group, LOCK), lambda found: found == ("30000", 5)) == ("30000", 5)
    assert setting(wire, group, LIMIT) == ("4", 8)


def test_odd_groups(wire: Wire) -> None:
    (found,) = describe_configs(wire, (GROUP, "", None))
    assert (found.error_code, found.configs) == (ErrorCode.invalid_request, ())
    assert alter_incrementally(wire, (GROUP, "", [(LIMIT, 0, "3")])) == [ErrorCode.invalid_request]
    group = fresh_name("odd / %2F größer")
    assert alter_incrementally(wire, (GROUP, group, [(LIMIT, 0, "3")])) == [ErrorCode.none]
    assert eventually(lambda: setting(wire, group, LIMIT)[1], lambda source: source == 8) == 8
    for operation in (2, 3):
        assert alter_incrementally(wire, (GROUP, group, [(LIMIT, operation, "3")])) == [ErrorCode.invalid_config]
    assert alter_incrementally(wire, (GROUP, group, [(LIMIT, 0, None)])) == [ErrorCode.invalid_request]
    assert alter_incrementally(wire, (GROUP, group, [("no.such", 1, None)])) == [ErrorCode.none]

    def listed(*kinds: int) -> set[str]:
        answer: Any = wire.call("list_config_resources", 1, resource_types=list(kinds))
        return {each.resource_name for each in answer.config_resources if each.resource_type == GROUP}

    assert eventually(lambda: group in listed(GROUP), bool)
    assert group in listed()
    assert alter_incrementally(wire, (GROUP, group, [(LIMIT, 1, None)])) == [ErrorCode.none]
    assert not eventually(lambda: group in listed(GROUP), lambda there: not there)


# --- Kafka's command


def test_config_command(broker: Broker, judges: Judges) -> None:
    group = fresh_name("command")
    place = ("--entity-type", "groups", "--entity-name", group)
    server = ("--bootstrap-server", broker.bootstrap)

    def run(*arguments: str, code: int = 0) -> str:
        return run_tool(judges, "kafka.admin.ConfigCommand", *arguments, *server, code=code)

    assert shown(run("--describe", "--all", *place)).items() >= DEFAULTS.items()
    run("--alter", *place, "--add-config", f"{LOCK}=20000,{LIMIT}=3")
    wanted = {LOCK: "20000", LIMIT: "3"}
    assert eventually(lambda: shown(run("--describe", *place)), lambda found: found == wanted) == wanted
    line = next(line for line in run("--describe", *place).splitlines() if LIMIT in line)
    assert re.search(rf"synonyms={{DYNAMIC_GROUP_CONFIG:{LIMIT}=3[,}}]", line), line
    for refused in (f"{LOCK}=1", "no.such.setting=1"):
        run("--alter", *place, "--add-config", refused, code=1)
    run("--alter", *place, "--delete-config", LOCK)
    assert eventually(lambda: shown(run("--describe", *place)), lambda found: found == {LIMIT: "3"}) == {LIMIT: "3"}
