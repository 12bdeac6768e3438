"""What this broker does about each partition, by what the cluster has decided.

Owns: the roles of this broker's replicas, and what becomes of those that are damaged or wanted no more. Never decides
who leads; it only asks for it in the store.

roles.py      one task that brings topics and roles in line with the image
agenda.py     what that task has to look at
holdings.py   what all of them share: the engine, the image, the store, a lock for each partition
standing.py   which leaders are followed; neither to lead nor to follow
handover.py   what this broker says of its replicas in the store: that others should lead, how far they go
removal.py    replicas that have moved away, topics that were deleted
taking.py     leading and following
mending.py    damaged replicas, made anew from their leaders
"""
