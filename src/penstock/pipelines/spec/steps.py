"""One step of the file → `Step`, with what it reads: the tables of its query, or its function's parameters."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.pipelines.errors import SpecError
from penstock.pipelines.model import Place, Step
from penstock.pipelines.spec import queries, tables
from penstock.pipelines.spec.expectations import read_expectations, read_watermark
from penstock.pipelines.spec.functions import Signature, read_signature, signature_of
from penstock.pipelines.spec.tree import Entry, Findings, Leaf, Table, describe, nearest, shorten
from penstock.pipelines.spec.values import read_options

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


class Known:
    """Names that a step can read, and names that stand below it."""

    def __init__(self, findings: Findings) -> None:
        self.below: dict[str, str] = {}
        self._above: dict[str, tuple[str, Entry]] = {}
        self._findings = findings

    def add(self, kind: str, entry: Entry) -> None:
        """A name, if it will do: it is the name of a view in SQL."""
        name = entry.key
        if not _NAME.fullmatch(name):
            self._findings.add(
                entry.place,
                f"{kind} {shorten(name)}: the name must be of letters, digits and '_', begin with no digit, and have "
                "100 at most: it is a table's name in SQL",
            )
        elif name.upper() in queries.RESERVED:
            self._findings.add(entry.place, f"{kind} {name}: {name.upper()} is a word of SQL; take another name")
        first = self._above.setdefault(name.casefold(), (kind, entry))
        if first[1] is not entry:
            self._findings.add(
                entry.place,
                f"{kind} {name}: the {first[0]} {first[1].key} on line {first[1].place.line} has that name, as case "
                "does not matter in SQL; rename one",
            )

    def names(self) -> list[str]:
        return [entry.key for _, entry in self._above.values()]

    def find(self, name: str) -> str | None:
        """The name as its owner has it."""
        found = self._above.get(name.casefold())
        return found[1].key if found else None

    def why_not(self, name: str, reader: str) -> str:
        """Why a name cannot be read."""
        later = self.below.get(name.casefold())
        if later == reader:
            return f"`{name}` is the step itself"
        if later:
            return f"`{later}` stands below; a step sees only what is above it"
        return f"`{name}` is no source or step above; {nearest(name, self.names())}"


def read_step(entry: Entry, known: Known, directory: Path, findings: Findings) -> Step | None:
    """A step; None where it is not clear what it is."""
    owner = f"step {entry.key}"
    table = entry.value
    if not isinstance(table, Table):
        findings.add(entry.place, f"{owner}: must be a map with `sql` or `python`; it is {describe(table)}")
        return None
    sql, python = table.get("sql"), table.get("python")
    function = python.value.function if python and isinstance(python.value, Leaf) else None
    apart = ("watermark", "expect", "python") if function else ("watermark", "expect")
    values, places = read_options(table, tables.STEP, owner, findings, apart=apart)
    watermark = read_watermark(table.get("watermark"), owner, findings)
    expect = tuple(read_expectations(table.get("expect"), owner, findings))
    if bool(sql) == bool(python):
        said = "give `sql` or `python`, not both" if sql else "give `sql` or `python`"
        findings.add(entry.place, f"{owner}: {said}")
        return None
    given = _given_inputs(values["inputs"], entry.key, places, known, findings)
    step = Step(entry.key, (), expect=expect, watermark=watermark, place=entry.place)
    if sql:
        query, begin = values["sql"], sql.value.place
        if query is None or not isinstance(sql.value, Leaf):
            return None
        begin = sql.value.text_place or begin
        inputs = given if given is not None else _query_inputs(query, entry.key, begin, known, findings)
        return replace(step, inputs=inputs, sql=query, sql_place=begin)
    assert python is not None
    if not isinstance(python.value, Leaf) or python.value.is_lost:
        return None
    text, place = python.value.text, python.value.place
    try:
        signature = signature_of(function, place) if function else read_signature(entry.key, text, place, directory)
    except SpecError as error:
        findings.extend(error.findings)
        return None
    inputs = _function_inputs(signature, given, entry.key, place, known, findings)
    return replace(step, inputs=inputs, python=text, function=function)


def _given_inputs(
    given: tuple[str, ...] | None, step: str, places: dict[str, Place], known: Known, findings: Findings
) -> tuple[str, ...] | None:
    if given is None:
        return None
    for name in given:
        if known.find(name) is None:
            findings.add(places["inputs"], f"step {step}: `inputs`: {known.why_not(name, step)}")
    return tuple(dict.fromkeys(known.find(name) or name for name in given))


def _query_inputs(sql: str, step: str, place: Place, known: Known, findings: Findings) -> tuple[str, ...]:
    if not sql.strip():
        findings.add(place, f"step {step}: `sql` is empty")
        return ()
    read = queries.tables(sql)
    inputs = tuple(found for name in read if (found := known.find(name)))
    early = [name for name in read if name.casefold() in known.below and known.find(name) is None]
    for name in early:
        findings.add(place, f"step {step}: {known.why_not(name, step)}")
    if not inputs and not early and known.names():
        said = (
            known.why_not(read[0], step)
            if len(read) == 1
            else f"there is {', '.join(f'`{each}`' for each in known.names())}"
        )
        findings.add(place, f"step {step}: the query reads no source and no step above: {said}")
    return inputs


def _function_inputs(
    signature: Signature | None,
    given: tuple[str, ...] | None,
    step: str,
    place: Place,
    known: Known,
    findings: Findings,
) -> tuple[str, ...]:
    """Its parameters, by name: those without a default, and those with one as long as they are known."""
    if signature is None:
        if given is None:
            findings.add(
                place,
                f"step {step}: its parameters cannot be seen without running the file; name them: `inputs: [...]`",
            )
        return given or ()
    free = [each for each in signature.parameters if each.is_free]
    for each in signature.parameters:
        if not each.is_free and not each.has_default:
            findings.add(
                signature.place,
                f"step {step}: the parameter `{each.name}` is keyword-only; let it be given by position",
            )
    if given is not None:
        least = sum(not each.has_default for each in free)
        if len(given) < least or (len(given) > len(free) and not signature.takes_more):
            findings.add(
                signature.place, f"step {step}: the function takes {len(free)} tables, and `inputs` names {len(given)}"
            )
        return given
    inputs = []
    for each in free:
        found = known.find(each.name)
        if found is None and each.has_default:
            break
        if found is None:
            findings.add(signature.place, f"step {step}: the parameter {known.why_not(each.name, step)}")
        inputs.append(found or each.name)
    if not inputs:
        findings.add(
            signature.place, f"step {step}: the function has no parameter, and so reads nothing; name its tables"
        )
    return tuple(inputs)
