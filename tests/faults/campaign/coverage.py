"""The tests of each fault: the table in the docs, and the list that a test compares with the existing tests."""

from __future__ import annotations

from typing import NamedTuple

from tests.faults.campaign.plan import STAGE_VICTIMS, Kind, Victim


class Tried(NamedTuple):
    """One fault.

    Attributes:
        campaign: how the campaign inflicts it, if it does.
        changes: how the campaign inflicts it while servers change.
        tests: `file::function`, below `tests/`.
    """

    fault: str
    campaign: tuple[tuple[Kind, Victim], ...] = ()
    tests: tuple[str, ...] = ()
    changes: tuple[tuple[Kind, Victim], ...] = ()


_KILLS = "faults/test_kills.py::test_a_killed_process_costs_no_sample_and_hardly_any_quality"
_SURROUNDINGS = "faults/test_surroundings.py::test_"
_AGENT_AND_PORTS = f"{_SURROUNDINGS}a_killed_node_agent_and_used_ports_only_cost_time"
_CLOCK = f"{_SURROUNDINGS}a_clock_that_jumps_by_an_hour_moves_no_deadline_and_loses_no_record"
_AIRFLOW = (
    "e2e/airflow_stack/test_daily_retraining.py::"
    "test_stopped_and_killed_services_of_airflow_and_a_cleared_task_attach_to_the_same_job"
)
_LIVE_JOBS = "faults/live/test_live_jobs.py::test_"
_LIVE = f"{_LIVE_JOBS}every_row_counts_once_while_servers_change_in_number_size_and_place"
_NOTICE = "platform/master/machine/test_notice.py::test_"
_RESUME = "faults/test_resume.py::test_"
_STORES = "faults/test_bad_stores.py::test_a_job_whose_"
_TERMS = "platform/master/test_terms.py::test_"
_LOST_JOURNAL = "platform/master/service/test_lost_journal.py::test_"
_RECONCILER = "platform/master/pods/test_reconciler.py::test_"
_DATABASE = "platform/history/test_database.py::test_"
_NODE_JOURNAL = "platform/clusters/local/test_lost_journal.py::test_"
_CALLER = "e2e/test_interrupted_runs.py::test_"
RANDOM = "faults/test_campaign.py::test_random_faults_cost_no_sample_and_hardly_any_quality"

_ANY_TO_ANY = "faults/live/test_any_to_any.py::test_changes_of_servers_and_workers_keep_the_trained_model"
_INTERRUPTED = "platform/master/machine/test_interrupted_migration.py::test_a_change_upset_"
_ENDED = (
    "platform/master/service/test_service.py::test_a_plan_for_a_job_that_has_just_ended_is_refused_and_changes_nothing"
)
_UPSET = (
    f"{_INTERRUPTED}after_any_event_ends_on_one_owner_per_bucket",
    f"{_INTERRUPTED}twice_ends_on_one_owner_per_bucket",
)
_CUT_OVER = f"{_NOTICE}a_notice_while_buckets_are_handed_over_leaves_each_of_them_with_one_owner"
_STRUCK = (
    "trainers/parameter_server/migration/test_struck_in_cut_over.py::"
    "test_a_server_killed_in_the_cut_over_leaves_every_bucket_with_one_owner"
)
_CUT_OFF = "faults/test_cut_off_master.py::test_a_"
_MOVES = "trainers/parameter_server/migration/test_moves.py::test_"
_MACHINE = "platform/master/machine/test_migration.py::test_"
_MEMORY = "trainers/parameter_server/records/test_memory.py::test_a_"

TRIED = (
    Tried("kill -9 of a worker", ((Kind.KILL, Victim.WORKER),), (_KILLS,)),
    Tried("kill -9 of a server", ((Kind.KILL, Victim.SERVER),), (_KILLS,)),
    Tried("kill -9 of the master", ((Kind.KILL, Victim.MASTER),), (_KILLS,)),
    Tried(
        "the master's journal is lost while the master is killed",
        ((Kind.JOURNAL, Victim.MASTER),),
        (f"{_LOST_JOURNAL}a_master_without_its_journal_continues_from_the_newest_record", RANDOM),
    ),
    Tried(
        "plans for other servers, workers, sizes and places arrive, also while faults strike",
        (),
        (_LIVE, RANDOM),
    ),
    Tried("kill -9 of the node agent", ((Kind.KILL, Victim.AGENT),), (_AGENT_AND_PORTS,)),
    Tried("SIGTERM to a worker", ((Kind.TERMINATE, Victim.WORKER),), (RANDOM,)),
    Tried(
        "SIGTERM to a server, which hands its buckets over",
        ((Kind.TERMINATE, Victim.SERVER),),
        (f"{_LIVE_JOBS}a_server_that_is_sent_sigterm_hands_its_buckets_over_and_no_row_is_trained_twice", RANDOM),
    ),
    Tried(
        "SIGTERM to a server while buckets are handed over",
        (),
        (f"{_NOTICE}a_notice_while_buckets_are_handed_over_leaves_each_of_them_with_one_owner",),
    ),
    Tried(
        "SIGTERM to the master",
        ((Kind.TERMINATE, Victim.MASTER),),
        (f"{_RESUME}a_signal_to_the_master_neither_stops_the_job_nor_loses_rows", RANDOM),
    ),
    Tried(
        "SIGTERM, SIGHUP or Ctrl-C to the process that launched the job",
        (),
        (
            f"{_CALLER}sigterm_and_sighup_stop_the_job_as_ctrl_c_does",
            f"{_CALLER}a_second_terminal_does_not_touch_the_job_while_the_first_one_runs",
        ),
    ),
    Tried(
        "the master comes back at another address, with its journal",
        (),
        (f"{_TERMS}a_master_that_moved_with_its_journal_takes_the_next_term_and_its_pods_follow",),
    ),
    Tried(
        "the master's journal is lost",
        (),
        (f"{_LOST_JOURNAL}a_master_without_its_journal_continues_from_the_newest_record",),
    ),
    Tried(
        "the master's journal is damaged, and the job is launched again",
        (),
        (
            f"{_CALLER}a_run_whose_master_cannot_start_again_fails_soon_with_the_reason",
            f"{_RESUME}a_failed_job_is_continued_with_the_same_key",
        ),
    ),
    Tried(
        "the job stopped, its home gone, the newest record damaged",
        (),
        (f"{_RESUME}a_stopped_job_is_resumed_only_from_its_store_and_trains_every_row_once",),
    ),
    Tried(
        "two masters of one job",
        (),
        (
            f"{_TERMS}a_superseded_master_commits_nothing_ends_and_touches_no_pod",
            f"{_TERMS}a_late_record_of_an_older_master_is_never_the_newest",
        ),
    ),
    Tried(
        "two processes of one pod",
        (),
        ("platform/master/test_superseded.py::test_the_superseded_process_ends_and_the_job_continues",),
    ),
    Tried(
        "a late event of an earlier pod of that name",
        (),
        (f"{_RECONCILER}a_late_report_about_an_earlier_pod_of_a_name_replaces_no_pod",),
    ),
    Tried(
        "control plane away while pods are wanted",
        (),
        (f"{_RECONCILER}an_unreachable_cluster_affects_neither_records_nor_training",),
    ),
    Tried("newest record damaged", (), (f"{_STORES}newest_record_is_damaged_continues_from_the_one_before",)),
    Tried("checkpoint store away during a rollback", (), (f"{_STORES}store_fails_during_a_rollback_waits_for_it",)),
    Tried(
        "first command of a home killed in MLflow's migration, or two of them at once",
        (),
        (
            f"{_DATABASE}the_command_after_a_killed_first_one_works",
            f"{_DATABASE}concurrent_first_commands_all_succeed",
        ),
    ),
    Tried(
        "the node agent's journal is damaged or lost",
        (),
        (
            f"{_NODE_JOURNAL}a_damaged_journal_is_one_line_and_stopping_the_agent_ends_its_pods",
            f"{_NODE_JOURNAL}the_pods_of_a_lost_journal_end_when_an_agent_starts",
        ),
    ),
    Tried("kill -9 of Airflow's triggerer, scheduler and api-servers, all at once", (), (_AIRFLOW,)),
    Tried(
        "two faults at once, or the second while the first is being repaired",
        ((Kind.KILL, Victim.SERVER), (Kind.KILL, Victim.WORKER)),
        (RANDOM,),
    ),
    Tried("SIGSTOP of a worker for longer than its lease", ((Kind.STOP, Victim.WORKER),), (RANDOM,)),
    Tried("SIGSTOP of a server for longer than its heartbeat may take", ((Kind.STOP, Victim.SERVER),), (RANDOM,)),
    Tried("SIGSTOP of the master", ((Kind.STOP, Victim.MASTER),), (RANDOM,)),
    Tried("SIGSTOP of the node agent", ((Kind.STOP, Victim.AGENT),), (RANDOM,)),
    Tried("SIGSTOP of Airflow's triggerer, scheduler and api-servers for 35 s", (), (_AIRFLOW,)),
    Tried(
        "network cut between worker and server: the kernel drops what arrives at their sockets",
        ((Kind.CUT, Victim.SERVER),),
        ("faults/test_sockets.py::test_a_cut_server_does_not_answer_and_answers_again_afterwards",),
    ),
    Tried(
        "network cut between worker and server: the server in a network namespace, its cable pulled",
        (),
        (
            "trainers/worker/processes/test_cut_off.py::"
            "test_a_worker_and_a_server_that_are_cut_off_from_each_other_train_on_afterwards",
        ),
    ),
    Tried(
        "memory limit exceeded",
        tuple((Kind.OUT_OF_MEMORY, victim) for victim in (Victim.WORKER, Victim.SERVER, Victim.MASTER)),
        (RANDOM,),
    ),
    Tried(
        "disk full while a checkpoint is written",
        (),
        (f"{_SURROUNDINGS}a_full_checkpoint_disk_costs_records_and_no_training",),
    ),
    Tried(
        "disk full under the journals of master and node agent",
        (),
        (f"{_SURROUNDINGS}a_job_waits_while_the_nodes_disk_is_full_and_then_continues",),
    ),
    Tried(
        "port taken by another program",
        ((Kind.PORT, Victim.MASTER), (Kind.PORT, Victim.AGENT)),
        (_AGENT_AND_PORTS,),
    ),
    Tried(
        "MLflow away from the middle of the training to its end",
        (),
        (f"{_SURROUNDINGS}mlflow_gets_all_figures_after_an_outage_until_the_end_of_training",),
    ),
    Tried(
        "MLflow away from the launch on, the master killed meanwhile",
        (),
        (
            "faults/test_mlflow_away.py::test_a_job_trained_during_an_outage_of_mlflow_is_published_later_with_all_figures",
        ),
    ),
    Tried("clock set forward by an hour under all of a job's processes and the node agent", (), (_CLOCK,)),
    Tried("clock set back by two hours, the node agent and the master killed meanwhile", (), (_CLOCK,)),
    Tried(
        "server and worker of different code",
        (),
        (
            "trainers/worker/processes/test_mixed_versions.py::"
            "test_a_server_that_cannot_read_a_push_ends_the_job_with_both_versions_named",
        ),
    ),
    Tried(
        "empty cache of compiled code",
        (),
        ("trainers/worker/processes/test_warm_up.py::test_nothing_is_compiled_after_the_worker_has_registered",),
    ),
    Tried("any of these events in the course of any change of servers, once or twice", (), _UPSET),
    Tried("servers and workers from 4 to 3 to 1 to 2 in one job", (), (_ANY_TO_ANY,)),
    Tried(
        "kill -9 of an old server, a new server, a worker, the master or the node agent while servers start, copy or "
        "hand over, and after that",
        (),
        (*_UPSET, _KILLS, _STRUCK),
        tuple((Kind.KILL, victim) for victim in STAGE_VICTIMS),
    ),
    Tried(
        "SIGTERM to an old or a new server in each stage of a change, also at the moment of the cut-over",
        (),
        (_CUT_OVER, _STRUCK),
        ((Kind.TERMINATE, Victim.OLD_SERVER), (Kind.TERMINATE, Victim.NEW_SERVER)),
    ),
    Tried(
        "SIGTERM to a worker or the master while servers change",
        (),
        (_UPSET[0],),
        ((Kind.TERMINATE, Victim.WORKER), (Kind.TERMINATE, Victim.MASTER)),
    ),
    Tried(
        "SIGSTOP of anybody while servers change",
        (),
        (
            f"{_MACHINE}a_hand_over_that_does_not_end_is_given_up",
            "platform/master/machine/test_stalls.py::test_time_in_which_a_master_was_suspended_does_not_count",
        ),
        tuple((Kind.STOP, victim) for victim in STAGE_VICTIMS),
    ),
    Tried(
        "Airflow's task that asks for other pods is killed, tried again or ended",
        (),
        (
            "operators/test_scaling.py::test_every_try_of_a_task_asks_for_the_same_plan_and_a_cleared_task_for_another",
            "operators/test_scaling.py::test_an_ended_task_cancels_its_request",
            "faults/live/test_killed_task.py::"
            "test_a_task_killed_while_servers_change_is_found_again_by_its_next_tries_and_the_job_changes_once",
        ),
    ),
    Tried(
        "network cut between servers while buckets are copied or handed over",
        (),
        (f"{_MOVES}lost_connections_lose_and_repeat_nothing_also_in_the_hand_over",),
        ((Kind.CUT, Victim.OLD_SERVER), (Kind.CUT, Victim.NEW_SERVER)),
    ),
    Tried(
        "network cut between the master and all pods, and the cluster, while servers change",
        (),
        (
            "trainers/test_master_client.py::test_a_pod_without_an_answering_master_ends_at_the_timeout_and_not_before",
            "trainers/worker/test_session.py::test_progress_waits_for_an_unreachable_master",
            f"{_CUT_OFF}change_continues_after_a_silence_shorter_than_the_timeout",
            f"{_CUT_OFF}master_that_lost_all_pods_completes_the_change_with_new_ones",
        ),
        ((Kind.CUT, Victim.MASTER),),
    ),
    Tried(
        "disk full under the master's journal while servers change",
        (),
        ("platform/master/test_full_disk.py::test_a_change_of_servers_waits_for_journal_space_and_then_continues",),
    ),
    Tried(
        "no room for the new pods",
        (),
        (
            _LIVE,
            f"{_LIVE_JOBS}a_bsp_job_whose_new_servers_find_no_room_trains_on_with_those_that_it_has",
            "platform/master/machine/test_stalls.py::"
            "test_new_pods_that_do_not_fit_are_given_up_after_the_limit_with_the_missing_resources",
        ),
    ),
    Tried(
        "two plans at once, or the second while servers change for the first",
        (),
        (
            f"{_MACHINE}a_new_request_is_fulfilled_from_the_present_state",
            "operators/test_scaling.py::test_two_plans_for_one_job_do_not_take_each_others_place",
            RANDOM,
        ),
    ),
    Tried("a plan for a job that ends or has just ended", (), (_ENDED, _UPSET[0])),
    Tried(
        "a save in the middle of a change of servers",
        (),
        (
            f"{_MOVES}a_save_while_buckets_are_copied_holds_each_of_them_once",
            f"{_MACHINE}no_record_is_begun_while_buckets_are_handed_over",
            _UPSET[0],
        ),
    ),
    Tried(
        "a server killed while it copies into memory of its node, or after it",
        (),
        (
            "checkpoints/test_flash_memory.py::test_a_part_whose_writer_was_killed_is_not_there_and_those_before_it_are",
            "trainers/parameter_server/records/test_killed_with_memory.py::"
            "test_a_killed_servers_successor_restores_the_record_from_its_memory",
        ),
    ),
    Tried("torn shared memory", (), (f"{_MEMORY}torn_copy_is_restored_from_the_store",)),
    Tried(
        "the process that copies a record from memory to the store is killed",
        (),
        (f"{_MEMORY}killed_or_cancelled_copy_to_the_store_only_loses_its_part",),
    ),
    Tried(
        "torn file of a record",
        (),
        (
            "checkpoints/test_record.py::test_killed_at_any_moment_the_last_complete_record_opens_whole",
            "checkpoints/test_catalog.py::test_a_torn_newest_record_is_skipped_for_the_last_complete_one",
        ),
    ),
    Tried(
        "parts of which half was uploaded, their uploader killed",
        (),
        (
            "checkpoints/test_catalog.py::test_unfinished_uploads_end_with_their_record_unless_they_are_in_progress",
            "trainers/parameter_server/records/test_killed_upload.py::"
            "test_a_process_killed_in_an_upload_leaves_the_record_before_and_the_next_record_ends_the_upload",
        ),
    ),
    Tried(
        "a store without conditional put",
        (),
        (
            "checkpoints/stores/test_store.py::test_a_store_without_conditional_puts_is_detected_and_refused",
            "checkpoints/test_commit.py::test_a_store_without_conditional_puts_still_commits_once",
        ),
    ),
    Tried(
        "several writers of one object",
        (),
        ("checkpoints/stores/test_store.py::test_of_sixteen_writers_that_create_an_object_one_wins",),
    ),
)
