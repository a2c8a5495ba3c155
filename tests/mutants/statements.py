"""The guards in the statements: fences, leases, owners, statuses, locks."""

from typing import Final

from tests.mutants.mutant import Mutant

SETTLE: Final = "store/test_settle.py"
FENCES: Final = f"{SETTLE}::TestFences"
RACES: Final = "store/test_races.py"
REAP: Final = "store/test_reap.py"
LEASE: Final = "store/test_lease.py"
CLAIM: Final = "store/test_claim.py"
ADMIN: Final = "store/test_admin.py"
ARTICLE: Final = "store/test_article.py"
RANGES: Final = "store/test_ranges.py"

_ALIVE: Final = "AND lease_until > clock_timestamp() FOR KEY SHARE"
_UNLOCKED: Final = "AND lease_until > clock_timestamp()"
_END: Final = """task.id = ANY (ARRAY[verdict.id])
      AND task.fence = verdict.fence
      AND task.claimed_by = $1::bigint
      AND (task.status || '') = 'processing'
    RETURNING task.*"""
_RETURN: Final = _END.replace("RETURNING task.*", "RETURNING task.id")


def _without(text: str, guard: str) -> str:
    return text.replace(f"\n      AND {guard}", "")


_FENCE: Final = "task.fence = verdict.fence"
_OWNER: Final = "task.claimed_by = $1::bigint"
_STATUS: Final = "(task.status || '') = 'processing'"


def _both(name: str, statement: str, before: str, after: str, tests: str) -> tuple[Mutant, Mutant]:
    """Also in the statement that does the same for a supervisor that is bound to some partitions."""
    return (
        Mutant(name, f"store/sql/{statement}.sql", before, after, tests),
        Mutant(f"bound-{name}", f"store/sql/{statement}_in_partitions.sql", before, after, tests),
    )


STATEMENTS: Final = (
    *_both("claim-lease", "claim", _ALIVE, "FOR KEY SHARE", f"{CLAIM}::test_no_live_lease_no_claim"),
    *_both(
        "claim-unasked",
        "claim",
        "WHERE EXISTS (SELECT FROM supervisor)\n",
        "WHERE true\n",
        f"{CLAIM}::test_no_live_lease_no_claim",
    ),
    *_both(
        "claim-empty",
        "claim",
        "AND EXISTS (SELECT FROM candidate) AND",
        "AND",
        f"{CLAIM}::test_a_claim_that_finds_nothing_leaves_nothing_to_be_written",
    ),
    *_both(
        "claim-supervisor-lock",
        "claim",
        _ALIVE,
        _UNLOCKED,
        f"{RACES}::TestClaimAgainstReap::test_a_claim_on_its_way_keeps_its_supervisor_from_being_buried",
    ),
    *_both(
        "claim-row-lock",
        "claim",
        "        FOR UPDATE SKIP LOCKED\n",
        "",
        f"{CLAIM}::test_rows_that_somebody_holds_are_skipped_without_waiting",
    ),
    *_both(
        "claim-skip-locked",
        "claim",
        "FOR UPDATE SKIP LOCKED\n",
        "FOR UPDATE\n",
        f"{CLAIM}::test_rows_that_somebody_holds_are_skipped_without_waiting",
    ),
    *_both(
        "claim-size",
        "claim",
        "WHERE before < 4194304",
        "WHERE true",
        f"{CLAIM}::test_a_claim_brings_some_mebibytes_and_no_more",
    ),
    *_both(
        "claim-passing",
        "claim",
        "(NOT want.passing OR age(task.xmax) >",
        "(true OR age(task.xmax) >",
        f"{CLAIM}::test_a_claim_that_passes_leaves_what_somebody_may_be_about_to_take",
    ),
    *_both(
        "claim-always-passing",
        "claim",
        "(NOT want.passing OR age(task.xmax) >",
        "(false OR age(task.xmax) >",
        f"{CLAIM}::test_a_claim_that_passes_leaves_what_somebody_may_be_about_to_take",
    ),
    *_both(
        "claim-due",
        "claim",
        "AND task.run_at <= now()",
        "",
        f"{CLAIM}::test_a_claim_takes_due_rows_oldest_first",
    ),
    *_both(
        "claim-status",
        "claim",
        "task.status = 'queued'\n",
        "true\n",
        f"{CLAIM}::test_a_claim_takes_due_rows_oldest_first",
    ),
    *_both(
        "claim-advisory-lock",
        "claim",
        "pg_try_advisory_xact_lock($2::integer, (id % 2147483647)::integer) AS locked",
        "$2::integer IS NOT NULL AS locked",
        f"{CLAIM}::test_a_refused_advisory_lock_is_counted_and_its_row_left",
    ),
    *_both(
        "claim-fence",
        "claim",
        "fence = task.fence + 1",
        "fence = task.fence",
        f"{CLAIM}::test_a_claim_takes_due_rows_oldest_first",
    ),
    *_both(
        "claim-limit",
        "claim",
        "    LIMIT $3::bigint\n",
        "    LIMIT greatest($3::bigint, 1000)\n",
        f"{CLAIM}::test_groups_after_the_limit_are_not_touched",
    ),
    *_both(
        "claim-quota",
        "claim",
        "LIMIT want.quota",
        "LIMIT want.quota + 1000",
        f"{CLAIM}::test_wants_are_served_in_their_order_each_up_to_its_quota",
    ),
    Mutant(
        "settle-lease",
        "store/sql/settle.sql",
        _ALIVE,
        "FOR KEY SHARE",
        f"{FENCES}::test_a_lease_that_ran_out_settles_nothing",
    ),
    Mutant("settle-supervisor-lock", "store/sql/settle.sql", _ALIVE, _UNLOCKED, f"{RACES}::TestSettleAgainstReap"),
    Mutant(
        "settle-end-fence",
        "store/sql/settle.sql",
        _END,
        _without(_END, _FENCE),
        f"{FENCES}::test_a_stale_fence_changes_nothing",
    ),
    Mutant(
        "settle-end-owner",
        "store/sql/settle.sql",
        _END,
        _without(_END, _OWNER),
        f"{FENCES}::test_another_supervisors_claim_cannot_be_settled",
    ),
    Mutant(
        "settle-end-status",
        "store/sql/settle.sql",
        _END,
        _without(_END, _STATUS),
        f"{FENCES}::test_what_somebody_has_queued_again_cannot_be_settled",
    ),
    Mutant(
        "settle-return-fence",
        "store/sql/settle.sql",
        _RETURN,
        _without(_RETURN, _FENCE),
        f"{FENCES}::test_a_stale_fence_changes_nothing",
    ),
    Mutant(
        "settle-return-owner",
        "store/sql/settle.sql",
        _RETURN,
        _without(_RETURN, _OWNER),
        f"{FENCES}::test_another_supervisors_claim_cannot_be_settled",
    ),
    Mutant(
        "settle-return-status",
        "store/sql/settle.sql",
        _RETURN,
        _without(_RETURN, _STATUS),
        f"{FENCES}::test_what_somebody_has_queued_again_cannot_be_settled",
    ),
    Mutant(
        "settle-release-fence",
        "store/sql/settle.sql",
        "fence = task.fence + (verdict.kind = 'released')::integer",
        "fence = task.fence",
        f"{SETTLE}::TestVerdicts::test_released",
    ),
    *_both(
        "settle-completed-lease",
        "settle_completed",
        _ALIVE,
        "FOR KEY SHARE",
        f"{FENCES}::test_a_lease_that_ran_out_settles_nothing_where_the_row_lies",
    ),
    *_both("settle-completed-lock", "settle_completed", _ALIVE, _UNLOCKED, f"{RACES}::TestSettleAgainstReap"),
    *_both(
        "settle-completed-id",
        "settle_completed",
        "      AND task.id IS NOT DISTINCT FROM verdict.id\n",
        "",
        f"{SETTLE}::TestPlaces",
    ),
    *_both(
        "settle-completed-fence",
        "settle_completed",
        "      AND task.fence = verdict.fence\n",
        "",
        f"{FENCES}::test_a_fence_is_compared_where_the_row_lies",
    ),
    *_both(
        "settle-completed-owner",
        "settle_completed",
        "      AND task.claimed_by = $1::bigint\n",
        "",
        f"{FENCES}::test_another_supervisors_claim_cannot_be_settled",
    ),
    *_both(
        "settle-completed-status",
        "settle_completed",
        "      AND (task.status || '') = 'processing'\n",
        "",
        f"{FENCES}::test_a_status_is_compared_where_the_row_lies",
    ),
    Mutant(
        "settled-before-release-fence",
        "store/sql/settled_before.sql",
        "task.id = verdict.id AND task.fence > verdict.fence OFFSET",
        "task.id = verdict.id OFFSET",
        f"{SETTLE}::TestAgain",
    ),
    Mutant(
        "settled-before-retry-fence",
        "store/sql/settled_before.sql",
        "task.id = verdict.id AND task.fence = verdict.fence AND (task.status || '') = 'queued'",
        "task.id = verdict.id AND (task.status || '') = 'queued'",
        f"{SETTLE}::TestAgain",
    ),
    Mutant(
        "settled-before-retry-status",
        "store/sql/settled_before.sql",
        "AND (task.status || '') = 'queued'",
        "",
        f"{SETTLE}::TestAgain",
    ),
    Mutant(
        "settled-before-failure-fence",
        "store/sql/settled_before.sql",
        "AND failure.fence = verdict.fence",
        "",
        f"{SETTLE}::TestAgain",
    ),
    Mutant(
        "settled-before-end-fence",
        "store/sql/settled_before.sql",
        "AND task.fence = verdict.fence AND task.status = verdict.kind",
        "AND task.status = verdict.kind",
        f"{SETTLE}::TestAgain",
    ),
    Mutant(
        "settled-before-end-kind",
        "store/sql/settled_before.sql",
        "AND task.status = verdict.kind",
        "",
        f"{SETTLE}::TestAgain",
    ),
    Mutant(
        "reap-lease",
        "store/sql/reap.sql",
        "supervisor.lease_until <= clock_timestamp() AND EXISTS",
        "EXISTS",
        f"{REAP}::test_the_claims_of_a_dead_supervisor_change_hands",
    ),
    Mutant(
        "reap-own-lease",
        "store/sql/reap.sql",
        _ALIVE,
        "FOR KEY SHARE",
        f"{REAP}::test_one_whose_own_lease_has_run_out_reaps_nothing",
    ),
    Mutant("reap-own-lock", "store/sql/reap.sql", _ALIVE, _UNLOCKED, f"{RACES}::TestReapAgainstReap"),
    Mutant(
        "reap-supervisor-lock",
        "store/sql/reap.sql",
        "    FOR UPDATE SKIP LOCKED\n), dead",
        "), dead",
        f"{RACES}::TestClaimAgainstReap {RACES}::TestRenewAgainstReap",
    ),
    Mutant(
        "reap-supervisor-skip",
        "store/sql/reap.sql",
        "    FOR UPDATE SKIP LOCKED\n), dead",
        "    FOR UPDATE\n), dead",
        f"{RACES}::TestClaimAgainstReap",
    ),
    Mutant(
        "reap-untouched",
        "store/sql/reap.sql",
        " AND task.updated_at <= dead.untouched_since",
        "",
        f"{REAP}::test_a_row_touched_after_the_leases_end_is_somebody_elses",
    ),
    Mutant(
        "reap-row-skip",
        "store/sql/reap.sql",
        "        FOR UPDATE SKIP LOCKED\n",
        "        FOR UPDATE\n",
        f"{REAP}::test_what_somebody_holds_is_skipped_without_waiting",
    ),
    Mutant(
        "reap-row-lock",
        "store/sql/reap.sql",
        "        FOR UPDATE SKIP LOCKED\n",
        "",
        f"{REAP}::test_what_somebody_holds_is_skipped_without_waiting",
    ),
    Mutant(
        "reap-limit",
        "store/sql/reap.sql",
        "    ) AS held\n    LIMIT $2::bigint\n",
        "    ) AS held\n",
        f"{REAP}::test_it_goes_by_batches_and_takes_each_claim_once",
    ),
    Mutant(
        "reap-status",
        "store/sql/reap.sql",
        "task.status = 'processing' AND task.claimed_by",
        "task.claimed_by",
        f"{REAP}::test_what_was_queued_again_is_not_reaped",
    ),
    Mutant(
        "reap-fence",
        "store/sql/reap.sql",
        "fence = task.fence + 1",
        "fence = task.fence",
        f"{REAP}::test_the_claims_of_a_dead_supervisor_change_hands",
    ),
    Mutant(
        "reap-writes-the-dead",
        "store/sql/reap.sql",
        """    UPDATE pgsched_supervisors AS supervisor
    SET listening = false
    FROM expired
    WHERE supervisor.id = ANY (ARRAY[expired.id])
    RETURNING supervisor.id,""",
        "    SELECT supervisor.id,",
        f"{RACES}::TestRenewAgainstReap",
    ),
    Mutant(
        "ownerless-own-lease",
        "store/sql/reap_ownerless.sql",
        _ALIVE,
        "FOR KEY SHARE",
        f"{REAP}::test_one_whose_own_lease_has_run_out_reaps_nothing",
    ),
    Mutant(
        "ownerless-patience",
        "store/sql/reap_ownerless.sql",
        "task.claimed_by IS NULL AND task.updated_at < now() - interval '5 minutes'",
        "task.claimed_by IS NULL",
        f"{REAP}::test_claims_without_an_owner_get_five_minutes",
    ),
    Mutant(
        "abandoned-patience",
        "store/sql/reap_ownerless.sql",
        "          AND task.updated_at < now() - interval '5 minutes'\n",
        "",
        f"{REAP}::test_so_do_those_whose_owners_row_is_gone",
    ),
    Mutant(
        "ownerless-skip",
        "store/sql/reap_ownerless.sql",
        "    FOR UPDATE SKIP LOCKED\n), abandoned",
        "    FOR UPDATE\n), abandoned",
        f"{REAP}::test_what_nobody_owns_and_somebody_holds_is_skipped_without_waiting",
    ),
    Mutant(
        "abandoned-skip",
        "store/sql/reap_ownerless.sql",
        "        FOR UPDATE SKIP LOCKED\n",
        "        FOR UPDATE\n",
        f"{REAP}::test_what_nobody_owns_and_somebody_holds_is_skipped_without_waiting",
    ),
    Mutant(
        "ownerless-fence",
        "store/sql/reap_ownerless.sql",
        "fence = task.fence + 1",
        "fence = task.fence",
        f"{REAP}::test_claims_without_an_owner_get_five_minutes",
    ),
    Mutant(
        "bury-lease",
        "store/sql/bury.sql",
        "supervisor.lease_until <= clock_timestamp()",
        "true",
        f"{REAP}::test_a_dead_supervisors_row_goes_when_it_holds_nothing",
    ),
    Mutant(
        "bury-claims",
        "store/sql/bury.sql",
        "task.claimed_by = supervisor.id",
        "false",
        f"{REAP}::test_a_dead_supervisors_row_goes_when_it_holds_nothing",
    ),
    Mutant("bury-lock", "store/sql/bury.sql", "    FOR UPDATE SKIP LOCKED\n", "", f"{RACES}::TestClaimAgainstReap"),
    Mutant(
        "renew-me",
        "store/sql/renew.sql",
        "concat_ws(' ', boot_id, pid_namespace, pid, started_ticks) = $3::text",
        "true",
        f"{LEASE}::test_a_lease_is_not_renewed_by_another_process_of_the_same_id",
    ),
    Mutant(
        "surrender-me",
        "store/sql/surrender.sql",
        "= (excluded.boot_id, excluded.pid_namespace, excluded.pid, excluded.started_ticks)",
        "IS NOT NULL",
        f"{LEASE}::test_who_has_our_id_now_keeps_its_lease",
    ),
    Mutant(
        "surrender-over",
        "store/sql/surrender.sql",
        "make_interval(secs => $7::float8)",
        "make_interval(secs => least($7::float8, 0))",
        f"{LEASE}::test_what_was_touched_after_our_lease_is_somebody_elses",
    ),
    Mutant(
        "renew-lease",
        "store/sql/renew.sql",
        " AND lease_until > clock_timestamp()",
        "",
        f"{LEASE}::test_a_lease_is_renewed_until_it_has_run_out",
    ),
    Mutant(
        "expire-lock", "store/sql/expire.sql", "ORDER BY id FOR UPDATE", "ORDER BY id", f"{RACES}::TestClaimAgainstReap"
    ),
    Mutant(
        "expire-prolongs-none",
        "store/sql/expire.sql",
        "least(supervisor.lease_until, clock_timestamp())",
        "clock_timestamp()",
        f"{LEASE}::test_expiring_ends_a_lease_now_and_never_prolongs_one",
    ),
    Mutant("strays-fence", "store/sql/release_strays.sql", " AND task.fence = stray.fence", "", f"{LEASE}::TestStrays"),
    Mutant(
        "strays-owner",
        "store/sql/release_strays.sql",
        " AND task.claimed_by = $1::bigint\n",
        "\n",
        f"{LEASE}::TestStrays",
    ),
    Mutant(
        "strays-status",
        "store/sql/release_strays.sql",
        "\n  AND (task.status || '') = 'processing'",
        "",
        f"{LEASE}::TestStrays",
    ),
    Mutant(
        "strays-raise",
        "store/sql/release_strays.sql",
        "fence = task.fence + 1",
        "fence = task.fence",
        f"{LEASE}::TestStrays",
    ),
    Mutant(
        "strays-whose",
        "store/sql/strays.sql",
        " AND claimed_by = $1::bigint",
        " AND $1::bigint IS NOT NULL",
        f"{LEASE}::TestStrays",
    ),
    Mutant("confirm-lease", "store/sql/confirm.sql", _UNLOCKED, "", f"{LEASE}::TestConfirm"),
    Mutant("confirm-fence", "store/sql/confirm.sql", "task.fence = claim.fence AND", "", f"{LEASE}::TestConfirm"),
    Mutant(
        "confirm-owner",
        "store/sql/confirm.sql",
        "AND task.claimed_by = $1::bigint AND (task.status",
        "AND (task.status",
        f"{LEASE}::TestConfirm",
    ),
    Mutant(
        "confirm-status",
        "store/sql/confirm.sql",
        " AND (task.status || '') = 'processing'",
        "",
        f"{LEASE}::TestConfirm",
    ),
    Mutant(
        "confirm-skip",
        "store/sql/confirm.sql",
        "FOR UPDATE SKIP LOCKED",
        "FOR UPDATE",
        f"{LEASE}::TestConfirm::test_waits_for_nobody",
    ),
    Mutant(
        "confirm-refresh",
        "store/sql/confirm.sql",
        "WHERE ours.updated_at < now() - interval '1 minute'",
        "WHERE false",
        f"{LEASE}::TestConfirm {ARTICLE}::test_its_reaper_leaves_a_living_supervisors_claims_alone",
    ),
    Mutant(
        "neighbours-boot",
        "store/sql/neighbours.sql",
        "boot_id = $1 AND",
        "$1 = $1 AND",
        f"{LEASE}::test_neighbours_are_the_living_of_this_pid_namespace",
    ),
    Mutant(
        "neighbours-namespace",
        "store/sql/neighbours.sql",
        "pid_namespace = $2::bigint AND",
        "$2::bigint IS NOT NULL AND",
        f"{LEASE}::test_neighbours_are_the_living_of_this_pid_namespace",
    ),
    Mutant(
        "deregister-claims",
        "store/sql/deregister.sql",
        "\n  AND NOT EXISTS (SELECT FROM scheduled_tasks_live AS task WHERE task.status = 'processing'"
        " AND task.claimed_by = $1::bigint)",
        "",
        f"{LEASE}::test_claims_of_one_who_left_can_be_reaped_at_once",
    ),
    Mutant(
        "deregister-own",
        "store/sql/deregister.sql",
        "me.started_ticks) = $2::text)\n  AND NOT EXISTS",
        "me.started_ticks) IS NOT NULL)\n  AND NOT EXISTS",
        f"{LEASE}::test_what_another_process_of_the_same_id_has_said_stays",
    ),
    Mutant(
        "announce-own",
        "store/sql/announce.sql",
        "concat_ws(' ', boot_id, pid_namespace, pid, started_ticks) = $5::text",
        "true",
        f"{LEASE}::test_what_another_process_of_the_same_id_has_said_stays",
    ),
    Mutant(
        "horizon-next",
        "store/sql/horizon.sql",
        "oldest::text::bigint + age(oldest::xid)",
        "pg_snapshot_xmax(pg_current_snapshot())::text::bigint",
        "store/test_listen.py::test_an_insert_that_has_not_seen_the_flag_is_known_to_be_under_way",
    ),
    Mutant("cancel-fence", "store/sql/cancel.sql", "fence = fence + 1", "fence = fence", f"{ADMIN}::TestCancel"),
    Mutant("cancel-lock", "store/sql/cancel.sql", "    FOR UPDATE\n", "", ADMIN),
    Mutant(
        "cancel-live",
        "store/sql/cancel.sql",
        " AND status IN ('queued', 'processing')\n",
        "\n",
        f"{ADMIN}::TestCancel::test_ended_task_of_the_same_id_is_left_alone",
    ),
    Mutant("retry-fence", "store/sql/retry.sql", "fence = fence + 1", "fence = fence", f"{ADMIN}::TestRetry"),
    Mutant("retry-lock", "store/sql/retry.sql", "    FOR UPDATE\n", "", ADMIN),
    Mutant(
        "retry-key",
        "store/sql/retry.sql",
        "OR EXISTS (SELECT FROM scheduled_tasks_live live WHERE live.unique_key = counted.unique_key)",
        "",
        f"{ADMIN}::TestRetry",
    ),
    Mutant(
        "retry-key-twice",
        "store/sql/retry.sql",
        "(PARTITION BY unique_key, shared ORDER BY id) > 1",
        "(PARTITION BY unique_key, shared ORDER BY id) > 9",
        f"{ADMIN}::TestRetry",
    ),
    Mutant(
        "prune-age",
        "store/sql/prune.sql",
        "coalesce(finished_at, updated_at) < now() - make_interval(secs => $1::float8)",
        "$1::float8 IS NOT NULL",
        f"{LEASE}::test_pruning_takes_what_ended_long_ago_in_batches",
    ),
    Mutant(
        "prune-status",
        "store/sql/prune.sql",
        "status IN ('completed', 'failed', 'cancelled')",
        "true",
        f"{ADMIN}::TestPrune",
    ),
    Mutant(
        "prune-skip",
        "store/sql/prune.sql",
        "    FOR UPDATE SKIP LOCKED\n",
        "    FOR UPDATE\n",
        f"{ADMIN}::TestPrune::test_locked_task_is_not_waited_for",
    ),
    Mutant(
        "prune-limit",
        "store/sql/prune.sql",
        "    LIMIT $2::bigint\n",
        "",
        f"{LEASE}::test_pruning_takes_what_ended_long_ago_in_batches",
    ),
    Mutant(
        "enqueue-once-conflict",
        "store/sql/enqueue_once.sql",
        "    ON CONFLICT DO NOTHING\n",
        "",
        "store/test_enqueue.py::TestKeys",
    ),
    Mutant(
        "hints-lock-wait",
        "store/sql/hints.sql",
        "CASE WHEN $3::text <> '0'",
        "CASE WHEN $3::text <> $3::text",
        "system/test_locked.py::test_a_row_that_somebody_keeps_locked_delays_no_other",
    ),
    Mutant(
        "hints-deadline",
        "store/sql/hints.sql",
        "set_config('statement_timeout', $1, $2::boolean)",
        "$1",
        "store/test_connection.py",
    ),
    Mutant(
        "hints-whose-limit",
        "store/sql/hints.sql",
        "CASE WHEN current_setting('statement_timeout')::interval NOT BETWEEN interval '1 ms'",
        "CASE WHEN current_setting('statement_timeout')::interval NOT BETWEEN interval '1 day'",
        "store/test_connection.py",
    ),
    Mutant(
        "hints-higher-limit",
        "store/sql/hints.sql",
        "AND ($1::text || ' ms')::interval",
        "AND interval '1 day'",
        "store/test_connection.py",
    ),
)

_SCHEMA: Final = "store/migrations/0001_schema.sql"
_MAKE_RANGE: Final = "store/migrations/0003_replica_identity.sql"
_ONE_AT_A_TIME: Final = "NOT pg_try_advisory_xact_lock(pg_catalog.hashtextextended('pgsched ranges', 0))"
_ISOLATED: Final = "current_setting('transaction_isolation') IN ('repeatable read', 'serializable')"
_NONE_MADE: Final = f"""    IF {_ISOLATED}
       OR {_ONE_AT_A_TIME} THEN
        RETURN NULL;"""
_NONE_DROPPED: Final = _NONE_MADE.replace(" NULL", "")


def _function(name: str, before: str, after: str, tests: str) -> Mutant:
    path = _SCHEMA if name.startswith("dropped") else _MAKE_RANGE
    return Mutant(f"range-{name}", path, before, after, " ".join(f"{RANGES}::{test}" for test in tests.split()))


FUNCTIONS: Final = (
    _function(
        "made-one-at-a-time", _NONE_MADE, _NONE_MADE.replace(_ONE_AT_A_TIME, "false"), "TestMaking::test_one_at_a_time"
    ),
    _function(
        "dropped-one-at-a-time",
        _NONE_DROPPED,
        _NONE_DROPPED.replace(_ONE_AT_A_TIME, "false"),
        "TestMaking::test_one_at_a_time",
    ),
    _function(
        "made-isolation",
        _NONE_MADE,
        _NONE_MADE.replace(_ISOLATED, "false"),
        "TestMaking::test_under_another_isolation_none_is_made_or_dropped",
    ),
    _function(
        "dropped-isolation",
        _NONE_DROPPED,
        _NONE_DROPPED.replace(_ISOLATED, "false"),
        "TestMaking::test_under_another_isolation_none_is_made_or_dropped",
    ),
    _function(
        "made-where-rows-are",
        "taken := EXISTS (",
        "taken := false AND EXISTS (",
        "TestMaking::test_where_the_rest_has_rows_no_range_is_made",
    ),
    _function(
        "made-where-strange-rows-are",
        " OR pgsched_strange('scheduled_tasks_ended_rest', first, last)",
        "",
        "TestMaking::test_where_the_rest_has_rows_no_range_is_made",
    ),
    _function(
        "made-asked-twice",
        "FOR turn IN 1..2 LOOP\n            taken :=",
        "FOR turn IN 1..1 LOOP\n            taken :=",
        "TestMaking::test_a_row_that_comes_while_it_waits_for_the_lock",
    ),
    _function(
        "made-without-reading",
        "EXECUTE telling || pg_catalog.format",
        "PERFORM pg_catalog.format",
        "TestMaking::test_the_rest_is_not_read",
    ),
    _function(
        "told-for-the-moment",
        "            EXECUTE telling || 'false';\n",
        "",
        "TestMaking::test_the_rest_is_not_read",
    ),
    _function(
        "made-refused",
        "RAISE EXCEPTION '%', SQLERRM",
        "RAISE",
        "test_a_range_that_a_trigger_of_yours_forbids_is_no_outage",
    ),
    _function(
        "made-published",
        "            EXECUTE pg_catalog.format('ALTER TABLE %I REPLICA IDENTITY FULL', made);\n",
        "",
        "test_tables_that_are_published_take_everything_that_is_written",
    ),
    _function(
        "published",
        "        EXECUTE pg_catalog.format('ALTER TABLE %s REPLICA IDENTITY FULL', part);\n",
        "        NULL;\n",
        "test_tables_that_are_published_take_everything_that_is_written",
    ),
    _function(
        "dropped-age",
        "made.upper <= now() - older_than",
        "made.upper <= now()",
        "TestDropping::test_only_ranges_that_are_old_as_a_whole",
    ),
    _function(
        "dropped-future",
        "older_than < '0'::interval",
        "false",
        "TestDropping::test_what_has_not_ended_yet_is_no_range_to_drop",
    ),
    _function(
        "dropped-strange",
        "strange := pgsched_strange(old.name, '-infinity'::timestamptz, 'infinity'::timestamptz);",
        "strange := false;",
        "TestDropping::test_a_status_that_is_nobodys_keeps_its_range",
    ),
    _function(
        "dropped-asked-twice",
        "FOR turn IN 1..2 LOOP\n            strange :=",
        "FOR turn IN 1..1 LOOP\n            strange :=",
        "TestDropping::test_a_status_that_comes_while_it_waits_for_the_lock",
    ),
    _function(
        "dropped-waits-once",
        "IN ACCESS EXCLUSIVE MODE NOWAIT",
        "IN ACCESS EXCLUSIVE MODE",
        "TestDropping::test_it_waits_for_nothing_more_while_settles_wait_for_it",
    ),
    _function(
        "dropped-rest-too",
        "LOCK TABLE %I, scheduled_tasks_ended_rest IN",
        "LOCK TABLE %I IN",
        "TestDropping::test_it_waits_for_nothing_more_while_settles_wait_for_it",
    ),
)
