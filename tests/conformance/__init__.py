"""Foreign Kafka clients as judges: what one client writes, every other client reads back unchanged.

Owns: the judges and their cases. Never imports `penstock`, but for cases that judge our own client, and to build
batches that no client would: a broker is a process with an address. The same cases run against Apache Kafka with
PENSTOCK_TEST_PEER=kafka: they ask for Kafka's behaviour and nothing else.

conftest.py        the broker under test, the clients, fresh topic names
recorded_kafka.py  says again what Apache Kafka answered to our client once, as golden/ has it
records.py         records as the cases see them, and sample sets
clients/           one adapter per client library behind one interface; for groups and transactions one each
java/              the Java client's adapter process, which also runs Kafka's own tools
admin_apis.py      the admin APIs and versions asked for
damaged_*.py       batches that no client sends: wrong records, wrong frames around good ones, odd ones that are right
wire.py            single requests by hand, for what no client lets a user send
test_*.py          the cases
"""
