"""Compaction: of each key only the last record has to stay (Kafka's log cleaner, with KIP-534's delete horizons).
Thinning: of a log past its retention only what somebody still needs has to stay.

Owns: which records of sealed segments may go, the files written in their place, and how those take it. Never imports
the event loop's log (`storage.log.log` and what stands on it), the engine, servers or protocols: most of this runs in
a process of its own. `storage.log` may use it.

due.py           whether a log is worth compacting, and over which segments
thinnable.py     whether a log is worth thinning, and over which segments
job.py           what a pass is given and what it reports, as JSON
cleaning.py      the pass: filter the segments by one rule or the other
latest_keys.py   the rule of compaction, and the map it goes by
kept_ranges.py   the rule of thinning
offset_map.py    the last offset of each key, in bounded memory
reading.py       sealed segments read in order, every byte checked
spans.py         where single records lie in a batch
sieve.py         the batch made of what stays of one, and delete horizons
decided.py       aborted transactions, and markers whose records are gone
cleaned_file.py  a new segment and its card being written
pace.py          how many bytes a second a pass may move
swap.py          new segments take the place of old ones, whatever crashes
worker.py        the process that works off jobs
process.py       a job given to such a process, or done inline on a simulated disk
"""
