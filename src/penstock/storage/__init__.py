"""Bytes at rest.

Owns: the log of a partition, the files it is made of, the real disk. Never imports engine, cluster, protocols, net
or server.

local_disk.py    the operating system's disk behind the disk port
data_directory.py  lock, format version, partition owners, clean-shutdown mark
attached_names.py  what logs are called that are attached to partitions
kept_ends.py     how far logs are durable, kept apart from them
checked_file.py  small files with a kind, a format version and a CRC, replaced atomically
offline/         looking into a directory, checking and repairing it, without a broker
compaction/      a log with the last record of each key only, made in a process of its own
log/             one partition's log: segments, index, recovery, group commit, retention
"""
