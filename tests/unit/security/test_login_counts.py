"""How many logins there were, by mechanism and by what came of them."""

import pytest
from tests.unit.security.security_world import PEER, Node
from tests.unit.security.test_users import SECRET, log_in, with_node

from penstock.security.authentication import Certificate, Credentials, Key, Plain
from penstock.security.backoff import FREE_FAILURES
from penstock.security.refusal import NotAuthenticated
from penstock.security.secret import Secret


async def refused(node: Node, credentials: Credentials) -> None:
    with pytest.raises(NotAuthenticated):
        await node.authenticator.authenticate(credentials, PEER)


def test_each_login_counts_once_by_its_mechanism_and_outcome() -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        key = await node.keys.create("alice")
        for credentials in (Plain("alice", SECRET), Key(key.text), Certificate("CN=x")):
            await node.authenticator.authenticate(credentials, PEER)
        await log_in(node, "alice", SECRET.reveal().decode())
        succeeded = {(each, "succeeded"): 1 for each in ("password", "api key", "certificate", "scram")}
        assert node.authenticator.logins == succeeded
        await refused(node, Plain("alice", Secret("wrong")))
        await refused(node, Key(Secret("nonsense")))
        await refused(node, Certificate("*"))
        assert await log_in(node, "alice", "wrong") is None
        failed = {(each, "failed"): 1 for each in ("password", "api key", "certificate", "scram")}
        assert node.authenticator.logins == succeeded | failed

    with_node(test)


def test_what_comes_too_early_counts_as_that() -> None:
    async def test(node: Node) -> None:
        await node.users.create("alice", SECRET)
        tries = FREE_FAILURES + 2
        for _ in range(tries):
            await refused(node, Plain("alice", Secret("wrong")))
        assert await log_in(node, "alice", SECRET.reveal().decode()) is None
        counted = node.authenticator.logins
        assert counted["scram", "too early"] == 1
        assert counted["password", "too early"] >= 1
        assert counted["password", "too early"] + counted["password", "failed"] == tries

    with_node(test)
