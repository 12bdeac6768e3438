"""Sources of Penstock to compare: a checkout as it is, or a commit unpacked beside others, compiled where it can be."""

import io
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = Path("src", "penstock")
NO_COMMIT = "no commit"


class TreeError(Exception):
    """There are no such sources, or they cannot be run."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Sources ready to run.

    Attributes:
        name: as it was asked for.
        revision: its commit; of a checkout with `+` when files differ from it.
        compiled: how many modules of it are compiled.
    """

    name: str
    root: Path
    revision: str
    compiled: int

    @property
    def launcher(self) -> list[str]:
        """The command `penstock` of these sources, whatever is installed and wherever this runs."""
        paths = (f"PYTHONPATH={self.root / 'src'}", "PYTHONSAFEPATH=1")
        return ["env", *paths, sys.executable, "-m", "penstock.cli.main"]

    @property
    def is_commit(self) -> bool:
        """Whether its revision says all of it."""
        return self.revision not in ("", NO_COMMIT) and not self.revision.endswith("+")

    def text(self) -> str:
        modules = f"{self.compiled} compiled modules" if self.compiled else "nothing compiled"
        return f"{self.name} ({self.revision}, {modules})"


def open_tree(name: str, scratch: Path) -> Tree:
    """Make a checkout's directory or a commit ready to run; a commit is unpacked into `scratch`.

    Raises:
        TreeError: it is neither, or its build failed, or Python would import another Penstock.
    """
    directory = Path(name)
    if (directory / _PACKAGE).is_dir():
        root, revision = directory.resolve(), _revision(directory)
    else:
        root, revision = scratch, _unpack(name, scratch)
    if (root / "hatch_build.py").is_file():
        _run([sys.executable, "hatch_build.py"], root, f"{name}: hatch_build.py failed; run it there by hand")
    tree = Tree(name, root, revision, len(list((root / "src").rglob("*.so"))))
    found = [*tree.launcher[:-2], "-c", "import penstock.cli.main, sys; print(penstock.__file__)"]
    imported = _run(found, root, f"{name}: its sources cannot be imported by {sys.executable}").strip()
    if not imported.startswith(f"{root}/"):
        raise TreeError(f"{name}: Python imports {imported} in place of {root / _PACKAGE}")
    return tree


def _unpack(ref: str, scratch: Path) -> str:
    refused = (
        f"{ref} is neither a checkout (a directory with {_PACKAGE}) nor a commit of {ROOT}; "
        "`git log --oneline --all` lists commits"
    )
    commit = _run(["git", "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"], ROOT, refused).strip()
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(scratch, filter="data")
    if not (scratch / _PACKAGE).is_dir():
        raise TreeError(f"{ref}: commit {commit} has no {_PACKAGE}; name a later one")
    return commit[:9]


def _revision(checkout: Path) -> str:
    """NO_COMMIT when git does not know the directory."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--abbrev=9", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or NO_COMMIT


def _run(command: list[str], directory: Path, refused: str) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TreeError("\n".join([refused, *done.stderr.strip().splitlines()[-10:]]))
    return done.stdout
