"""What brokers ask of each other by Kafka's schemas, each in the one version they ask in.

A broker of the release before is asked the same, so a version is raised here one release after the door serves it.
"""

from typing import Final

from penstock.protocols.kafka_wire.api import Api

SASL_HANDSHAKE: Final = Api(17, "sasl_handshake", 1, 1)
SASL_AUTHENTICATE: Final = Api(36, "sasl_authenticate", 2, 2)
ADD_PARTITIONS_TO_TXN: Final = Api(24, "add_partitions_to_txn", 5, 5)
WRITE_TXN_MARKERS: Final = Api(27, "write_txn_markers", 2, 2)
TXN_OFFSET_COMMIT: Final = Api(28, "txn_offset_commit", 5, 5)
