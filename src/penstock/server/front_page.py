"""The front page of the HTTP port: what is where. Plain text, or a little HTML for who asks for it, as browsers do."""

from html import escape
from typing import Final, NamedTuple

from penstock import __version__

_PATHS: Final = {
    "/health": "how the broker is, with reasons, as JSON",
    "/health/live": "200 while the process answers",
    "/health/ready": "200 when it can serve clients, else 503 with reasons",
    "/metrics": "figures for Prometheus",
}
_DOCS: Final = "README.md and docs/ beside the source; on the command line: penstock --help"


class Whereabouts(NamedTuple):
    """Which broker it is, and where its clients are told to connect: empty while it does not listen for them yet."""

    node_id: int
    kafka: str


def render(where: Whereabouts | None, accept: str) -> tuple[str, str]:
    """Body and content type of the page, for an Accept header.

    Args:
        where: None for who may not know which broker it is.
    """
    title, facts = "Penstock", {"docs": _DOCS}
    if where is not None:
        title = f"Penstock {__version__}, broker {where.node_id}"
        facts = {"Kafka clients": where.kafka or "not listening yet", **facts}
    if "text/html" in accept.lower():
        return _render_html(title, facts), "text/html; charset=utf-8"
    width = max(map(len, {**_PATHS, **facts}))
    lines = [f"{name:{width}}  {what}" for name, what in {**_PATHS, **facts}.items()]
    return "\n".join([title, "", *lines, ""]), "text/plain; charset=utf-8"


def render_missing(path: str) -> str:
    """What is answered where nothing is."""
    shown = ascii(path[:100])
    return f"there is nothing at {shown}; GET / lists what is here: {', '.join(_PATHS)}\n"


def _render_html(title: str, facts: dict[str, str]) -> str:
    rows = [(f'<a href="{path}">{path}</a>', what) for path, what in _PATHS.items()]
    rows += [(escape(name), escape(what)) for name, what in facts.items()]
    listed = "\n".join(f"<dt>{name}</dt><dd>{what}</dd>" for name, what in rows)
    head = f'<meta charset="utf-8"><title>{escape(title)}</title>'
    return f"<!doctype html>\n{head}\n<h1>{escape(title)}</h1>\n<dl>\n{listed}\n</dl>\n"
