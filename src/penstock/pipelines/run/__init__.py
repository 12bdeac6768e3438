"""A pipeline at work: one streaming query, whose every micro-batch goes to all sinks. Imports pyspark.

graph.py     frames of all nodes; what the stream carries     sources.py   rows of topics and files
plans.py     which steps keep state                           quality.py   good rows and issues
evaluation.py  steps on one micro-batch                       letters.py   where issues go
batch.py     one micro-batch: issues, sinks, counters         counters.py  totals that survive a crash
run.py       starts the query, watches it, tries again        watching.py  progress as a status
sessions.py  the Spark session                                mistakes.py  what Spark says about wrong queries
beginning.py where a pipeline began in its topics             failures.py  Spark's errors as ours
brokers.py   whether brokers answer, and where topics end
"""
