"""The fault matrix: three machines made of network namespaces, and what is done to them while they are written to.

Owns the namespaces, the disks, the faults, the cells (a fault, a moment, a target, a workload) and their verdicts.
Talks to brokers over the network, by signals and through their files; never imports `penstock`. What clients were told
is judged by `tests.chaos.history` and `tests.chaos.transactional_history`.

    python -m tests.matrix --list
    python -m tests.matrix --cells smoke
    python -m tests.matrix --cells kill-leader,disk-full-leader --seconds 30 --seed 7
    python -m tests.matrix.soak --minutes 60

namespaces.py    machines as network namespaces on one bridge; sweeps what dead runs left
network.py       which packets are dropped where (nft)
etcd_members.py  one etcd member on each machine
disks.py         where a broker's data lies: plain, small, or on a disk whose power can be cut
machines.py      the brokers, each on its machine, with what is wrapped around its start
arena.py         all of that, started and taken down together
workload.py      producers, readers and knocks at every broker's door, with the time of every ack
plain_clients.py a producer and a consumer as somebody writes them first, beside it
transactions.py  exactly-once copying and a group, beside it
replicas.py      the files of every replica: are they the same, and which epoch wrote what
judge.py         what must follow from what was seen: a verdict
faults.py        what can be done to processes, the network, etcd and clocks, and how it is undone
disk_faults.py   what disks do to brokers that run, or were running a moment ago
moves.py         partitions that move while brokers die or are cut off
trust.py         what brokers and clients of a guarded cluster are known by: certificates, rules
trust_faults.py  a certificate ends, rules change while etcd is away
rot.py           what can be done to the files of a broker that is down
cells.py         the matrix itself
run.py           one cell from its start to its verdict
report.py        docs/reliability-matrix.md from the figures of a run
soak.py          a fault a minute, one history for all of them, memory and descriptors watched
"""
