"""One process built out of one config: the only room that sees every other.

Owns: the settings and where each came from, the HTTP side door (health, metrics), and the broker that ties
log, engine and doors together. Only `cli.serve`, `cli.config` and `testing` import this room. It never imports
`cli`.

config.py          what a broker can be told, typed, with its defaults
config_table.py    every setting: how it is read, what is allowed, what it is for
config_listeners.py  the listeners among them: short forms, and the list
config_layers.py   where settings are read from: file, environment, flags, each value with its place
config_loading.py  all of it together: defaults < file < environment < flags; errors name key, value and source
descriptors.py     how the process's descriptors are shared out
doors/             what a broker listens with: the protocols, and the loop that opens and closes listeners
listening.py       addresses that cannot be listened on, and why
http_login.py  who asks over HTTP
http.py    health and metrics over HTTP, in the broker's own event loop
http_tls.py  the same under TLS
front_page.py  what the HTTP port answers at /, and where nothing is
health.py  why a broker is not healthy
kafka_names.py  the settings under Kafka's names, for its tools
system_clock.py  the clock port on this machine
cluster.py  a broker's part in a cluster
cluster_gauges.py  what is true of that at a scrape
sealing_keys.py  which keys seal and open secrets
survey.py  figures that are taken bit by bit: room on the disk, lag of groups; queue_survey.py  queues
broker.py  starts, joins and stops the parts
"""
