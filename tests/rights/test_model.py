"""The model decides as Apache Kafka does: its answers have the bits of what may be done to each thing."""

import re

import pytest

from .cells import load
from .model import Model, Need
from .rules import CLUSTER, SUPER, THEMES, all_rules

HERE = "127.0.0.1"


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(all_rules(), [SUPER])


@pytest.mark.parametrize("theme", THEMES)
def test_of_kafkas_own_bits(theme: str, model: Model) -> None:
    looked_at = 0
    for user, told in load(theme).items():
        topics, _, whole = told["metadata 9"].rpartition("]")
        things = [("topic", *found) for found in re.findall(r"[03] ([\w-]+) (?:\[\S+ \S+\] )?([01]+)b", topics)]
        things += [
            ("group", *found) for found in re.findall(r"0 ([\w-]+) (?:members )?([01]+)b", told["describe_groups 5"])
        ]
        bits = whole.strip().removesuffix("b")
        things.append(("cluster", CLUSTER, bits if model.may(user, HERE, Need("DESCRIBE", "cluster")) else "0"))
        assert bits == things[-1][2], f"{user} has {whole} of the cluster"
        for kind, name, allowed in things:
            assert f"{model.bits(user, HERE, kind, name) if allowed != '0' else 0:b}" == allowed, (user, kind, name)
            looked_at += 1
    assert looked_at > len(THEMES[theme])


@pytest.mark.parametrize("theme", THEMES)
def test_of_what_kafka_refuses(theme: str, model: Model) -> None:
    """Of transactional ids no answer has bits."""
    for user, told in load(theme).items():
        for need, question, code in (
            (Need("WRITE", "tx", "tx"), "end_txn 3", "53"),
            (Need("READ", "group", "readers"), "heartbeat 4", "30"),
            (Need("ALTER", "cluster"), "create_acls 3", "[31]"),
            (Need("DESCRIBE", "cluster"), "describe_acls 3", "31"),
        ):
            assert (told[question] == code) is not model.may(user, HERE, need), (user, need, told[question])
