"""Coverage-guided noise for all that is said before somebody is known: `python -m tests.fuzz.logins`.

Such as `-max_total_time=600 [corpus]` may follow.

Anything but an answer or `NotAuthenticated` is a crash, and so is a stranger that is let in.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["penstock.security", "penstock.server.http_login"]):
    from penstock.protocols.internal.broker_certificate import names_broker
    from penstock.security.api_keys import parse_key
    from penstock.security.names import name_problem
    from penstock.security.plain import parse_plain
    from penstock.security.refusal import NotAuthenticated
    from penstock.security.scram import Mechanism, ScramExchange, derive
    from penstock.server.http_login import HttpLogin

from tests.unit.security.scram_client import ScramClient

KEYS = derive(Mechanism.SHA_256, b"pencil", b"salt", 4096)
GOOD = ScramClient(Mechanism.SHA_256, "alice", "pencil")
SEEDS = (
    b"\0alice\0pencil",
    b"pk_0123456789abcdef_" + b"A" * 43,
    GOOD.first(),
    GOOD.first() + b"\n" + b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL,p=" + b"A" * 43 + b"=",
    b"n,a=alice,n=alice,r=x,tokenauth=true",
    b"Basic YWxpY2U6cGVuY2ls",
    b"Bearer pk_0123456789abcdef_" + b"A" * 43,
)
HTTP = HttpLogin("http", ("basic", "key"), lambda: None, lambda: None, lambda *_: None, is_closed=True)


def converse(said: bytes) -> None:
    """Each line is a message; after a good first one, too."""
    lines = said.split(b"\n")
    for messages in (lines, [GOOD.first(), *lines]):
        exchange = ScramExchange(Mechanism.SHA_256, lambda first: KEYS, lambda _: KEYS, Random(1))
        for message in messages:
            try:
                exchange.step(message)
            except NotAuthenticated:
                continue
        if exchange.proof is not None:
            raise AssertionError(f"let in by {messages}")


def name(said: bytes) -> None:
    found = said.decode("utf-8", "surrogateescape")
    if not name_problem(found):
        found.encode()


def header(said: bytes) -> None:
    HTTP._read(said.decode("latin-1"))  # as it comes from uvicorn


PARSERS: tuple[Callable[[bytes], object], ...] = (parse_plain, parse_key, converse, name, header, names_broker)


def one(data: bytes) -> None:
    for parse in PARSERS:
        try:
            parse(data)
        except NotAuthenticated:
            continue


def main() -> None:
    arguments = sys.argv
    if not [each for each in arguments[1:] if not each.startswith("-")]:
        corpus = Path(tempfile.mkdtemp(prefix="logins-"))
        for number, seed in enumerate(SEEDS):
            (corpus / str(number)).write_bytes(seed)
        arguments = [*arguments, str(corpus)]
    atheris.Setup([*arguments, "-max_len=5000"], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
