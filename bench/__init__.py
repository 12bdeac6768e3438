"""Penstock beside Apache Kafka on one machine, in turn, in interleaved rounds.

Owns: the load, the measuring and the report. Never imports `penstock`: a broker is a process with an address.
(unmetered.py does, as it runs inside such a process, and spark.py and pipelines.py use
`penstock.spark` and `penstock.pipelines` as a user's program does. rooms.py, coordinator_steps.py and
tls_transport.py drive parts of the broker without a process around them, or with one of their own.)

run.py         the command: rounds, brokers, where the results go
ab.py          the other command: one commit beside another, or beside Kafka; trees.py makes commits ready to run,
               comparison.py tells a difference from noise, ab_report.py makes the section of the page
groups.py      what a run consists of
cells.py       the matrix: loads and rates, each with its bars and the reasons for its losses
rows.py        a line of the report and its bars
scale.py       how much work a run is
throughput.py  produce, consume and CPU; the floor; start and memory
latency.py     steady rates: to the acknowledgement, to a consumer
consumer_groups.py
               a broker for the rows about groups; Kafka's consumer performance tool
rebalancing.py a topic that grows, a member that joins; Members.java are the members
members.py     runs Members.java; timeline.py says who owned what when
crowd.py       a thousand groups of one member
transactions.py
               transactions of one producer: Transact.java and transact.c
compaction.py  what a producer suffers from compaction
neighbours.py  what a producer suffers from a cold reader and from retention
tls_transport.py
               what TLS costs: CPU and memory, one commit beside another
tls.py         what TLS and logins cost, beside Kafka under the same cipher; rules.py: what 10,000 rules do; secured.py
               starts brokers for both
opening.py     many partitions: create, open after a stop and after a kill
metering.py    what metrics cost; unmetered.py is Penstock without them
subject.py     a broker under measurement: start, kill, topics, CPU, memory
fetching.py    what a broker hands out to fetch.c, a reader that costs next to nothing, and whether it was all of it
native.py      compiles load.c, fetch.c, transact.c and floor.c on the spot and runs them
load.c         produce, consume and latency through librdkafka, with its codecs
fetch.c        plain Fetch requests, whose records the kernel drops
floor.c        the same bytes without a broker: receive, write, send back
jvm.py         the Java clients as loads; Consume.java reads a topic and checks it
machine.py     facts about the machine and the versions
figures.py     medians, ratios, verdicts
report.py      results as a page of docs; plots.py draws its pictures
readme.py      the table of figures in README.md
progress.py    a line for each step on standard error
spark.py       the Spark source beside Spark's Kafka connector; spark_queries.py has the queries and their checks,
               spark_clock.py times them, spark_report.py makes the page
pipelines.py   pipelines beside programs without them; pipelines_queries.py has backlogs, sinks and small batches,
               pipelines_driver.py the background driver, pipelines_report.py makes the page
cluster.py     three brokers beside three of Kafka; cluster_subject.py starts them, cluster_throughput.py and
               cluster_gaps.py measure (cluster_acks.py: when acks came), cluster_report.py makes the page
compaction_waits.py
               what slow requests wait for beside compaction, by a trace of the scheduler that scheduling.py reads
rooms.py       what mypyc would give to a part of the broker, for docs/adr/0019-looked-at.md; room_loads.py drives each
coordinator_steps.py
               steps a second of one coordinator
sync_rounds.py what a sync round costs, for docs/adr/0003-sync-rounds.md
"""
