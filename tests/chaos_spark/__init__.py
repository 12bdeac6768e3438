"""Exactly-once streams of Spark under SIGKILL: drivers, JVMs and Python workers die, each record is copied once.

Owns a copying Spark job as a process, the kills, and the verdict. Judges by foreign clients alone (confluent-kafka);
imports nothing of `penstock` but in the job.

job.py      the Spark program: one topic into another, exactly once, for ever
kills.py    which process dies at which moment, as a seed says
run.py      feeds the job, follows it by its marks, kills it, starts it again
verdict.py  what is in the output and ought to be
"""
