"""Functions that are steps: found and asked for their parameters without running their file, and loaded to be run.

A worker cannot import a file that lies beside a pipeline. So the module is imported under a private name and travels
by value, and so do modules beside it that it imports. These leave `sys.modules` again, as two pipelines in one process
may both have a `prices.py`; a function that imports one only when it is called will not find it.
"""

import ast
import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import RLock
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

from penstock.extras import tell_missing
from penstock.pipelines.errors import Finding, NotInstalled, SpecError
from penstock.pipelines.model import Place, Step
from penstock.pipelines.spec.tree import nearest, shorten

_PRIVATE: Final = "_penstock_pipeline_"
_importing: Final = RLock()


class _Loader(SourceFileLoader):
    """Compiles a file whenever asked: compiled files are told apart by seconds, and would lie beside it."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class Parameter(NamedTuple):
    """A parameter of a function. `is_free`: it can be given by position."""

    name: str
    has_default: bool
    is_free: bool = True


class Signature(NamedTuple):
    """What a function takes, and where it stands. `takes_more`: it has `*args`."""

    parameters: tuple[Parameter, ...]
    place: Place
    takes_more: bool = False


class Reference(NamedTuple):
    """`file.py:function` or `package.module:function`."""

    module: str
    function: str

    @property
    def is_file(self) -> bool:
        return self.module.endswith(".py")


def parse_reference(text: str) -> Reference | None:
    """None where it is no reference."""
    module, _, function = text.strip().rpartition(":")
    is_module = module.endswith(".py") or all(each.isidentifier() for each in module.split("."))
    return Reference(module, function) if is_module and function.isidentifier() else None


def find_file(reference: Reference, directory: Path) -> Path | None:
    """The file that has the function, without importing anything; None where there is none."""
    if reference.is_file:
        path = directory / reference.module
        return path if path.is_file() else None
    paths: list[str] | None = [str(directory), *sys.path]
    spec: ModuleSpec | None = None
    name = ""
    for part in reference.module.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, paths)
        if spec is None:
            return None
        paths = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None


def parse_file(path: Path) -> ast.Module:
    """The file's syntax.

    Raises:
        SpecError: it is no Python.
    """
    try:
        return ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise SpecError([Finding(Place(str(path), error.lineno or 1), f"not Python: {error.msg}")]) from error
    except (ValueError, RecursionError, OSError) as error:
        raise SpecError([Finding(Place(str(path), 1), f"cannot be read: {error}")]) from error


def find_definition(module: ast.Module, function: str) -> ast.FunctionDef | None:
    """The function's definition at the top of a file; None where there is none."""
    return next((each for each in _definitions(module) if each.name == function), None)


def _is_bound(module: ast.Module, name: str) -> bool:
    """Whether running the file may give something that name, other than by a definition at its top."""
    for each in ast.walk(module):
        match each:
            case ast.Name(id=bound, ctx=ast.Store()) | ast.FunctionDef(name=bound) | ast.ClassDef(name=bound):
                found = bound
            case ast.alias(name=full, asname=short):
                found = short or full.partition(".")[0]
                if full == "*":
                    return True
            case _:
                continue
        if found == name:
            return True
    return False


def _definitions(module: ast.Module) -> Iterator[ast.FunctionDef]:
    """The last one of a name counts, as it does when the module runs."""
    return (each for each in reversed(module.body) if isinstance(each, ast.FunctionDef))


def read_signature(step: str, python: str, place: Place, directory: Path) -> Signature | None:
    """What the function of a step takes, by its file's text; None where the file only names it (an import, a value).

    Raises:
        SpecError: there is no such file, or nothing of that name in it.
    """
    reference = parse_reference(python)
    if reference is None:
        raise _wrong(
            place, step, f"`python` must be `file.py:function` or `package.module:function`; it is {shorten(python)}"
        )
    path = find_file(reference, directory)
    if path is None:
        where = f"in {directory}" if reference.is_file else "among Python's modules"
        raise _wrong(place, step, f"there is no {reference.module} {where}")
    module = parse_file(path)
    definition = find_definition(module, reference.function)
    if definition is None:
        if _is_bound(module, reference.function):
            return None
        hint = nearest(reference.function, [each.name for each in _definitions(module)])
        raise _wrong(place, step, f"{path.name} has no function `{reference.function}`; {hint}")
    arguments = definition.args
    free = [*arguments.posonlyargs, *arguments.args]
    required = len(free) - len(arguments.defaults)
    return Signature(
        (
            *(Parameter(each.arg, index >= required) for index, each in enumerate(free)),
            *(
                Parameter(each.arg, default is not None, False)
                for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            ),
        ),
        Place(str(path), definition.lineno),
        arguments.vararg is not None,
    )


def signature_of(function: Callable[..., Any], place: Place) -> Signature:
    """The same of a function that is there already."""
    kinds = inspect.Parameter
    found = inspect.signature(function).parameters.values()
    return Signature(
        tuple(
            Parameter(each.name, each.default is not kinds.empty, each.kind is not kinds.KEYWORD_ONLY)
            for each in found
            if each.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
        ),
        place,
        any(each.kind is kinds.VAR_POSITIONAL for each in found),
    )


def _wrong(place: Place | None, step: str, text: str) -> SpecError:
    return SpecError([Finding(place, f"step {step}: {text}")])


def load_function(step: Step, directory: Path) -> Callable[..., Any]:
    """The function of a step, ready to travel to workers.

    Raises:
        SpecError: its file cannot be imported, or has no such function.
    """
    if step.function is not None:
        _ship(step.function, directory)
        return step.function
    reference = parse_reference(step.python)
    if reference is None:
        raise _wrong(
            step.place, step.name, f"{shorten(step.python)} is neither `file.py:function` nor `package.module:function`"
        )
    if reference.is_file:
        path = directory / reference.module
        if not path.is_file():
            raise _wrong(step.place, step.name, f"there is no {reference.module} in {directory}")
        module = import_file(path, directory)
    else:
        module = _import_name(step, reference.module, directory)
    function = getattr(module, reference.function, None)
    if function is None:
        known = [name for name, each in vars(module).items() if isinstance(each, FunctionType)]
        raise _wrong(
            step.place,
            step.name,
            f"{reference.module} has no function `{reference.function}`; {nearest(reference.function, known)}",
        )
    if not callable(function):
        raise _wrong(step.place, step.name, f"{step.python} is a {type(function).__name__}, not a function")
    _ship(function, directory)
    return function  # type: ignore[no-any-return]


def import_file(path: Path, directory: Path) -> ModuleType:
    """A file run anew as a module with a private name, that stays the same for the same file.

    Raises:
        SpecError: it raised something, said with the line of the file where it came from.
        NotInstalled: it imports what an extra brings.
    """
    path = path.absolute()
    name = f"{_PRIVATE}{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:12]}"
    spec = spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    with _beside(directory):
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except SpecError:
            raise
        except (Exception, SystemExit) as error:
            blamed = _blame(error, path)
            if isinstance(error, ModuleNotFoundError) and (told := tell_missing(error.name or "")):
                raise NotInstalled(f"{blamed.place}: {told}") from error
            raise SpecError([blamed]) from error
    return module


def _import_name(step: Step, name: str, directory: Path) -> ModuleType:
    with _beside(directory):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(error.name + ".")):
                raise _wrong(
                    step.place, step.name, f"there is no module {error.name}; install it, or name a file"
                ) from error
            raise _wrong(step.place, step.name, f"{name} cannot be imported: {error}") from error
        except (Exception, SystemExit) as error:
            raise _wrong(step.place, step.name, f"{name} cannot be imported: {_short(error)}") from error


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _blame(error: BaseException, path: Path) -> Finding:
    """The error, at the last line of the file it went through."""
    if isinstance(error, SyntaxError) and error.filename:
        return Finding(Place(error.filename, error.lineno or 1), f"not Python: {error.msg}")
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == str(path)]
    return Finding(Place(str(path), (lines[-1] if lines else None) or 1), f"cannot be imported: {_short(error)}")


@contextmanager
def _beside(directory: Path) -> Iterator[None]:
    """Lets an import see the modules of a directory, which are nobody's afterwards."""
    with _importing:
        beside = str(directory.absolute())
        if beside in sys.path:
            yield
            return
        before = set(sys.modules)
        sys.path.insert(0, beside)
        # A file may be younger than what the import system remembers of its directory.
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path.remove(beside)
            for name in set(sys.modules) - before:
                if _lies_in(sys.modules[name], directory):
                    del sys.modules[name]


def _lies_in(module: ModuleType, directory: Path) -> bool:
    """Whether it is imported by its name from this directory; what lies deeper, as a virtual environment, is not."""
    file = getattr(module, "__file__", None)
    name = module.__name__
    if not file or name.startswith(("penstock.", _PRIVATE)):
        return False
    expected = directory.absolute().joinpath(*name.split("."))
    return Path(file) in (expected.with_name(expected.name + ".py"), expected / "__init__.py")


def _ship(function: Callable[..., Any], directory: Path) -> None:
    """Has a function travel by value if workers cannot import its module, and with it the modules beside it."""
    from pyspark.cloudpickle import register_pickle_by_value

    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and module.__name__ == name and _lies_in(module, directory):
            register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    own = sys.modules.get(getattr(function, "__module__", None) or "")
    if own is not None and own.__name__.startswith(_PRIVATE):
        register_pickle_by_value(own)  # type: ignore[no-untyped-call]
