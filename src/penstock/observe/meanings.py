"""What each number of a broker is called in Prometheus, and what it means.

A name here is `penstock_` and what follows; counters get `_total` behind it.
"""

from typing import NamedTuple


class Meaning(NamedTuple):
    """One field of `Stats` or one of the broker's gauges: its metric's name and help."""

    field: str
    name: str
    help: str
    label: str = ""
    """What its values are told apart by, from a fixed list or the settings."""
    labels: tuple[str, ...] = ()
    """The same where there are several of them."""


COUNTERS: tuple[Meaning, ...] = (
    Meaning("bytes_in", "broker_received_bytes", "Bytes read from client connections, framing included."),
    Meaning("bytes_out", "broker_sent_bytes", "Bytes written to client connections, framing included."),
    Meaning("connections_total", "broker_connections_accepted", "Client connections accepted since the start."),
    Meaning(
        "connections_refused",
        "broker_connections_refused",
        "Connections closed at once because limits.max_connections was reached: raise it, or find the leak.",
    ),
    Meaning(
        "protocol_errors",
        "broker_protocol_errors",
        "Frames or requests that were not valid in their protocol. The broker closed their connections.",
    ),
    Meaning("appended_batches", "producer_batches", "Record batches appended to partition logs."),
    Meaning("appended_records", "producer_records", "Records appended to partition logs."),
    Meaning("appended_bytes", "producer_bytes", "Bytes of record batches appended, compressed as they came."),
    Meaning("fetched_bytes", "consumer_fetched_bytes", "Bytes of record batches sent to readers."),
    Meaning(
        "cold_reads",
        "storage_cold_reads",
        "Reads that were not in the page cache and went to a thread. A rise means that readers are behind "
        "what memory holds.",
    ),
    Meaning("sync_files", "storage_synced_files", "Files made durable, over all sync rounds."),
    Meaning(
        "segments_rolled",
        "storage_segments_rolled",
        "Segments closed because they reached their size or age.",
    ),
    Meaning("segments_deleted", "storage_segments_deleted", "Segments removed by retention or topic deletion."),
    Meaning("compactions", "storage_compactions", "Passes of compaction that were completed."),
    Meaning(
        "thinnings",
        "storage_thinnings",
        "Passes of thinning that were completed: of records past retention, what a queue has not settled was left.",
    ),
    Meaning("compaction_read_bytes", "storage_compaction_read_bytes", "Log bytes read by compaction and thinning."),
    Meaning(
        "compaction_dropped_bytes",
        "storage_compaction_dropped_bytes",
        "Log bytes that compaction and thinning removed.",
    ),
    Meaning(
        "compaction_dropped_records",
        "storage_compaction_dropped_records",
        "Records that compaction and thinning removed.",
    ),
    Meaning(
        "compaction_failures",
        "storage_compaction_failures",
        "Passes of compaction or thinning that failed; the log stayed as it was.",
    ),
    Meaning("recovered_bytes", "storage_recovered_bytes", "Log bytes checked again after an unclean stop."),
    Meaning(
        "cut_bytes",
        "storage_cut_bytes",
        "Bytes cut off log ends in recovery because a write was torn. Nothing that was synced is among them.",
    ),
    Meaning("replica_fetches", "replication_fetches", "Answers this broker got from leaders it follows."),
    Meaning("copied_bytes", "replication_copied_bytes", "Log bytes copied from leaders."),
    Meaning(
        "malformed_copies",
        "replication_malformed_batches",
        "Batches copied from leaders whose records are not what their batch says. They are kept; readers may not get "
        "past them.",
    ),
    Meaning(
        "unchecked_copies",
        "replication_unchecked_batches",
        "Batches copied from leaders that were too large to be looked at; their leader has.",
    ),
    Meaning("moved_bytes", "replication_moved_bytes", "Log bytes copied from leaders for moves to this broker."),
    Meaning("isr_changes", "replication_isr_changes", "Changes this broker made to in-sync sets it leads."),
    Meaning("leaderships_taken", "replication_leaderships_taken", "Leader epochs this broker has begun."),
    Meaning("leaderships_lost", "replication_leaderships_lost", "Leader epochs of this broker that have ended."),
    Meaning("controller_terms", "cluster_controller_terms", "How often this broker became the controller."),
    Meaning(
        "mended_replicas",
        "replication_mended_replicas",
        "Damaged replicas that were copied anew from their leaders and are in sync again.",
    ),
    Meaning(
        "truncated_records",
        "replication_truncated_records",
        "Records removed because the leader does not have them. Committed records are never among them.",
    ),
    Meaning(
        "refused_markers",
        "transaction_refused_markers",
        "Tries to end a transaction in a partition that refused it although it is open there. Meanwhile "
        "readers of committed records wait.",
    ),
    Meaning("scrubbed_bytes", "storage_scrubbed_bytes", "Log bytes read again to look for damage."),
    Meaning(
        "corrupt_blocks",
        "storage_corrupt_blocks",
        "Stored blocks whose checksum did not match. If it is above zero, check the disk.",
    ),
    Meaning("queue_leased", "queue_leased_messages", "Messages leased to consumers of queues, each time anew."),
    Meaning("queue_redriven", "queue_redriven_messages", "Dead letters that went back to the queue they were from."),
    Meaning(
        "queue_burial_failures",
        "queue_burial_failures",
        "Tries to write dead letters that failed. They are made again; meanwhile the messages are dying, and kept.",
    ),
    Meaning("queue_scheduled", "queue_scheduled_messages", "Messages of schedules that were published."),
    Meaning(
        "queue_schedule_failures",
        "queue_schedule_failures",
        "Messages of schedules that could not be published when it was tried. What was refused for a while is tried "
        "again; what the topic would never take, as it is too large for it, waits for its schedule's next time.",
    ),
    Meaning(
        "queue_unread_headers",
        "queue_unread_headers",
        "Headers of delivered messages that were to say something to the queue and could not be read, such as a time "
        "to live that is no number. The message is delivered as if it did not have them.",
    ),
)


class Counted(NamedTuple):
    """A field of `Stats` that counts by labels, from fixed lists or of a number that has a limit."""

    field: str
    name: str
    help: str
    labels: tuple[str, ...]


LABELLED_COUNTERS: tuple[Counted, ...] = (
    Counted(
        "logins",
        "security_logins",
        "Logins of clients by mechanism and outcome. Over HTTP each request is one. Too early: it came sooner after "
        "failures than guessing is allowed to, and was not looked at.",
        ("mechanism", "outcome"),
    ),
    Counted(
        "denials",
        "security_denials",
        "Requests, or parts of them, that the rules refused, by what was to be done and to which kind of thing.",
        ("operation", "kind"),
    ),
    Counted(
        "queue_settled",
        "queue_settled_messages",
        "Messages of queues that nobody will get any more, by how that came: acked; buried (a dead letter is written, "
        "or was redriven); dropped without a dead letter because they were rejected, exhausted (tried too often), "
        "expired or overflowed; purged; cancelled (before they were due); trimmed (retention or a deletion took the "
        "record first); or gone (there was "
        "no record to be had, such as of an aborted transaction).",
        ("how",),
    ),
    Counted(
        "queue_lane_arrived",
        "queue_lane_arrived_messages",
        "Messages that came into queues, by the lane of their priority, in queues that were made as such. Taken while "
        "Prometheus scrapes.",
        ("lane",),
    ),
    Counted(
        "queue_lane_delivered",
        "queue_lane_delivered_messages",
        "Messages leased to consumers, each time anew, by the lane of their priority, in queues whose messages are not "
        "all alike. Taken while Prometheus scrapes.",
        ("lane",),
    ),
    Counted(
        "queue_returned",
        "queue_returned_messages",
        "Leased messages that can be had again, at once or later, by what brought them back: nack, release, overdue "
        "(their lease ended), lost (their consumer was) or unread (they did not fit the answer).",
        ("cause",),
    ),
    Counted(
        "queue_dead_letters",
        "queue_dead_letters",
        "Dead letters written, by why the message died.",
        ("reason",),
    ),
    Counted(
        "queue_duplicates",
        "queue_duplicate_messages",
        "Messages that were not appended because their id was there already, within the dedup-window of their queue. "
        "Topics beyond the first hundred are added up with an empty name.",
        ("topic",),
    ),
)

HISTOGRAMS: tuple[Meaning, ...] = (
    Meaning(
        "append_latency",
        "storage_append_duration_seconds",
        "Time to write one batch into its segment. The write does not wait for the disk, unless too much is unwritten.",
    ),
    Meaning(
        "sync_latency",
        "storage_sync_duration_seconds",
        "Time of one sync round, which makes every file written meanwhile durable together.",
    ),
    Meaning(
        "loop_stall",
        "process_loop_stall_seconds",
        "How late the event loop served a timer, sampled. Every client waits that long on top.",
    ),
    Meaning("gc_pause", "process_gc_pause_seconds", "Time the garbage collector held up the process."),
)

STAT_GAUGES: tuple[Meaning, ...] = (
    Meaning("connections_open", "broker_connections", "Client connections open now."),
    Meaning("loop_stall_max_s", "process_loop_stall_max_seconds", "The longest stall sampled since the start."),
)

REPLICATION_GAUGES: tuple[Meaning, ...] = (
    Meaning("leaders", "replication_leaders", "Partitions this broker leads."),
    Meaning("not_preferred", "replication_not_preferred", "Led partitions that another broker should lead."),
    Meaning("replicas", "replication_replicas", "Partitions this broker holds, leading or following."),
    Meaning(
        "under_replicated",
        "replication_under_replicated",
        "Led partitions with replicas not in sync, except replicas that a move is adding.",
    ),
    Meaning(
        "at_min_isr", "replication_at_min_isr", "Led partitions that cannot answer acks=all if one more replica leaves."
    ),
    Meaning("under_min_isr", "replication_under_min_isr", "Led partitions that cannot answer acks=all now."),
    Meaning("leaderless", "replication_leaderless", "Partitions of the cluster that nobody leads."),
    Meaning(
        "elr_members",
        "replication_elr_members",
        "Replicas in the cluster that are out of sync and could still lead without loss (ELR), because "
        "too few stayed in sync.",
    ),
    Meaning(
        "last_members",
        "replication_last_members",
        "Replicas in the cluster that were the last to hold everything and stopped uncleanly; one of them must lead.",
    ),
    Meaning(
        "lag_records", "replication_lag_max_records", "How many records the slowest follower of a led partition lacks."
    ),
    Meaning(
        "lag_s", "replication_lag_max_seconds", "How long ago the slowest follower of a led partition had everything."
    ),
    Meaning(
        "lagging", "replication_lagging_followers", "Followers of led partitions that are more than two seconds behind."
    ),
    Meaning("moving", "replication_moving", "Partitions of the cluster that move to other brokers."),
    Meaning("moving_here", "replication_moving_here", "Partitions that move to this broker and are not in sync yet."),
    Meaning(
        "throttle_bytes",
        "replication_throttle_bytes_per_second",
        "How fast partitions may move to this broker; 0 is no limit.",
    ),
    Meaning("damaged", "replication_damaged_replicas", "Replicas on this broker that lack data they should have."),
    Meaning(
        "mending", "replication_mending_replicas", "Damaged replicas that are being copied anew from their leaders."
    ),
)

CLUSTER_GAUGES: tuple[Meaning, ...] = (
    Meaning("members", "cluster_members", "Brokers of the cluster, running or not."),
    Meaning("brokers", "cluster_brokers", "Brokers that are running."),
    Meaning("is_controller", "cluster_is_controller", "1 on the controller, the broker that elects leaders."),
    Meaning(
        "controller_epoch",
        "cluster_controller_epoch",
        "Epoch of the controller this broker knows; 0 when there is none.",
    ),
    Meaning("incarnation", "cluster_incarnation", "How often this broker has started since it joined the cluster."),
    Meaning("admitted", "cluster_admitted", "1 when the controller has admitted this broker since its start."),
    Meaning("cordoned", "cluster_cordoned", "1 when this broker gets no new replicas."),
    Meaning("drained", "cluster_drained", "1 when this broker is drained: it shall lead nothing."),
    Meaning("lease_s", "cluster_lease_seconds", "How long this broker's lease is still valid, as far as it knows."),
    Meaning(
        "lease_ttl_s",
        "cluster_lease_ttl_seconds",
        "How long a lease is valid that was just renewed: cluster.lease_s.",
    ),
    Meaning("store_answers", "cluster_store_up", "1 when the metadata store answers this broker."),
    Meaning(
        "store_age_s",
        "cluster_store_age_seconds",
        "Time since this broker last read the whole metadata store; up to ten seconds is normal.",
    ),
)

GROUP_GAUGES: tuple[Meaning, ...] = (
    Meaning("groups", "group_groups", "Consumer groups this broker coordinates, by state.", "state"),
    Meaning("group_members", "group_members", "Members of the groups this broker coordinates."),
    Meaning(
        "group_lag_records",
        "group_lag_max_records",
        "Records that the group with the largest lag has not read yet, in all its partitions, of groups "
        "this broker coordinates.",
    ),
    Meaning("group_lag_total", "group_lag_records", "Records not read yet, of all groups this broker coordinates."),
    Meaning(
        "groups_behind",
        "group_behind",
        "Groups this broker coordinates that lag by the label's number of records or more, as far as it can tell.",
        "records",
    ),
    Meaning(
        "group_lag_unknown",
        "group_lag_unknown_offsets",
        "Offsets committed here for partitions this broker does not hold; all figures of lag leave them out.",
    ),
    Meaning(
        "group_survey_s",
        "group_survey_seconds",
        "Time since the figures of groups and of the disk were taken, or since the start; some seconds "
        "while Prometheus scrapes.",
    ),
)

QUEUE_GAUGES: tuple[Meaning, ...] = (
    Meaning(
        "queue_messages",
        "queue_messages",
        "Messages that are not settled, in partitions this broker leads, by their state: ready, leased, delayed "
        "(waiting for another attempt, or not due yet) or dying (becoming dead letters). The first hundred queues by "
        "name that were made as queues; all others, and share groups, are added up with empty names.",
        labels=("topic", "group", "state"),
    ),
    Meaning(
        "queue_oldest_s",
        "queue_oldest_seconds",
        "How long ago the oldest message was sent that is not settled, in partitions this broker leads; 0 where all "
        "are. Of the queues that have names in queue_messages.",
        labels=("topic", "group"),
    ),
    Meaning(
        "queue_lanes",
        "queue_lane_messages",
        "Messages that are ready or leased, in partitions this broker leads, by the lane of their priority. Of queues "
        "whose messages are not all alike; of any other queue all are in lane normal. What waits because every message "
        "of a queue does is among those ready.",
        labels=("topic", "group", "lane", "state"),
    ),
    Meaning(
        "queue_not_due",
        "queue_not_due_messages",
        "Messages that are not due yet, by their own word or as all of their queue wait, in partitions this broker "
        "leads. They are among those delayed in queue_messages.",
        labels=("topic", "group"),
    ),
    Meaning(
        "queue_tenants",
        "queue_tenants_waiting",
        "Tenants that have messages waiting, about, in the partition this broker leads that has most of them; those "
        "that name none are one.",
        labels=("topic", "group"),
    ),
    Meaning(
        "queue_index_lag",
        "queue_index_lag",
        "Records of queues that are committed and were not looked at yet, in partitions this broker leads. No consumer "
        "gets them before; it is near 0 while brokers keep up.",
        labels=("topic", "group"),
    ),
)

SECURITY_GAUGES: tuple[Meaning, ...] = (
    Meaning(
        "insecure",
        "insecure",
        "1 when a listener reaches beyond this machine without TLS and logins, or the metadata store of a closed "
        "cluster is reached in plain, as --insecure allows.",
    ),
    Meaning(
        "security_mode",
        "security_mode",
        "1 for the mode in force: rules decide in closed, are counted in watch, and play no part in open.",
        "mode",
    ),
    Meaning(
        "watch_refusals",
        "security_watch_refusals",
        "What mode watch has let pass and closed would refuse, since the start or since the list was cleared.",
    ),
    Meaning(
        "rules_age_s",
        "security_rules_age_seconds",
        "Time since the metadata store last said that users and rules in force are the newest; some seconds are "
        "normal, and after an hour nobody can log in. 0 where nobody is asked.",
    ),
)

# What `Broker.gauges` may report; a name that is not here appears as penstock_broker_<name>.
BROKER_GAUGES: tuple[Meaning, ...] = (
    Meaning("topics", "broker_topics", "Topics this broker knows; in a cluster, all topics."),
    Meaning("partitions", "broker_partitions", "Partitions of all topics this broker knows."),
    Meaning(
        "connections_max",
        "broker_connections_max",
        "Client connections that may be open: limits.max_connections, or a quarter of the descriptors if that is less.",
    ),
    Meaning("segments", "storage_segments", "Segment files on disk."),
    Meaning("log_bytes", "storage_log_bytes", "Bytes of segment files on disk."),
    Meaning(
        "offline",
        "storage_offline_partitions",
        "Partitions this broker holds and cannot use; /health names them and says why.",
    ),
    Meaning(
        "topics_flush_os",
        "storage_unsynced_topics",
        "Topics with flush=os: acknowledged records are lost if the machine stops before the OS has written them.",
    ),
    Meaning("disk_total_bytes", "storage_disk_size_bytes", "Size of the file system the data directory is on."),
    Meaning("disk_free_bytes", "storage_disk_free_bytes", "Space on that file system that is free for the broker."),
    Meaning(
        "certificate_left_s",
        "tls_certificate_left_seconds",
        "Time until what is in a file of certificates in use ends; below zero when it has ended.",
        "file",
    ),
    Meaning(
        "revocation_list_left_s",
        "tls_revocation_list_left_seconds",
        "Time until a list of revoked certificates (CRL) in use is to be replaced, by what it says itself; below zero "
        "when it is older.",
        "file",
    ),
    *SECURITY_GAUGES,
    *REPLICATION_GAUGES,
    *CLUSTER_GAUGES,
    *GROUP_GAUGES,
    *QUEUE_GAUGES,
)
