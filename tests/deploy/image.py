"""What `deploy/docker/Dockerfile` makes, without a container engine: its instructions, its program, its confinement."""

import json
import os
import re
import shlex
import subprocess
import sysconfig
import venv
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .programs import DEPLOY, ROOT, find, run

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
SETTINGS = DEPLOY / "docker" / "penstock.yaml"
USER = 10001
# A user without rights as process 1, who can write into one directory only: what Kubernetes makes of the chart.
# Two user namespaces, because only the outer one may mount, and in the inner one nothing is left of that right.
_CONFINED = [
    *("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("sh", "-c"),
    'mount --bind "$0" "$0" && mount -o remount,ro,bind / && '
    f'exec unshare --user --map-user={USER} --map-group={USER} setpriv --no-new-privs -- "$@"',
]


@dataclass(frozen=True, slots=True)
class Instructions:
    """The last stage's, as the engine would take them."""

    stages: Sequence[str]
    environment: Mapping[str, str]
    user: str
    entry_point: Sequence[str]
    command: Sequence[str]
    health_check: Sequence[str]
    volumes: Sequence[str]


def read_dockerfile(text: str | None = None) -> Instructions:
    lines = re.sub(r"^#.*\n", "", text or DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    pairs = [line.split(None, 1) for line in lines if line.strip()]
    stages = [rest for word, rest in pairs if word == "FROM"]
    last = pairs[max(n for n, (word, _) in enumerate(pairs) if word == "FROM") :]

    def only(word: str) -> str:
        (found,) = [rest for each, rest in last if each == word]
        return found

    environment = dict(item.split("=", 1) for word, rest in last if word == "ENV" for item in shlex.split(rest))
    return Instructions(
        stages=stages,
        environment=environment,
        user=only("USER"),
        entry_point=json.loads(only("ENTRYPOINT")),
        command=json.loads(only("CMD")),
        health_check=json.loads(only("HEALTHCHECK").partition("CMD ")[2]),
        volumes=shlex.split(only("VOLUME")),
    )


def install(directory: Path) -> Path:
    """Build the wheel and install it where nothing else of the source is seen; the directory with the programs.

    What Penstock depends on is shared with the tests' own environment: fetching it is the registries' part, not ours.
    """
    uv = find("uv", comes_with="make setup")
    built = run(uv, "build", "--quiet", "--wheel", "--out-dir", directory / "wheel", ROOT)
    assert built.returncode == 0, built.stdout
    home = directory / "opt"
    venv.create(home, with_pip=False, symlinks=True)
    (wheel,) = (directory / "wheel").glob("*.whl")
    python = home / "bin" / "python"
    put = run(uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", python, wheel)
    assert put.returncode == 0, put.stdout
    # A directory named in a .pth is searched, but its own .pth files are not read: the source tree stays out of sight.
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-c", "import penstock; print(penstock.__file__)").stdout
    assert where.startswith(str(packages)), where
    assert "records: compiled" in run(home / "bin" / "penstock", "version").stdout
    return home / "bin"


def confine(command: Sequence[str], writable: Path) -> list[str]:
    """The command as a user without rights who can write into one directory only, where the system lets us do that."""
    probe = run(*_CONFINED, writable, "true")
    if probe.returncode == 0:
        return [*_CONFINED, str(writable), *command]
    warnings.warn(f"not confined, user namespaces are not to be had here: {probe.stdout.strip()}", stacklevel=2)
    return ["setpriv", "--no-new-privs", "--", *command]


def broker_of(process: "subprocess.Popen[bytes]") -> int:
    """The id of the broker itself, as `kill` here needs it: what stands around it in its namespace only waits."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    confined = "unshare" in Path(f"/proc/{process.pid}/comm").read_text()
    return int(children[0]) if confined else process.pid


def environment_of(instructions: Instructions, programs: Path) -> dict[str, str]:
    """The image's, and nothing of ours but what makes a process run."""
    image = {name: value for name, value in instructions.environment.items() if name != "PATH"}
    return {"PATH": f"{programs}{os.pathsep}/usr/bin:/bin", "HOME": "/nonexistent", **image}
