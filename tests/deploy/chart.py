"""The chart as helm renders it, and a container's environment as the kubelet would make it."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from .programs import DEPLOY, helm, run

CHART = DEPLOY / "helm" / "penstock"
OLDEST, NEWEST = "1.28.0", "1.37.0"
Manifest = dict[str, Any]
# What nobody can choose for whoever installs it: without these values nothing is rendered.
GIVEN = ("--set", "tls.secret=seen,tls.brokersSecret=inner,etcd.tlsSecret=store,admin.secret=root")


class ChartError(Exception):
    """helm refused; the text is its reason."""


def render_text(
    *arguments: str, release: str = "penstock", kubernetes: str = NEWEST, given: Sequence[str] = GIVEN
) -> str:
    words: list[str | Path] = [release, CHART, "--namespace", "logs", "--kube-version", kubernetes, *given, *arguments]
    done = run(helm(), "template", *words)
    if done.returncode != 0:
        raise ChartError(done.stdout)
    return done.stdout


def render(*arguments: str, release: str = "penstock", given: Sequence[str] = GIVEN) -> dict[tuple[str, str], Manifest]:
    """Manifests by kind and name."""
    text = render_text(*arguments, release=release, given=given)
    documents = [each for each in yaml.safe_load_all(text) if each]
    found = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    assert len(found) == len(documents), "two manifests of one kind and name"
    return found


def environment(container: Manifest, fields: Mapping[str, str]) -> dict[str, str]:
    """A container's variables, with `$(NAME)` replaced by those before it.

    Args:
        fields: what the downward API says, by field path.
    """
    made: dict[str, str] = {}
    for each in container["env"]:
        if "valueFrom" in each:
            made[each["name"]] = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            made[each["name"]] = re.sub(r"\$\((\w+)\)", lambda found: made[found[1]], each["value"])
    return made


def pod_fields(name: str, index: int) -> dict[str, str]:
    return {
        "metadata.name": f"{name}-{index}",
        "metadata.labels['apps.kubernetes.io/pod-index']": str(index),
        "metadata.labels['topology.kubernetes.io/zone']": "zone-a",
        "status.podIP": "10.1.0.7",
        "status.hostIP": "192.0.2.7",
    }
