"""Addresses as people write them, and settings in another process."""

import multiprocessing
import pickle
import subprocess
import sys

import pytest

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.client.settings import Settings


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("there:1", [("there", 1)]),
        ("there", [("there", 9092)]),
        (" a:1 , b:2,a:1,", [("a", 1), ("b", 2)]),
        ("[::1]:9093", [("::1", 9093)]),
        ("SASL_SSL://there:65535", [("there", 65_535)]),
    ],
)
def test_addresses(said: str, found: list[tuple[str, int]]) -> None:
    assert Settings(said).addresses() == found


@pytest.mark.parametrize(
    "said", ["", " , ", "there:", ":1", "there:x", "there:0", "there:65536", "there:٣", "a:1,b:-2"]
)
def test_no_addresses(said: str) -> None:
    with pytest.raises(ClientError, match="HOST:PORT"):
        Cluster(Settings(said))


def test_settings_in_a_process_that_was_forked(settings: Settings, topic: str) -> None:
    with Cluster(settings) as cluster:
        cluster.create_topic(topic, 2, {})
        answers = multiprocessing.get_context("fork").SimpleQueue()
        process = multiprocessing.get_context("fork").Process(target=lambda: answers.put(_count(settings, topic)))
        process.start()
        assert answers.get() == 2
        process.join(30)
        assert process.exitcode == 0
        assert len(cluster.topics([topic])[topic].leaders) == 2


def _count(settings: Settings, topic: str) -> int:
    with Cluster(settings) as cluster:
        return len(cluster.topics([topic])[topic].leaders)


def test_settings_in_a_process_of_its_own(settings: Settings, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 3, {})
    code = (
        "import pickle, sys\n"
        "settings = pickle.loads(sys.stdin.buffer.read())\n"
        "from penstock.client.cluster import Cluster\n"
        f"print(len(Cluster(settings).topics([{topic!r}])[{topic!r}].leaders))"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(settings), capture_output=True, check=True)
    assert done.stdout == b"3\n"


def test_what_a_worker_imports() -> None:
    """Fetching needs no schemas, and the client nothing of Spark's."""
    code = "import sys, penstock.client.fetching; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    unwanted = {"kio", "asyncio", "ssl", "numpy", "pyarrow", "pyspark", "confluent_kafka", "scramp", "click"}
    assert set(done.stdout.split()) & unwanted == set()
