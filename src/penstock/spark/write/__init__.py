"""Writes: each task for itself, or all in one transaction that the driver begins, marks and commits (ADR 12).

writer.py         batch writes, and what a task does in any
stream_writer.py  streaming writes
outgoing.py       rows to sections of record batches, by topic and partition
exactly_once.py   the shared transaction: lend, take turns, commit
marks.py          the topic of marks and turns
turns.py          who may write which sequence numbers: a pure state machine
"""
