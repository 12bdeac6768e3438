"""One partition's log.

Owns: what lies in `logs/{topic}/{partition}/` and every rule about it. Never imports a sibling room but `records`,
`ports` and `observe.stats`.

log.py        the log itself: append, roll, commit; one writer
copied.py     batches copied from the leader's log, appended to a follower's
reading.py    slices of a log's files, ready to be sent; whole batches for the broker's own use
loading.py    what a reader of an old segment needs first
segment.py    one `.log` file and where things are in it
card.py       the sidecar of a segment: index by offset and time, checksum per block
scan.py       walk a segment's batches, check each one
recovery.py   from a directory to a log that can be trusted
adoption.py   a leader's segment becomes part of this log; segment_range.py  the leader's side
truncation.py  taking back the end of a log that its leader does not have
commit.py     group commit: one sync round at a time for all logs
state.py      log start, leader epochs and producers, in one small file
producers.py  idempotent producers: last five batches each
epochs.py     which leader epoch began at which offset
transactions.py  open and aborted transactions, segment by segment
upkeep.py     sealing, checkpoints and retention, off the event loop
compacting.py  compaction of a log in use; the pass itself is in storage/compaction
thinning.py   of what is past retention, only what is needed stays; needs.py  who can tell
rewriting.py  how the segments made by either take the place of the old ones
options.py    the settings of one log
"""
