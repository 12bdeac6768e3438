"""Whoever has a role is answered as who has its rules: in every cell of the Kafka door, and over HTTP."""

import httpx
import pytest

from .cells import Cells, ask_all
from .conftest import MADE_ROLE, House, with_its_rules, with_role
from .model import PATHS, ROLES
from .test_http_door import basic

EVERY = (*ROLES, MADE_ROLE)


@pytest.fixture(scope="module")
def told(house: House) -> Cells:
    users = [name(role) for role in EVERY for name in (with_role, with_its_rules)]
    cells, _ = ask_all(house.addresses.kafka, house.world, users)
    return cells


@pytest.mark.parametrize("role", EVERY)
def test_a_role_is_its_rules(role: str, told: Cells) -> None:
    has, like = told[with_role(role)], told[with_its_rules(role)]
    assert {name: said for name, said in has.items() if said != like[name]} == {}


def test_no_role_is_another(told: Cells) -> None:
    """So that the cells could differ."""
    assert len({tuple(told[with_role(role)].values()) for role in EVERY}) == len(EVERY)


@pytest.mark.parametrize("role", EVERY)
def test_a_role_over_http(role: str, house: House) -> None:
    with httpx.Client(base_url=f"http://{house.addresses.web}") as client:
        for path in PATHS:
            has, like = (client.get(path, headers=basic(name(role))) for name in (with_role, with_its_rules))
            assert has.status_code == like.status_code, path
