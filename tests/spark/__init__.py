"""Spark against a broker, with Penstock's own source and with the connector that Spark ships.

conftest.py   one Spark session, one broker (Apache Kafka with PENSTOCK_TEST_PEER=kafka), topics and records for all
publisher.py  writes records of known content fast: compressed, in transactions kept, aborted or left open
"""
