"""Admin requests too large or cut short cost their own connection at most."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.peers.broker import Broker

from .admin_apis import ADMIN_APIS
from .clients.admin import TOPIC
from .wire import Wire, entity_of, make

SET = 0
MANY = 10_000


@pytest.mark.parametrize(
    ("api", "values"),
    [
        pytest.param(
            "create_partitions",
            {
                "topics": [{"name": f"missing-{n}", "count": 3, "assignments": None} for n in range(MANY)],
                "timeout": 10_000,
                "validate_only": False,
            },
            id="create_partitions",
        ),
        pytest.param(
            "delete_records",
            {
                "topics": [
                    {"name": "missing", "partitions": [{"partition_index": n, "offset": 0} for n in range(MANY)]}
                ],
                "timeout": 10_000,
            },
            id="delete_records",
        ),
        pytest.param(
            "describe_configs",
            {
                "resources": [
                    {"resource_type": TOPIC, "resource_name": f"missing-{n}", "configuration_keys": None}
                    for n in range(MANY)
                ],
                "include_synonyms": True,
                "include_documentation": True,
            },
            id="describe_configs",
        ),
        pytest.param(
            "incremental_alter_configs",
            {
                "resources": [
                    {
                        "resource_type": TOPIC,
                        "resource_name": f"missing-{n}",
                        "configs": [{"name": "retention.ms", "config_operation": SET, "value": "1"}],
                    }
                    for n in range(MANY)
                ],
                "validate_only": False,
            },
            id="incremental_alter_configs",
        ),
        pytest.param(
            "describe_topic_partitions",
            {
                "topics": [{"name": f"missing-{n}"} for n in range(MANY)],
                "response_partition_limit": (1 << 31) - 1,
                "cursor": None,
            },
            id="describe_topic_partitions",
        ),
        pytest.param(
            "describe_log_dirs",
            {"topics": [{"topic": f"missing-{n}", "partitions": [0]} for n in range(MANY)]},
            id="describe_log_dirs",
        ),
        pytest.param(
            "describe_producers",
            {"topics": [{"name": "missing", "partition_indexes": list(range(MANY))}]},
            id="describe_producers",
        ),
        pytest.param("list_config_resources", {"resource_types": [TOPIC] * MANY}, id="list_config_resources"),
    ],
)
def test_ten_thousand_at_once(broker: Broker, api: str, values: dict[str, Any]) -> None:
    """Answered, or the connection ends; the broker goes on either way."""
    version = ADMIN_APIS[api][1]
    with Wire(broker.bootstrap) as heavy, contextlib.suppress(ConnectionError):
        heavy.ask(make(api, version, **values), entity_of(api, version, "response"))
    with Wire(broker.bootstrap) as light:
        assert light.call("describe_cluster", 0, include_cluster_authorized_operations=False).brokers


def test_one_topic_described_ten_thousand_times(broker: Broker, new_topic: Callable[..., str]) -> None:
    """A small request for a large answer."""
    one = {"resource_type": TOPIC, "resource_name": new_topic("echo"), "configuration_keys": None}
    with Wire(broker.bootstrap) as heavy, contextlib.suppress(ConnectionError):
        heavy.send(make("describe_configs", 1, resources=[one] * MANY, include_synonyms=False))
        assert heavy.skip() > 0
    with Wire(broker.bootstrap) as light:
        assert light.call("describe_cluster", 0, include_cluster_authorized_operations=False).brokers


@pytest.mark.parametrize("api", ADMIN_APIS)
def test_cut_and_swollen_requests_end_their_connection_only(broker: Broker, wire: Wire, api: str) -> None:
    """Every count at once as large as it can be, with nothing behind it."""
    first, last = ADMIN_APIS[api]
    for version in (first, last):
        request = entity_of(api, version, "request")
        with Wire(broker.bootstrap) as noisy:
            noisy.send_body(request, b"\xff\xff\xff\xff\x07" if request.__flexible__ else b"\x7f\xff\xff\xff")
            if api not in ("describe_cluster", "list_config_resources"):  # whose short bodies may read as sound
                assert noisy.closed()
    assert wire.call("describe_cluster", 0, include_cluster_authorized_operations=False).brokers
