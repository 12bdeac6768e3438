"""Finds the noun that was typed, imports that noun's module and nothing else, and hands over.

A noun's module has `run(arguments) -> exit code` and parses its own arguments, with whatever library it
likes: what one noun imports costs the others nothing.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock import __version__

USAGE_ERROR = 2


class Noun(NamedTuple):
    module: str
    purpose: str


NOUNS: Mapping[str, Noun] = {
    "serve": Noun("penstock.cli.serve", "run a broker until Ctrl+C or SIGTERM"),
}

_HELP = """\
Penstock: a durable message queue that speaks the Kafka protocol.

Usage: penstock <command> [arguments]

Commands:
{nouns}
  version    print the version

Start a broker on this machine, data in ./data:
  penstock serve

Then, from another terminal, with any Kafka client:
  echo hello | kcat -b 127.0.0.1:9092 -P -t greetings
  kcat -b 127.0.0.1:9092 -C -t greetings -e

'penstock <command> --help' says more about one command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the result is the process's exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words or words[0] in ("-h", "--help"):
        print(format_help(), end="")
        return 0 if words else USAGE_ERROR
    first, rest = words[0], words[1:]
    if first in ("version", "--version", "-V"):
        print(f"penstock {__version__}")
        return 0
    noun = NOUNS.get(first)
    if noun is None:
        print(f"penstock: {_unknown(first)}", file=sys.stderr)
        return USAGE_ERROR
    from importlib import import_module

    code: int = import_module(noun.module).run(rest)
    return code


def format_help() -> str:
    return _HELP.format(nouns="\n".join(f"  {name:10} {noun.purpose}" for name, noun in NOUNS.items()))


def _unknown(word: str) -> str:
    import difflib

    close = difflib.get_close_matches(word, [*NOUNS, "version", "help"], n=1)
    return f"no command {word!r}; " + (f"did you mean {close[0]}?" if close else "see penstock --help")


if __name__ == "__main__":
    sys.exit(main())
