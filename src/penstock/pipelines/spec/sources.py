"""One source of the file → `Source`."""

import re
from datetime import UTC, datetime
from typing import Any, Final

from penstock.pipelines.model import Place, Source
from penstock.pipelines.spec import tables
from penstock.pipelines.spec.expectations import read_expectations, read_watermark
from penstock.pipelines.spec.tree import Entry, Findings, Leaf, Table, describe, is_lost, shorten
from penstock.pipelines.spec.values import read_data, read_options

_TOPIC: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
_SCHEMA_KEYS: Final = {
    "json": ("schema",),
    "avro": ("schema", "schema_file"),
    "protobuf": ("schema_file", "message"),
    "msgpack": ("schema",),
}


def read_source(entry: Entry, findings: Findings) -> Source | None:
    """A source; None where it is not clear what it is."""
    owner = f"source {entry.key}"
    table = entry.value
    if not isinstance(table, Table):
        findings.add(entry.place, f"{owner}: must be a map with `topic` or `files`; it is {describe(table)}")
        return None
    is_files, is_topic = table.get("files"), table.get("topic") or table.get("pattern")
    if bool(is_files) == bool(is_topic):
        said = (
            "both `files` and a topic are given; make two sources of it"
            if is_files
            else "give `topic`, `pattern` or `files`"
        )
        findings.add(entry.place, f"{owner}: {said}")
        return None
    keys = tables.FILES_SOURCE if is_files else tables.TOPIC_SOURCE
    values, places = read_options(table, keys, owner, findings, apart=("watermark", "expect", "from"))
    if is_files:
        if "from" in places:
            findings.add(places["from"], f"{owner}: unknown key `from`; files are read from the first one on")
        _check_files(values, places, entry.place, owner, findings)
    else:
        values["from"] = _read_start(table.get("from"), owner, findings)
        _check_topic(values, places, owner, findings)
        _check_format(values["format"], places, owner, findings)
    watermark = read_watermark(table.get("watermark"), owner, findings)
    if watermark and values.get("static"):
        findings.add(places["watermark"], f"{owner}: a static source has no watermark; remove one of the two")
    expect = tuple(read_expectations(table.get("expect"), owner, findings))
    return Source(entry.key, "files" if is_files else "topic", values, expect, watermark, entry.place)


def _check_files(
    values: dict[str, Any], places: dict[str, Place], place: Place, owner: str, findings: Findings
) -> None:
    if not values["static"] and "schema" not in places:
        example = "value STRING" if values["format"] == "text" else "id BIGINT, name STRING"
        said = f"a stream of files needs `schema`, as {example}; or set `static: true` to read them whole"
        findings.add(place, f"{owner}: {said}")


def _check_topic(values: dict[str, Any], places: dict[str, Place], owner: str, findings: Findings) -> None:
    if "topic" in places and "pattern" in places:
        findings.add(places["pattern"], f"{owner}: give `topic` or `pattern`, not both")
    for topic in values["topic"] or ():
        if not _TOPIC.fullmatch(topic):
            said = f"{shorten(topic)} cannot be a topic's name; names are of [A-Za-z0-9._-]"
            findings.add(places["topic"], f"{owner}: {said}")
    if isinstance(values["from"], dict) and values["topic"]:
        for topic in values["from"].keys() - set(values["topic"]):
            findings.add(places["from"], f"{owner}: `from` names the topic {shorten(topic)}, which is not read here")


def _check_format(kind: str | None, places: dict[str, Place], owner: str, findings: Findings) -> None:
    if kind is None and "format" in places:
        return
    if kind is None:
        for key in ("schema", "schema_file", "message"):
            if key in places:
                formats = ", ".join(_SCHEMA_KEYS)
                findings.add(places[key], f"{owner}: `{key}` without `format`; set it to one of {formats}")
        return
    takes = _SCHEMA_KEYS[kind]
    needed = [key for key in takes if key != "message"]
    if not any(key in places for key in needed):
        findings.add(places["format"], f"{owner}: format {kind} needs {' or '.join(f'`{key}`' for key in needed)}")
    for key in ("schema", "schema_file", "message"):
        if key in places and key not in takes:
            findings.add(places[key], f"{owner}: format {kind} takes no `{key}`")


def _read_start(entry: Entry | None, owner: str, findings: Findings) -> Any:
    """`earliest`, `latest`, a time in ISO form with its zone (UTC unless given), or {topic: {partition: offset}}."""
    if entry is None or is_lost(entry.value):
        return "earliest"
    if isinstance(entry.value, Leaf):
        text = entry.value.text
        if text in ("earliest", "latest"):
            return text
        try:
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
        except ValueError:
            pass
    elif isinstance(entry.value, Table):
        start = read_data(entry.value)
        if all(isinstance(each, dict) and _are_offsets(each) for each in start.values()):
            return start
    findings.add(
        entry.place,
        f"{owner}: `from` must be earliest, latest, a time as 2026-01-31T12:00:00Z, or {{topic: {{partition: offset}}}}"
        f"; it is {describe(entry.value)}",
    )
    return "earliest"


def _are_offsets(partitions: dict[str, Any]) -> bool:
    """Offsets as in Spark's connector, where -2 is the earliest and -1 the latest."""
    return bool(partitions) and all(
        key.isascii()
        and key.isdecimal()
        and isinstance(offset, int)
        and not isinstance(offset, bool)
        and -2 <= offset < 2**63
        for key, offset in partitions.items()
    )
