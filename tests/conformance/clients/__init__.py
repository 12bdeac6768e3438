"""The judges: each client library behind the interface in client.py, and nothing of the cases.

client.py        the interface
confluent.py     confluent-kafka (current librdkafka)
kafka_python.py  kafka-python
aio.py           aiokafka
kcat.py          kcat (older librdkafka)
java.py          kafka-clients in a JVM

admin.py and *_admin.py are the same for their admin sides.
"""

from .admin import Admin
from .aio import AioClient
from .aio_admin import AioAdmin
from .client import NO_MATCH, Client, ClientError
from .confluent import ConfluentClient
from .confluent_admin import ConfluentAdmin
from .java import JavaClient
from .java_admin import JavaAdmin
from .kafka_python import KafkaPythonClient
from .kafka_python_admin import KafkaPythonAdmin
from .kcat import KcatClient

CLIENTS: dict[str, type[Client]] = {
    each.name: each for each in (ConfluentClient, KafkaPythonClient, AioClient, KcatClient, JavaClient)
}
ADMINS: dict[str, type[Admin]] = {each.name: each for each in (ConfluentAdmin, KafkaPythonAdmin, AioAdmin, JavaAdmin)}

__all__ = ["ADMINS", "CLIENTS", "NO_MATCH", "Admin", "Client", "ClientError", "JavaAdmin", "JavaClient"]
