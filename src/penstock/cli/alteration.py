"""What `penstock topic alter` changes: settings, by Kafka's four operations, and the number of partitions."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cli.connection import Refused, Server, read_properties
from penstock.cli.failure import USAGE, CommandError
from penstock.cli.topics import is_own

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConfigEntry


class Step(NamedTuple):
    """One change of one setting. The operation is SET, DELETE, APPEND or SUBTRACT, as Kafka calls them."""

    operation: str
    key: str
    value: str | None

    def apply(self, old: str | None) -> str | None:
        """What the setting will be; None for the default, which only the server knows."""
        listed = [word for word in (old or "").split(",") if word]
        words = (self.value or "").split(",")
        if self.operation == "APPEND":
            return ",".join(dict.fromkeys([*listed, *words]))
        if self.operation == "SUBTRACT":
            return ",".join(word for word in listed if word not in words)
        return self.value


def read_steps(sets: Sequence[str], unsets: Sequence[str], adds: Sequence[str], removes: Sequence[str]) -> list[Step]:
    """Steps from the words of the options. Raises `CommandError` for a setting named twice."""
    steps = [Step("DELETE", key, None) for key in unsets]
    for operation, given in (("SET", sets), ("APPEND", adds), ("SUBTRACT", removes)):
        for word in given:
            steps += [Step(operation, *pair) for pair in read_properties([word]).items()]
    keys = [step.key for step in steps]
    if twice := [key for key in dict.fromkeys(keys) if keys.count(key) > 1]:
        raise CommandError(f"{', '.join(twice)}: changed twice; say each setting once, lists with commas", code=USAGE)
    return steps


def alter_settings(server: Server, admin: "AdminClient", name: str, steps: Sequence[Step], *, dry_run: bool) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    entries = [
        ConfigEntry(step.key, step.value, incremental_operation=AlterConfigOpType[step.operation]) for step in steps
    ]
    asked = [ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)]
    futures = admin.incremental_alter_configs(asked, validate_only=dry_run, request_timeout=server.timeout_s)
    try:
        for future in futures.values():
            server.wait(future)
    except Refused as error:
        raise CommandError(f"topic {name!r} cannot be altered: {error}") from None


def add_partitions(server: Server, admin: "AdminClient", name: str, total: int, *, dry_run: bool) -> None:
    from confluent_kafka.admin import NewPartitions

    asked = [NewPartitions(name, total)]
    futures = admin.create_partitions(asked, validate_only=dry_run, request_timeout=server.timeout_s)
    try:
        for future in futures.values():
            server.wait(future)
    except Refused as error:
        raise CommandError(f"topic {name!r} cannot have {total} partitions: {error}") from None


def describe_change(step: Step, before: "ConfigEntry | None", after: "ConfigEntry | None") -> dict[str, Any]:
    """Old and new value. `after` is what the server says now; a server may still say what was before."""
    new = step.apply(before.value if before else None)
    if step.operation == "DELETE" and after is not None and not is_own(after):
        new = after.value
    return {"name": step.key, "operation": step.operation.lower(), "old": before.value if before else None, "new": new}


def format_change(change: Mapping[str, Any]) -> str:
    old, new = ("(empty)" if value == "" else value for value in (change["old"], change["new"]))
    if change["operation"] == "delete":
        new = "the default" if new is None else f"{new} (default)"
    return f"{'-' if old is None else old} → {new}"
