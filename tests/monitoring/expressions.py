"""Which series an expression of Prometheus asks for.

Whether it is an expression at all, Prometheus says; this only finds the selectors in one that is, to ask for each.
"""

import re

_TEXT = r'"(?:[^"\\]|\\.)*"'
_SELECTOR = re.compile(rf"\b((?:[a-z_]+:)?penstock_[\w:]+|up|ALERTS)\b(\{{(?:[^\"}}]|{_TEXT})*\}})?")


def selectors_in(expression: str) -> set[str]:
    """Names with the labels they are asked for with."""
    return {name + labels for name, labels in _found(expression)}


def names_in(expression: str) -> set[str]:
    return {name for name, _ in _found(expression)}


def _found(expression: str) -> list[tuple[str, str]]:
    return [(each[1], each[2] or "") for each in _SELECTOR.finditer(expression)]
