"""Every path of the HTTP door, asked by everybody: as the model has it, and without a word more to who may not."""

import json
from base64 import b64encode

import httpx
import pytest

from .brokers import PASSWORD
from .conftest import House, Run
from .model import ANSWERED, PATHS, SEES_THE_CLUSTER, Model
from .rules import SUPER, all_rules, parse, principals

HERE = "127.0.0.1"
BLANK = "all of it"
SCOPES = {
    BLANK: (),
    "the cluster": ("--allow", "describe", "--cluster"),
    "what alters it": ("--allow", "alter", "--cluster"),
    "a topic": ("--allow", "all", "--topic", "books"),
    "denied": ("--deny", "describe", "--cluster"),
    "elsewhere": ("--allow", "all", "--cluster", "--host", "10.9.8.7"),
}
"""What an API key leaves of its user's rights, in words of the command."""
LEAVES = {
    "the cluster": ("allow DESCRIBE cluster:kafka-cluster",),
    "what alters it": ("allow ALTER cluster:kafka-cluster",),
    "a topic": ("allow ALL topic:books",),
    "denied": ("deny DESCRIBE cluster:kafka-cluster",),
    "elsewhere": ("allow ALL cluster:kafka-cluster @10.9.8.7",),
}
"""The same as rules."""
HAVING_KEYS = ("nobody", "cluster-ALL", "cluster-DESCRIBE", "not-cluster-DESCRIBE", "from-elsewhere", "topic-ALL")
REFUSALS = {401: "authentication failed", 403: "to see this takes the right to describe the cluster"}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(all_rules(), [SUPER])


def basic(user: str, password: str = PASSWORD) -> dict[str, str]:
    return {"authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"}


def look(client: httpx.Client, headers: dict[str, str], may: bool, *, is_known: bool = True) -> list[tuple[str, str]]:
    """What is wrong with the answers to all paths."""
    problems = ((path, check(client.get(path, headers=headers), path, may, is_known=is_known)) for path in PATHS)
    return [each for each in problems if each[1]]


def check(answer: httpx.Response, path: str, may: bool, *, is_known: bool = True) -> str:
    """What is wrong with an answer; empty if nothing is."""
    need = PATHS[path]
    refused = 403 if is_known else 401
    wanted = ANSWERED.get(path, 200) if need is None or may else refused
    if answer.status_code != wanted:
        return f"{answer.status_code} and not {wanted}"
    if wanted in REFUSALS and (
        answer.json().get("error") != REFUSALS[wanted] or set(answer.json()) != {"error", "code"}
    ):
        return f"it says {answer.text}"
    if path == "/health/ready" and ("reasons" in answer.json()) is not may:
        return f"it says {answer.text}"
    if path == "/" and ("broker 1" in answer.text) is not may:
        return f"it says {answer.text}"
    return ""


def test_every_path_for_everybody(house: House, model: Model) -> None:
    wrong = []
    with httpx.Client(base_url=f"http://{house.addresses.web}") as client:
        for user in principals():
            may = model.may(user, HERE, SEES_THE_CLUSTER)
            wrong += [(user, *each) for each in look(client, basic(user), may)]
    assert not wrong, wrong[:20]


def test_who_does_not_say_or_prove_who_it_is(house: House) -> None:
    wrong = []
    with httpx.Client(base_url=f"http://{house.addresses.web}") as client:
        for said in (
            {},
            basic("has-everything", "wrong"),
            basic("no-such-user"),
            {"authorization": "Bearer pk_no-such_key"},
        ):
            wrong += [(said, *each) for each in look(client, said, may=False, is_known=False)]
    assert not wrong, wrong


def test_a_listener_that_asks_nobody(house: House, model: Model) -> None:
    """There everybody is User:ANONYMOUS, who has what is for `User:*`."""
    with httpx.Client(base_url=f"http://{house.addresses.http}") as client:
        assert look(client, {}, model.may("ANONYMOUS", HERE, SEES_THE_CLUSTER)) == []


@pytest.mark.parametrize("scope", SCOPES)
def test_an_api_key_narrows_its_user(scope: str, house: House, model: Model, run: Run) -> None:
    wrong = []
    with httpx.Client(base_url=f"http://{house.addresses.web}") as client:
        for user in HAVING_KEYS:
            made = run("admin", "apikey", "create", "--for", user, "--expires", "1d", *SCOPES[scope], "-o", "json")
            assert made.code == 0, made.err
            headers = {"authorization": f"Bearer {json.loads(made.out)['key']}"}
            leaves = Model([parse(user, text) for text in LEAVES.get(scope, ())])
            may = model.may(user, HERE, SEES_THE_CLUSTER)
            may = may and (scope == BLANK or leaves.may(user, HERE, SEES_THE_CLUSTER))
            wrong += [(user, *each) for each in look(client, headers, may)]
    assert not wrong, wrong
