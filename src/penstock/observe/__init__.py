"""What the broker can say about itself: counters, logs.

Owns: the plain counters every room adds to, their Prometheus form, structured logs. Never imports another room, so
any room may import `observe.stats`.

stats.py    plain counters and histograms, cheap enough for the hot path
meanings.py what each number is called in Prometheus, and what it means
metrics.py  the same numbers in Prometheus' text form, made at scrape time
logs.py     structured logs, JSON or text
stall.py    the event loop's longest stall and the garbage collector's pauses
"""
