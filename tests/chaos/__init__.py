"""Faults on real processes: kill, power cut, full disk, failed fsync; and whether each ack was kept.

Owns everything that ends or starves a running broker from outside. Talks to the broker over the network and
the command line only; never imports `penstock`.

power_disk.py      a disk that forgets what was not synced: the model, in memory
power_cut_fs.py    the same disk as a mounted file system (FUSE), cut on command
power_mount.py     mounts it, cuts the power, asks what is volatile
history.py         what producers were told, what readers saw, and what must follow from it
load.py            a running idempotent producer, a running reader, a read of everything
transactional_history.py  the same for transactions and groups
transactional_load.py     producers, copiers and watchers, each a process that can be killed
transactional_run.py      who takes part, which faults come when, the verdict
wire.py            one Kafka connection, one request at a time
broker_process.py  starts, kills and restarts `penstock serve`
trace.py           reads strace output: which sync lies between a write and its ack
"""
