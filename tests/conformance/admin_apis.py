"""The admin APIs asked for here, by kio's names, each with its first and last version."""

ADMIN_APIS = {
    "create_partitions": (0, 3),
    "delete_records": (0, 2),
    "describe_configs": (1, 4),
    "alter_configs": (0, 2),
    "incremental_alter_configs": (0, 1),
    "list_config_resources": (0, 1),
    "describe_cluster": (0, 2),
    "describe_topic_partitions": (0, 0),
    "describe_log_dirs": (1, 5),
    "describe_producers": (0, 0),
}


def versions(api: str) -> range:
    first, last = ADMIN_APIS[api]
    return range(first, last + 1)
