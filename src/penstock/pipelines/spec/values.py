"""A value of a pipeline's file, read as its key wants it: durations are seconds, sizes bytes, texts texts."""

import math
import re
from copy import copy
from typing import Any, Final

from penstock.pipelines.keys import Key, Keys
from penstock.pipelines.model import Place
from penstock.pipelines.spec.tree import Findings, Items, Leaf, Node, Table, describe, is_lost, is_nothing, nearest

_WHOLE: Final = re.compile(r"[-+]?\d[\d_]{0,30}")
_NUMBER: Final = re.compile(r"[-+]?\d[\d_]{0,30}(\.\d{1,30})?([eE][-+]?\d{1,2})?")
_PERIOD: Final = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*(ms|s|m|h|d)\s*")
_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_FLAGS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_WANTED: Final = {
    "text": "a text",
    "number": "a number",
    "flag": "true or false",
    "texts": "a text or a list of texts",
    "map": "a map of texts",
    "duration": "a duration, as 500ms, 90s, 10m or 1h, or a number of seconds",
    "size": "a size, as 64KiB or 10MB, or a number of bytes",
}


class Wrong(ValueError):
    """A value will not do; the text says what would."""


def parse_duration(text: str) -> float:
    """Seconds. Units can follow each other: `1h30m`."""
    if _NUMBER.fullmatch(text):
        return float(text.replace("_", ""))
    parts = list(_PERIOD.finditer(text))
    if not parts or "".join(each[0] for each in parts) != text:
        raise Wrong(_WANTED["duration"])
    return math.fsum(float(each[1]) * _SECONDS[each[2]] for each in parts)


def parse_size(text: str) -> int:
    """Bytes. `kB` is a thousand, `KiB` 1024."""
    found = _SIZE.fullmatch(text.replace("_", ""))
    if not found or (found[3] and not found[2]):
        raise Wrong(_WANTED["size"])
    power = " kmgt".index(found[2].lower() or " ")
    return round(float(found[1]) * float(1024 if found[3] else 1000) ** power)


def read_data(node: Node) -> Any:
    """Plain Python values: what a key of kind `any` holds."""
    match node:
        case Table():
            return {each.key: read_data(each.value) for each in node.entries}
        case Items():
            return [read_data(each) for each in node.nodes]
        case Leaf(is_plain=False):
            return node.text
        case _:
            return _read_plain(node)


def _read_plain(leaf: Leaf) -> Any:
    if leaf.is_nothing:
        return None
    if leaf.text.lower() in ("true", "false"):
        return leaf.text.lower() == "true"
    if _WHOLE.fullmatch(leaf.text):
        return int(leaf.text)
    return float(leaf.text.replace("_", "")) if _NUMBER.fullmatch(leaf.text) else leaf.text


def read_value(key: Key, node: Node) -> Any:
    """The value as the key wants it.

    Raises:
        Wrong: it is something else, or out of range.
    """
    match key.kind:
        case "any":
            return read_data(node)
        case "texts":
            nodes = node.nodes if isinstance(node, Items) else (node,)
            if not nodes:
                raise Wrong(f"{_WANTED['texts']}, with something in it")
            return tuple(_text_of(each, "texts") for each in nodes if not is_lost(each))
        case "map":
            return _read_map(node)
    text = _text_of(node, key.kind)
    match key.kind:
        case "choice":
            if text not in key.choices:
                raise Wrong(f"one of {', '.join(key.choices)}: {nearest(text, key.choices)}")
            return text
        case "flag":
            if text.lower() not in _FLAGS:
                raise Wrong(_WANTED["flag"])
            return _FLAGS[text.lower()]
        case "text":
            return text
        case _:
            return _in_range(key, _read_number(key, text.strip()))


def _text_of(node: Node, kind: str) -> str:
    if not isinstance(node, Leaf) or node.function is not None or node.is_nothing:
        raise Wrong(_WANTED.get(kind, "a text"))
    return node.text


def _read_map(node: Node) -> dict[str, str]:
    if not isinstance(node, Table):
        raise Wrong(_WANTED["map"])
    for each in node.entries:
        if not isinstance(each.value, Leaf) or each.value.is_nothing or each.value.function:
            raise Wrong(f'{_WANTED["map"]}; `{each.key}` has {describe(each.value)}, write "" for an empty text')
    return {each.key: each.value.text for each in node.entries if isinstance(each.value, Leaf)}


def _read_number(key: Key, text: str) -> float:
    match key.kind:
        case "duration":
            return parse_duration(text)
        case "size":
            return parse_size(text)
    # A key whose default is a float takes fractions; the others count things.
    if isinstance(key.default, float):
        if not _NUMBER.fullmatch(text):
            raise Wrong(_WANTED["number"])
        return float(text.replace("_", ""))
    if not _WHOLE.fullmatch(text):
        raise Wrong("a whole number")
    return int(text.replace("_", ""))


def _in_range(key: Key, value: float) -> float:
    if not math.isfinite(value) or abs(value) >= 2**63:
        raise Wrong("smaller")
    if key.least is not None and value < key.least:
        unit = {"duration": " s", "size": " bytes"}.get(key.kind, "")
        raise Wrong(f"at least {key.least:g}{unit}")
    return value


def read_options(
    table: Table, keys: Keys, owner: str, findings: Findings, apart: tuple[str, ...] = ()
) -> tuple[dict[str, Any], dict[str, Place]]:
    """A table's values by its keys, defaults included, and where each key stands.

    Args:
        owner: whose table it is, for the findings: `source orders`; "" for the pipeline's own.
        apart: keys that somebody else reads; they are known here, and not among the values.
    """
    known = {each.name: each for each in keys}
    values = {each.name: copy(each.default) for each in keys if each.name not in apart}
    prefix = f"{owner}: " if owner else ""
    for entry in table.entries:
        key = known.get(entry.key)
        if key is None:
            if entry.key not in apart:
                hint = nearest(entry.key, (*known, *apart))
                findings.add(entry.place, f"{prefix}unknown key `{entry.key}`; {hint}")
        elif entry.key not in apart and not is_nothing(entry.value) and not is_lost(entry.value):
            try:
                values[entry.key] = read_value(key, entry.value)
            except Wrong as wrong:
                given = "what is given" if key.secret else describe(entry.value)
                findings.add(entry.place, f"{prefix}`{entry.key}` must be {wrong}; it is {given}")
    for key in keys:
        if key.required and table.get(key.name) is None:
            findings.add(table.place, f"{prefix}`{key.name}` is missing")
    return values, {each.key: each.place for each in table}
