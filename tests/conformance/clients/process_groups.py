"""A member of a group in a process of its own, to be killed; prints a line of JSON whenever its partitions change."""

import json
import sys
import threading

from tests.conformance.clients.groups import Options, Place
from tests.conformance.clients.members_groups import open_member


def main() -> None:
    asked = json.loads(sys.argv[1])
    options = asked["options"]
    whole = Options(**{**options, "topics": tuple(options["topics"]), "places": ()})
    member = open_member(asked["flavour"], asked["bootstrap"], whole)
    shown: frozenset[Place] = frozenset()
    pause = threading.Event()
    while not pause.wait(0.02):
        if member.assigned != shown:
            shown = member.assigned
            print(json.dumps(sorted(shown)), flush=True)


if __name__ == "__main__":
    main()
