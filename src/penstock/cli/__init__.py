"""The `penstock` command.

Owns: the words a person types and what is printed back. One file per command, imported only when that command is
called. Commands talk to a broker over the network, through librdkafka or, where that has no API, `wire.py`, like any
other Kafka program. Only eight look into other rooms: `serve` starts `server`, `config` reads its settings, `log` uses
what storage and metadata have `offline`, `cluster` lets `cluster.plans` decide what should go where, `tls` judges
files by what `net` takes and names whom they are of as `security` does, `acl` reads rules as `security.rules` does,
`user` salts passwords as `security.scram` does, `queue` reads names, receipts and headers as `engine.queues` does.

main.py        finds the command, prints the help, turns errors into exit codes
late_group.py  commands of a group that are imported when they are called
failure.py     exit codes, and the one line an error becomes
connection.py  which server, and the clients for it
login.py       who a command says it is, and where the password comes from
contexts.py    named servers in ~/.penstock/config.yaml
output.py      tables, JSON, YAML, progress
topics.py      questions about topics that several commands ask
moment.py      times as people write them
wire.py        Kafka requests that librdkafka lacks; verbs.py  those that Kafka has not
watch.py       what is shown again and again
consent.py     asking before something is lost

serve.py       runs a broker until a signal or a failure ends it
topic.py       topics; alteration.py is what `topic alter` changes
produce.py     records in; record_input.py reads them, delivery.py sends them and keeps the account, shipment.py keeps
               the pace and tells how it ended
consume.py     records out; position.py and record_range.py choose them, record_filter.py sieves, record_text.py prints;
               record_options.py has the flags for what goes in and comes out
queue.py       queues. Commands: queue_settings.py, queue_view.py, queue_send.py, queue_receive.py, queue_receipts.py,
               queue_delayed.py, queue_removal.py, queue_redrive.py, queue_schedule.py. queue_leaders.py asks who
               leads, queue_settlement.py what becomes of receipts, queue_messages.py is what is printed of
               messages, queue_times.py which times there are
group.py       groups; groups.py asks, group_offsets.py plans, group_table.py prints
txn.py         transactions; transactions.py asks and ends them
user.py        users and their passwords
role.py        roles
apikey.py      API keys
acl.py         rules; acl_words.py reads the flags, acl_rules.py asks and changes
security.py    what mode closed would refuse, and the sealing key
cluster.py     clusters. Commands: cluster_status.py, cluster_brokers.py, cluster_moves.py, cluster_restart.py.
               cluster_view.py and cluster_load.py ask, cluster_health.py judges, cluster_plan.py and
               cluster_execution.py carry out with the requests of cluster_changes.py, cluster_progress.py shows how
               far it is, cluster_patience.py waits
pipeline.py    pipelines. Commands: pipeline_run.py, pipeline_start.py, pipeline_stop.py, pipeline_backfill.py,
               pipeline_graph.py; pipeline_driver.py has the rest. pipeline_status.py and pipeline_view.py show,
               pipeline_home.py is what they share
spark.py       whether Spark can run here, and how to make it start quickly
config.py      a broker's settings
tls.py         certificates; authority.py signs them, new_files.py writes them, certificate_view.py reads any
log.py         a data directory; dump.py prints what is in it, repairing.py mends it
bench/         throughput and latency of a broker
context.py     the contexts
completion.py  the shells' completion
version.py     the version
"""
