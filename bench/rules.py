"""`python -m bench.rules`: what logins and 10,000 rules cost on the plain path, told apart from noise.

OLD lets everybody do everything; NEW is the same broker in closed mode, where the load has logged in by SCRAM, may use
its topic by one of so many rules, and half of the others are for prefixes. Rounds and verdict are those of `bench.ab`.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from tests.peers.broker import BrokerError

from bench import machine
from bench.ab import CASES, WARM_PASSES, WARM_SHARE
from bench.comparison import FORM, HEADS, compare
from bench.native import NativeError
from bench.progress import say
from bench.secured import ADMIN, USER, Secured, load, start_secured
from bench.subject import ADMIN_S

_AT_ONCE = 500
_LITERAL, _PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED


def rules(count: int) -> Iterator[AclBinding]:
    """Those that let the load work, behind others of other users."""
    operations = (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE)
    for number in range(count - 2):
        pattern, who = (_PREFIXED if number % 2 else _LITERAL), f"User:user-{number % 1000}"
        rule = (ResourceType.TOPIC, f"topic-{number}", pattern, who, "*")
        yield AclBinding(*rule, operations[number % len(operations)], AclPermissionType.ALLOW)
    for kind, name in ((ResourceType.TOPIC, "cell-"), (ResourceType.GROUP, "never-joined")):
        rule = (kind, name, _PREFIXED, f"User:{USER}", "*")
        yield AclBinding(*rule, AclOperation.ALL, AclPermissionType.ALLOW)


def add_rules(made: Secured, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": made.logins, **made.login_properties(ADMIN)})
    wanted = list(rules(count))
    for at in range(0, len(wanted), _AT_ONCE):
        for added in admin.create_acls(wanted[at : at + _AT_ONCE], request_timeout=ADMIN_S).values():
            added.result(ADMIN_S)


def measure(side: str, directory: Path, count: int, case: str, share: float) -> dict[str, float]:
    has_rules = side == "new"
    made = start_secured("penstock", directory / side, mode="closed" if has_rules else "open")
    try:
        if has_rules:
            add_rules(made, count)
        address = made.logins if has_rules else made.subject.bootstrap
        properties = made.login_properties() if has_rules else {}
        for _ in range(WARM_PASSES["penstock"]):
            load(made, address, properties, CASES[case], share * WARM_SHARE)
        return load(made, address, properties, CASES[case], share)
    finally:
        made.subject.stop()


def main() -> int:
    summary, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(prog="python -m bench.rules", description=summary, epilog=more)
    parser.add_argument("--rules", type=int, default=10_000)
    parser.add_argument("--case", choices=CASES, default="1kb")
    parser.add_argument("--rounds", type=int, default=7, help="of three runs each (default %(default)s)")
    parser.add_argument("--gb", type=float, default=1.0, help="of values in each run (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where every figure of every round goes")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="for the data (default %(default)s)")
    asked = parser.parse_args()
    share = asked.gb * 1000 / CASES[asked.case].megabytes
    found: list[dict[str, dict[str, float]]] = []
    directory = Path(tempfile.mkdtemp(prefix="rules-", dir=asked.directory))
    try:
        for number in range(asked.rounds):
            each = {}
            for name, side in (("old", "old"), ("new", "new"), ("again", "old")):
                each[name] = measure(side, directory, asked.rules, asked.case, share)
            say(f"round {number + 1} of {asked.rounds}: " + ", ".join(f"{k} {v['cpu']:.3f}" for k, v in each.items()))
            found.append(each)
    except (BrokerError, NativeError) as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    sys.stdout.write(f"OLD: no rules; NEW: {asked.rules} rules; broker CPU seconds for 1 GB in and out, medians\n")
    sys.stdout.write(FORM.format(*HEADS) + compare(found, False).line(asked.case))
    if asked.json:
        command = " ".join(["python -m bench.rules", *sys.argv[1:]])
        facts = {"command": command, "machine": machine.facts(asked.directory)}
        asked.json.write_text(json.dumps({**facts, "rounds": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
