"""The most each attack may cost. Memory is what the broker has above its start, in MiB: at the most while it lasts, and
three seconds after it. Times are milliseconds on two quiet cores, shared with the attackers.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    attack: str
    peak_mib: int
    left_mib: int
    stall_ms: int
    p99_ms: int


BUDGETS = (
    Budget("gone_unanswered", 160, 60, 100, 100),
    Budget("refused_batches", 160, 110, 100, 100),
    Budget("answers_behind_a_fetch", 400, 120, 100, 100),
    Budget("repeated_questions", 100, 60, 100, 100),
    Budget("endless_lists", 650, 100, 100, 100),
    Budget("unfinished_requests", 700, 60, 100, 100),
    Budget("large_sessions", 160, 100, 150, 150),
    Budget("forged_counts", 60, 60, 100, 100),
    Budget("slow_http", 100, 60, 150, 150),
    Budget("idle_connections", 100, 80, 150, 150),
)
BY_ATTACK = {budget.attack: budget for budget in BUDGETS}
IN_EVERY_RUN = ("answers_behind_a_fetch", "repeated_questions", "unfinished_requests")
