"""The `penstock` command.

Owns: the words a person types and what is printed back. One file per command, imported only when that command is
called. Commands talk to a broker over the network, through librdkafka, like any other Kafka program. Only three look
into other rooms: `serve` starts `server`, `config` reads its settings, `log` reads `storage`.

main.py        finds the command, prints the help, turns errors into exit codes
failure.py     exit codes, and the one line an error becomes
connection.py  which server, and the clients for it
contexts.py    named servers in ~/.penstock/config.yaml
output.py      tables, JSON, YAML, progress

serve.py       runs a broker until a signal or a failure ends it
topic.py       topics
produce.py     records in
consume.py     records out
config.py      a broker's settings
log.py         a data directory
bench.py       throughput and latency of a broker
context.py     the contexts
completion.py  the shells' completion
version.py     the version
"""
