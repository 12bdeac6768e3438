"""Reads, in batches and as streams: the driver plans ranges of offsets, tasks fetch them and give Arrow.

reader.py   batch reads
stream.py   streaming reads: offsets, admission, loss
reading.py  one range, in a task
ranges.py   ranges: cut and shared
topics.py   what a subscription means now
stopped.py  a data directory without its broker
"""
