"""Compiles what `penstock.compiled` names to C, for a wheel and for an installation from a clone.

Where there is no C compiler, or compiling fails, the package is as good without: Python runs the same sources, slower.
`python hatch_build.py` compiles in a clone.
"""

import hashlib
import os
import runpy
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_ROOT = Path(__file__).parent
SOURCES = _ROOT / "src"
_BUILD = _ROOT / ".cache" / "mypyc"
_GROUP = "penstock_compiled"
_MARK = "penstock_compiled.sha256"
SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX")


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """What hatchling calls before it makes a wheel, editable or not."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or not compile_modules():
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":  # there Python finds them where they are
            build_data["force_include"] |= {str(path): str(path.relative_to(SOURCES)) for path in _libraries()}


def modules() -> list[Path]:
    """Sources to be compiled; read without importing the package, whose requirements may not be there."""
    names: tuple[str, ...] = runpy.run_path(str(SOURCES / "penstock" / "compiled.py"))["MODULES"]
    return [SOURCES.joinpath(*name.split(".")).with_suffix(".py") for name in names]


def is_fresh() -> bool:
    """Whether what is compiled was made of the sources as they are."""
    mark = SOURCES / _MARK
    return mark.is_file() and mark.read_text() == _digest() and all(path.exists() for path in _libraries())


def compile_modules() -> bool:
    """Compile, unless nothing has changed since. Returns whether compiled modules are there now."""
    if is_fresh():
        return True
    remove()
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        print(f"penstock: no C compiler ({compiler}); records are handled in pure Python, slower", file=sys.stderr)
        return False
    try:
        _compile(modules())
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, the package works without
        remove()
        print(f"penstock: compiling failed ({error}); records are handled in pure Python, slower", file=sys.stderr)
        return False
    (SOURCES / _MARK).write_text(_digest())
    return True


def remove() -> None:
    """Remove what was compiled; a module would be found before its source."""
    (SOURCES / _MARK).unlink(missing_ok=True)
    for path in SOURCES.rglob(f"*{SUFFIX}"):  # also of modules that are compiled no more
        path.unlink()


def _libraries() -> list[Path]:
    shared = SOURCES / f"{_GROUP}__mypyc{SUFFIX}"
    return [shared, *(path.with_name(path.stem + SUFFIX) for path in modules())]


def _digest() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in [*modules(), Path(__file__)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _compile(paths: list[Path]) -> None:
    from mypyc.build import mypycify
    from setuptools import Distribution

    os.environ["MYPYPATH"] = str(SOURCES)
    flags = [
        "--config-file=",
        "--strict",
        "--ignore-missing-imports",
        "--follow-imports=silent",
        "--no-warn-unused-ignores",
    ]
    flags += ["--explicit-package-bases", f"--cache-dir={_BUILD / 'types'}"]
    extensions = mypycify([*flags, *map(str, paths)], opt_level="3", group_name=_GROUP, target_dir=str(_BUILD / "c"))
    command: Any = Distribution({"ext_modules": extensions, "package_dir": {"": str(SOURCES)}}).get_command_obj(
        "build_ext"
    )
    command.inplace = True
    command.build_lib = command.build_temp = str(_BUILD / "objects")
    command.ensure_finalized()
    command.run()


if __name__ == "__main__":
    compile_modules()
