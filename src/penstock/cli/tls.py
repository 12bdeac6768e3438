"""`penstock tls`: certificates for trying TLS out, and what is in any other."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.failure import USAGE, CommandError
from penstock.cli.output import note, output_option, print_fields, show

if TYPE_CHECKING:
    from penstock.cli.authority import Made
    from penstock.cli.certificate_view import CertificateView, KeyView

_MOST_DAYS = 36_500


class _Host(click.ParamType[str]):
    name = "host"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from penstock.cli.authority import check_host

        try:
            return check_host(str(value))
        except ValueError:
            self.fail(
                f"{value!r} is neither a host's name nor an address; write broker-1.example.com, *.example.com, "
                "127.0.0.1 or ::1, without a port.",
                param,
                ctx,
            )


directory_argument = click.argument(
    "directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False, dir_okay=True)
)
force_option = click.option("--force", is_flag=True, help="Replace files that are there already.")


@click.group("tls", help="Make certificates for trying TLS out, and look into any certificate.")
def command() -> None:
    pass


@command.command(
    "init",
    short_help="Make a certificate authority of your own.",
    help="""Make a certificate authority of your own in a directory: DIR/ca.pem and DIR/ca.key.

    It is for trying TLS out, and for tests: whoever can read ca.key can be anybody to those who trust ca.pem. Clients
    and brokers need ca.pem alone.""",
    epilog="""\b
Examples:
  penstock tls init tls
  penstock tls init tls --days 30 -o json""",
)
@directory_argument
@click.option(
    "--days",
    metavar="N",
    type=click.IntRange(1, _MOST_DAYS),
    default=3650,
    show_default=True,
    help="How long it is good.",
)
@force_option
@output_option
def init(directory: Path, days: int, force: bool, output: str) -> None:
    from penstock.cli.authority import make_authority, now_utc

    made = make_authority(directory, now_utc(), days, replace=force)
    _show_made(made, output)
    if output == "table":
        note(f"keep {made.key} to yourself; 'penstock tls issue {directory} NAME --host HOST' makes a certificate")


@command.command(
    "issue",
    short_help="Make a certificate that the authority has signed.",
    help="""Make a certificate that the authority in DIR has signed: DIR/NAME.pem, and its key DIR/NAME.key.

    With --host it is a server's, for each host that clients write to reach it.
    With --broker it is also what brokers of a cluster show one another: it names penstock:broker, which opens their
    listener to who has it. Have another authority sign those than the one for clients.
    With --client it is a client's. Its subject is CN=NAME, by which rules of access can name who shows it.""",
    epilog="""\b
Examples:
  penstock tls issue tls broker-1 --host broker-1.example.com --host 10.0.0.5
  penstock tls issue tls alice --client --days 90
  penstock tls issue cluster-tls broker-1 --broker --host broker-1.example.com""",
)
@directory_argument
@click.argument("name")
@click.option(
    "--host",
    "hosts",
    metavar="HOST",
    multiple=True,
    type=_Host(),
    help="A name or an address of the server; may be repeated.",
)
@click.option("--client", is_flag=True, help="A client's certificate instead of a server's.")
@click.option("--broker", is_flag=True, help="For brokers of a cluster among themselves; needs --host.")
@click.option(
    "--days",
    metavar="N",
    type=click.IntRange(1, _MOST_DAYS),
    default=365,
    show_default=True,
    help="How long it is good.",
)
@force_option
@output_option
def issue(
    directory: Path, name: str, hosts: tuple[str, ...], client: bool, broker: bool, days: int, force: bool, output: str
) -> None:
    if broker and not hosts:
        raise CommandError(
            "--broker needs --host, once for each name or address by which other brokers reach this one", code=USAGE
        )
    if client == bool(hosts):
        raise CommandError(
            "say what the certificate is for: either --host, once for each name or address of a server, or --client",
            code=USAGE,
        )
    from penstock.cli.authority import Authority, now_utc

    now = now_utc()
    authority = Authority.load(directory, now)
    _show_made(authority.issue(name, hosts, now, days, replace=force, is_broker=broker), output)


@command.command(
    "show",
    short_help="Show what is in a file of certificates.",
    help="""Show what is in a file of certificates (PEM): whose they are, for which hosts, and until when.

    Names are spelled as Java does, and so as Kafka's rules of access do. The key is that in FILE with .key in place of
    its suffix, or in FILE itself, unless you name it.""",
    epilog="""\b
Examples:
  penstock tls show tls/broker-1.pem
  penstock tls show /etc/letsencrypt/live/example.com/fullchain.pem --key privkey.pem
  penstock tls show tls/ca.pem -o json""",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--key", metavar="FILE", type=click.Path(path_type=Path), help="The private key to compare it with.")
@output_option
def show_file(file: Path, key: Path | None, output: str) -> None:
    from penstock.cli.authority import now_utc
    from penstock.cli.certificate_view import view_certificates, view_key

    views = view_certificates(file, now_utc())
    found = view_key(file, key)

    def table() -> None:
        for at, view in enumerate(views):
            title = str(file) if len(views) == 1 else f"{file}, certificate {at + 1} of {len(views)}"
            key_field = {"key": _tell_key(found)} if at == 0 else {}
            print_fields({**_fields(view), **key_field}, title=title)

    show(_plain(file, views, found), output, table)


def _show_made(made: "Made", output: str) -> None:
    from penstock.cli.authority import now_utc
    from penstock.cli.certificate_view import view_certificates, view_key

    views, key = view_certificates(made.certificate, now_utc()), view_key(made.certificate, made.key)

    def table() -> None:
        click.echo(f"made {made.certificate} and {made.key}")
        print_fields(_fields(views[0]))

    show(_plain(made.certificate, views, key), output, table)


def _plain(file: Path, views: "Sequence[CertificateView]", key: "KeyView | None") -> dict[str, Any]:
    told = None
    if key is not None:
        told = {"file": key.file, "mode": key.mode, "fits": key.fits, "problem": key.problem}
    return {"file": str(file), "certificates": [each.plain() for each in views], "key": told}


def _fields(view: "CertificateView") -> dict[str, object]:
    kind = "authority" if view.is_authority else ", ".join(view.uses) or "any use"
    return {
        "subject": view.subject or None,
        "issuer": "itself" if view.issuer == view.subject else view.issuer,
        "for": kind,
        "names": ", ".join(view.names) or None,
        "from": f"{view.begins:%Y-%m-%d %H:%M} UTC",
        "until": f"{view.ends:%Y-%m-%d %H:%M} UTC ({view.term})",
        "serial": view.serial,
    }


def _tell_key(key: "KeyView | None") -> str | None:
    if key is None:
        return None
    if key.problem is None:
        return f"{key.file} fits, mode {key.mode}"
    return f"{key.file} fits; {key.problem}" if key.fits else key.problem
