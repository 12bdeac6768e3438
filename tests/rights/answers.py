"""What of an answer is about rights: error codes, what is named, what is told of it, and bits of operations."""

from typing import Any

_NAMED = frozenset(
    {
        *("name", "topic", "topic_name", "group_id", "key", "transactional_id", "resource_name", "user", "principal"),
        *("partition_index", "partition"),
    }
)
_SEEN = frozenset({"records", "active_producers", "members", "assignment"})
"""Where it matters that there is something, and no more. There are always settings, and what is only checked may have
an id: it matters that there are none where they are refused."""
_OFFSETS = {
    "committed_offset": "offset",
    "end_offset": "end",
    "offset": "end",
    "high_watermark": "end",
    "last_stable_offset": "stable",
}
"""Where it matters that there is more than nothing."""
_WHOLE = frozenset({"error_code", "partition_error_code"})
_MANY = 4
"""More rows that differ in their last number alone, as partitions do, are counted."""
_NOT_ASKED = -(1 << 31)
_KAFKAS_OWN = "__share_group_state"
"""A topic of its own making that no other broker has."""


def words(answer: Any) -> str:
    """An answer in short. What a list has is in order, as no order is promised."""
    return _struct(answer) or "-"


def _struct(value: dict[str, Any]) -> str:
    return " ".join(filter(None, (_field(name, part, value) for name, part in value.items())))


def _field(name: str, part: Any, value: dict[str, Any]) -> str:
    """One field of a structure; nothing where it is not about rights."""
    if isinstance(part, dict):
        return _struct(part)
    if name.endswith("error_code"):
        return str(part) if name in _WHOLE else f"{name.removesuffix('_error_code')}={part}"
    if name.endswith("authorized_operations"):
        return f"{part:b}b" if part != _NOT_ASKED else ""
    if name in _NAMED:
        return "null" if part is None else str(part)
    if name in _OFFSETS:
        return _OFFSETS[name] if part > 0 else ""
    if name in _SEEN:
        return name if part else ""
    if name == "topic_id":
        return "id" if part.int and "topic_config_error_code" not in value else ""
    if name == "configs":
        is_refused = any(code for key, code in value.items() if key.endswith("error_code"))
        return "configs though refused" if part and is_refused else ""
    return _rows(part)


def _rows(part: Any) -> str:
    if not (isinstance(part, list | tuple) and part and isinstance(part[0], dict)):
        return ""
    rows = sorted(filter(None, map(_struct, filter(_is_everywhere, part))))
    if len(rows) > _MANY and all(row.rpartition(" ")[2].isdecimal() for row in rows):
        alike = {row.rpartition(" ")[0] for row in rows}
        if len(alike) == 1:
            return f"[{len(rows)} like {rows[0]}]"
    return f"[{', '.join(rows)}]" if rows else ""


def _is_everywhere(row: dict[str, Any]) -> bool:
    return _KAFKAS_OWN not in (row.get("name"), row.get("topic"))
