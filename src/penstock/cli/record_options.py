"""Flags that commands share which print messages, or read some: in what form these are."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from penstock.cli.connection import Server
from penstock.cli.failure import USAGE, CommandError
from penstock.cli.position import BytesWord
from penstock.cli.record_input import Form
from penstock.cli.record_text import (
    RECORDS,
    Render,
    Vocabulary,
    parse_fields,
    render_json,
    render_lines,
    render_people,
    render_raw,
    render_template,
    render_yaml,
)

F = TypeVar("F", bound=Callable[..., Any])

TOKENS_HELP: Final = """\
Tokens for --format, as kcat has them: %t topic, %p partition, %o offset, %k key,
%s value, %h headers, %T timestamp in ms, %K and %S length of key and value (-1:
null), %% itself; \\n, \\t, \\0 and \\xNN are escapes.
"""


# --- out


def form_options(words: Vocabulary = RECORDS) -> Callable[[F], F]:
    """Adds -o, --format, --show and -D; the command gets `output`, `template`, `shown` and `delimiter`."""
    options = (
        click.option(
            "-o",
            "--output",
            type=click.Choice(["text", "json", "yaml", "raw"]),
            default="text",
            show_default=True,
            help="text; one JSON object a line; YAML documents; bare values.",
        ),
        click.option("--format", "template", metavar="TEXT", help="Your own form; see below."),
        click.option(
            "--show",
            "shown",
            metavar="FIELD,...",
            multiple=True,
            help=f"Before the value: {', '.join(words.piped)}, all, none.",
        ),
        click.option(
            "-D",
            "--delimiter",
            type=BytesWord(),
            default="\\n",
            show_default=True,
            metavar="TEXT",
            help="What follows a value.",
        ),
    )
    return lambda command: _with(options, command)


def choose_form(
    options: Mapping[str, Any], *, people: Sequence[str], piped: Sequence[str] = (), words: Vocabulary = RECORDS
) -> Render:
    """What `form_options` say. Raises `CommandError`.

    Args:
        people: what a terminal is told of each message, unless --show says otherwise.
        piped: the same for a pipe.
    """
    terminal = sys.stdout.isatty()
    template, output, shown = options["template"], options["output"], options["shown"]
    try:
        fields = parse_fields(shown, words) if shown else None
        if (template is not None or fields is not None) and output != "text":
            raise ValueError(f"--{'show' if template is None else 'format'} is for -o text")
        if template is not None:
            return render_template(template, terminal=terminal, words=words)
    except ValueError as error:
        raise CommandError(str(error), code=USAGE) from None
    if output == "json":
        return render_json(terminal=terminal, words=words)
    if output == "yaml":
        return render_yaml(terminal=terminal, words=words)
    if output == "raw":
        return render_raw(options["delimiter"])
    if terminal:
        colour = "NO_COLOR" not in os.environ
        return render_people(people if fields is None else fields, colour=colour, words=words)
    return render_lines(piped if fields is None else fields, options["delimiter"], words)


# --- in

_INPUT: Final = (
    click.option("--json", "is_json", is_flag=True, help="Each line is a JSON object; see below."),
    click.option("--whole", is_flag=True, help="Each file is one record."),
    click.option(
        "-D",
        "--delimiter",
        type=BytesWord(),
        default="\\n",
        show_default=True,
        metavar="TEXT",
        help="What ends a record.",
    ),
    click.option("--crlf", is_flag=True, help="Take a carriage return before the end of a line for a part of the end."),
    click.option("-K", "--key-separator", type=BytesWord(), metavar="TEXT", help="What separates key and value."),
    click.option("-k", "--key", metavar="KEY", help="The key of all records."),
    click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header for all records."),
)


def input_options(command: F) -> F:
    """Adds the flags that say how records lie in the input; `read_form` reads them."""
    return _with(_INPUT, command)


def read_form(options: Mapping[str, Any], server: Server) -> Form:
    """What `input_options` say, and --partition, --timestamp, --empty-is-null, --route where a command has them.

    Raises `CommandError` for flags that exclude one another.
    """
    given = {name for name in ("is_json", "whole", "key_separator", "crlf", "route") if options.get(name)}
    for one, others in (("is_json", {"whole", "key_separator", "crlf"}), ("whole", {"key_separator", "crlf"})):
        if one in given and (clash := given & others):
            words = [f"--{name.removeprefix('is_').replace('_', '-')}" for name in (one, min(clash))]
            raise CommandError(f"{' and '.join(words)} exclude one another", code=USAGE)
    if "route" in given and "is_json" not in given:
        raise CommandError("--route needs --json: only such records name a topic", code=USAGE)
    if options["key"] is not None and "key_separator" in given:
        raise CommandError("--key and --key-separator exclude one another", code=USAGE)
    for name in ("delimiter", "key_separator"):
        if options[name] == b"":
            raise CommandError(f"--{name.replace('_', '-')} is empty", code=USAGE)
    return Form(
        delimiter=options["delimiter"],
        crlf=options["crlf"],
        key_separator=options["key_separator"],
        empty_is_null=options.get("empty_is_null", False),
        json=options["is_json"],
        whole=options["whole"],
        route=options.get("route", False),
        key=None if options["key"] is None else options["key"].encode(errors="surrogateescape"),
        headers=[read_header(word) for word in options["headers"]],
        partition=options.get("partition"),
        timestamp_ms=options.get("timestamp_ms"),
        limit=_text_limit(server),
    )


def read_header(word: str) -> tuple[str, bytes]:
    """Raises `CommandError`."""
    name, equals, value = word.partition("=")
    if not name or not equals:
        raise CommandError(f"header {word!r} is no NAME=VALUE", code=USAGE)
    return name, value.encode(errors="surrogateescape")


def _text_limit(server: Server) -> int:
    """The longest text a record can have: JSON needs up to six letters for a byte."""
    largest = str(server.properties.get("message.max.bytes", ""))
    return 6 * (int(largest) if largest.isdecimal() else 1_000_000) + 65_536


def _with(options: Sequence[Callable[[F], F]], command: F) -> F:
    for option in reversed(options):
        command = option(command)
    return command
