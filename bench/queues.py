"""`python -m bench.queues`: what queues cost, by themselves and beside Apache Kafka's share groups.

Writes bench/results/queues and docs/benchmarks-queues.md. It wants the machine for itself.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import machine
from bench.native import NativeError
from bench.progress import say
from bench.queues_report import RESULTS, write_page
from bench.shares import MESSAGES, measure_rounds
from bench.subject import BrokerError

FORMS = {"compiled": {}, "pure": {"PENSTOCK_PURE": "1"}}


def measure_ledger(rounds: int, messages: int) -> list[dict[str, dict[str, float]]]:
    """Each round in processes of their own, as compiled modules are loaded or not."""
    found = []
    for number in range(rounds):
        say(f"the ledger by itself, round {number + 1} of {rounds}")
        found.append({name: _ledger(messages, environment) for name, environment in FORMS.items()})
    return found


def _ledger(messages: int, environment: dict[str, str]) -> dict[str, float]:
    command = (sys.executable, "-m", "bench.ledger", "--json", "--messages", str(messages))
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.queues", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="read by share groups (default %(default)s)")
    parser.add_argument("--ledger-messages", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="for the data (default %(default)s)")
    parser.add_argument("--page", metavar="FILE", type=Path, help="write the page anew from a result, measure nothing")
    asked = parser.parse_args()
    if asked.page:
        write_page(json.loads(asked.page.read_text()))
        return 0
    busy = machine.busy_percent()
    try:
        found: dict[str, Any] = {
            "command": " ".join(["python -m bench.queues", *sys.argv[1:]]),
            "machine": machine.facts(asked.directory),
            "busy_percent": busy,
            "messages": asked.messages,
            "ledger_messages": asked.ledger_messages,
            "ledger": measure_ledger(asked.rounds, asked.ledger_messages),
            "shares": measure_rounds(asked.rounds, asked.messages),
        }
    except (BrokerError, NativeError, subprocess.CalledProcessError) as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    facts = found["machine"]
    RESULTS.mkdir(parents=True, exist_ok=True)
    stamp = facts["date"].removesuffix(" UTC").replace(" ", "-").replace(":", "")
    path = RESULTS / f"{stamp}-{facts['revision'].rstrip('+')}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    write_page(found)
    say(f"wrote {path.relative_to(machine.ROOT)} and the page")
    return 0


if __name__ == "__main__":
    sys.exit(main())
