"""The metadata port on real stores.

Owns: how keys, revisions and checksums lie in a store. Never imports storage, engine or protocols.

embedded.py     one SQLite file, for a broker on its own
database.py     that file: layout, checksums, upgrade
leases.py       leases of one process
history.py      the last changes, for watches
transaction.py  a transaction's arguments, copied and checked
etcd.py         etcd, for a cluster
etcd_endpoints.py  its members: failover, TLS, who we are
etcd_watch.py   a watch that notices when it is deaf
etcd_member.py  an etcd member run and looked after by a broker
offline.py      the SQLite file read row by row, and rebuilt, without a broker
"""
