"""The judges: each client library behind the interface in client.py, and nothing of the cases.

client.py        the interface
confluent.py     confluent-kafka (current librdkafka)
kafka_python.py  kafka-python
aio.py           aiokafka
kcat.py          kcat (older librdkafka)
java.py          kafka-clients in a JVM

admin.py and *_admin.py are the same for their admin sides, groups.py and *_groups.py for members of groups and the
admin side of groups, transactions.py and *_transactions.py for producers with transactions.

members_groups.py          every kind of member by name, and the members of one case
process_groups.py          a member in a process of its own, to be killed
producers_transactions.py  the transactional producers of one case
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
