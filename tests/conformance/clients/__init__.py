"""The judges: each client library behind the interface in client.py, and nothing of the cases.

client.py        the interface
confluent.py     confluent-kafka (current librdkafka)
kafka_python.py  kafka-python
aio.py           aiokafka
kcat.py          kcat (older librdkafka)
java.py          kafka-clients in a JVM
"""

from .aio import AioClient
from .client import NO_MATCH, Client, ClientError
from .confluent import ConfluentClient
from .java import JavaClient
from .kafka_python import KafkaPythonClient
from .kcat import KcatClient

CLIENTS: dict[str, type[Client]] = {
    each.name: each for each in (ConfluentClient, KafkaPythonClient, AioClient, KcatClient, JavaClient)
}

__all__ = ["CLIENTS", "NO_MATCH", "Client", "ClientError"]
