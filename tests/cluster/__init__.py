"""A cluster of real processes under SIGKILL, SIGTERM and SIGSTOP: nothing acked is lost, nothing is there twice.

Owns three brokers, the etcd beside them, what is done to them, and how they are looked at from outside. Talks to them
over the network and the command line only; never imports `penstock`. What producers were told and what must follow from
it is judged by `tests.chaos.history` and `tests.chaos.transactional_history`. PENSTOCK_TEST_PEER=kafka runs the same
tests against Apache Kafka; KILLS says how many leaders are killed, CHAOS_SEED which ones and when.

cluster_process.py   brokers as processes: start, kill, stop, pause, and who leads what
penstock_cluster.py  three `penstock serve` on one etcd
kafka_cluster.py     three Apache Kafka, each broker and controller
secured_cluster.py   the same with users, rules and certificates, and connections of whoever logs in
steady_load.py       clients that must not notice anything
verifiable.py        Kafka's own VerifiableProducer, and its acks as a history
faults.py            what happens to which broker, as a seed says
renewing_load.py     transactional clients that begin anew after an abort, as librdkafka needs it
coordinators.py      the exactly-once run of `chaos` on a cluster: coordinators and leaders are what is killed
"""
