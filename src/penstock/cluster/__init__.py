"""What brokers agree on, and what each of them does about it.

Owns: the metadata stores, membership, elections, replication. Never imports protocols, net or server; other brokers are
reached through `replication.source` and `engine.transactions.other_brokers`.

keys.py         every key in the metadata store
metadata/       the metadata port on real stores
image.py        the cluster as this broker knows it
watcher.py      keeps the image by watching and looking again
member_file.py  which cluster a data directory belongs to, and the newest revision it has seen
secret.py       the cluster's secret as the store knows it
membership.py   this broker's incarnation, lease and registration
election.py     who leads, by which rules
placement.py    which brokers hold a new partition
plans.py        where existing partitions should go; rebalancing.py  plans that even brokers out
known_groups.py  what is set for groups
operations.py   what an operator asks for; broker_settings.py  what can be set while brokers run
controller.py   the broker that elects; term.py  one term of it; fenced_store.py  the store as one term may write to it
leftovers.py    what the controller removes from the store: old reports, unmade topics
catalogue.py    how topics come to be, change and go
opening.py      what is on the disk at the start
roles/          lead, follow, or know who does; mend what is damaged, remove what has moved away
replication/    how the bytes get from leaders to followers
node.py         one broker of a cluster: joins it, leaves it
"""
