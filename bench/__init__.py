"""Penstock beside Apache Kafka on one machine, in turn, in interleaved rounds.

Owns: the load, the measuring and the report. Never imports `penstock`: a broker is a process with an address.

run.py      the command: rounds, brokers, where the results go
rows.py     what is measured: each row's work, unit and bar
subject.py  a broker under measurement: start, topics, CPU, memory
native.py   compiles load.c and floor.c on the spot and runs them
load.c      produce, consume and latency through librdkafka
floor.c     the same bytes without a broker: receive, write, send back
machine.py  facts about the machine and the versions
report.py   results as a page of docs
"""
