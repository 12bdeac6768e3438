"""How the bytes of a partition get from its leader to its followers, and who is in sync with it.

Owns: what a follower does, and when a leader asks for another in-sync set. Never imports protocols: the leader is
reached through `source`.

source.py     a leader as a follower sees it
following.py  everything this broker follows of one other broker: fetch, append, sync, fetch again
inspection.py what was copied is looked at, too
copying.py    the same from far behind: whole segments
in_sync.py    the in-sync sets of what this broker leads
watermarks.py the high watermarks, kept over a restart
throttle.py   how fast partitions that move are copied
"""
