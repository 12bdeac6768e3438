"""What brokers ask of each other is served by brokers."""

from penstock.protocols.internal import replica_fetch_codec, requests
from penstock.protocols.kafka.session import APIS
from penstock.protocols.kafka_wire.api import Api

ASKED = [asked for asked in vars(requests).values() if isinstance(asked, Api)]


def test_every_request_is_served_in_the_version_asked_in() -> None:
    served = {api.key: api for api in APIS}
    assert len(ASKED) == 5
    for asked in [
        *ASKED,
        Api(replica_fetch_codec.KEY, "fetch", replica_fetch_codec.VERSION, replica_fetch_codec.VERSION),
    ]:
        assert asked.oldest == asked.newest
        assert asked.name == served[asked.key].name
        assert served[asked.key].oldest <= asked.newest <= served[asked.key].newest
