"""The background driver: one process, one Spark session, and every pipeline whose wanted.json says `running`.

It and the commands know each other by files only (penstock.pipelines.home): a command saves what is wanted, the driver
looks ten times a second, and what becomes of it is in status.json and events.jsonl.

reconciler.py  what is wanted against what runs
engine.py      what runs are made of: the Spark session
process.py     the process: lock, signals, its end
presence.py    the driver as others see it: whether one is up, and how to have one
"""
