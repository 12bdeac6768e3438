"""Whole brokers as child processes, for the tests and the benchmark that judge Penstock from outside.

Owns: starting, probing and stopping a broker process. Never imports `penstock`: it only runs its command.

broker.py    a running broker: address, process id, time to ready, stop
penstock.py  starts `penstock serve`
kafka.py     starts Apache Kafka from the jars that scripts/jars fetches
postgres.py  starts PostgreSQL from Debian's package
bigquery.py  a stand-in for Google BigQuery, in this process
"""
