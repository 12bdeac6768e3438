"""The modules that mypyc compiles to C where there is a compiler, and whether they are.

The same source runs either way. A wheel or `make run` compiles them (`hatch_build.py`); where that was not
possible Python runs them as they are, some ten to a hundred times slower. `PENSTOCK_PURE=1` has Python run them as they
are although they are compiled.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

MODULES = (
    "penstock.records.batch",
    "penstock.records.build",
    "penstock.records.header_values",
    "penstock.records.record",
    "penstock.records.varint",
    "penstock.records.walk",
    "penstock.engine.queues.window",
    "penstock.engine.queues.sorting.block",
    "penstock.engine.queues.sorting.later",
    "penstock.engine.queues.sorting.marks",
    "penstock.engine.queues.sorting.place",
    "penstock.engine.queues.sorting.keys",
    "penstock.engine.queues.sorting.tenants",
    "penstock.engine.queues.sorting.lanes",
    "penstock.engine.queues.sorting.picker",
)


def is_compiled() -> bool:
    """Whether this process runs the compiled form."""
    found = find_spec(MODULES[0])
    return found is not None and not str(found.origin).endswith(".py")


def form() -> str:
    """The same for a person."""
    return "compiled" if is_compiled() else "pure Python"


class PureFinder:
    """Finds the sources of modules that are compiled, too."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in MODULES:
            return None
        found = PathFinder.find_spec(name, path, target)
        if found is None or found.origin is None:
            return found
        source = Path(found.origin).with_name(name.rpartition(".")[2] + ".py")
        return spec_from_file_location(name, source)


def run_pure() -> None:
    """Have Python run the sources from now on; called before any of the modules is imported."""
    sys.meta_path.insert(0, PureFinder)
