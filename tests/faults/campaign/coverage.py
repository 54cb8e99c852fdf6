"""Which faults are tried where: the table of the docs, and what a test compares with the tests that there are."""

from __future__ import annotations

from typing import NamedTuple

from tests.faults.campaign.plan import Kind, Victim


class Tried(NamedTuple):
    """One fault.

    Attributes:
        campaign: how the campaign inflicts it, if it does.
        tests: `file::function`, below `tests/`.
    """

    fault: str
    campaign: tuple[tuple[Kind, Victim], ...] = ()
    tests: tuple[str, ...] = ()


_KILLS = "faults/test_kills.py::test_a_killed_process_costs_no_sample_and_hardly_any_quality"
_SURROUNDINGS = "faults/test_surroundings.py::test_"
_AGENT_AND_PORTS = f"{_SURROUNDINGS}a_killed_node_agent_and_taken_ports_cost_time_and_nothing_else"
_CLOCK = f"{_SURROUNDINGS}a_clock_that_jumps_by_an_hour_moves_no_deadline_and_loses_no_record"
_AIRFLOW = (
    "e2e/airflow_stack/test_daily_retraining.py::"
    "test_stopped_and_killed_services_of_airflow_and_a_cleared_task_attach_to_the_same_job"
)
_LIVE_JOBS = "faults/live/test_live_jobs.py::test_"
_LIVE = f"{_LIVE_JOBS}a_job_whose_servers_change_in_number_size_and_place_"
_NOTICE = "platform/master/machine/test_notice.py::test_"
_RESUME = "faults/test_resume.py::test_"
_STORES = "faults/test_bad_stores.py::test_a_job_whose_"
_TERMS = "platform/master/test_terms.py::test_"
_RECONCILER = "platform/master/pods/test_reconciler.py::test_"
_DATABASE = "platform/history/test_database.py::test_"
_NODE_JOURNAL = "platform/clusters/local/test_lost_journal.py::test_"
_CALLER = "e2e/test_interrupted_runs.py::test_"
RANDOM = "faults/test_campaign.py::test_random_faults_cost_no_sample_and_hardly_any_quality"

TRIED = (
    Tried("kill -9 of a worker", ((Kind.KILL, Victim.WORKER),), (_KILLS,)),
    Tried("kill -9 of a server", ((Kind.KILL, Victim.SERVER),), (_KILLS,)),
    Tried("kill -9 of the master", ((Kind.KILL, Victim.MASTER),), (_KILLS,)),
    Tried(
        "the master's journal is lost while the master is killed",
        ((Kind.JOURNAL, Victim.MASTER),),
        (f"{_TERMS}a_master_without_its_journal_continues_from_the_newest_record_and_says_so", RANDOM),
    ),
    Tried(
        "plans for other servers, workers, sizes and places arrive, also while faults strike",
        (),
        (f"{_LIVE}trains_on_and_every_row_counts_once", RANDOM),
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
        (f"{_RESUME}a_signal_to_the_master_is_no_stop_and_costs_no_row", RANDOM),
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
        (f"{_TERMS}a_master_without_its_journal_continues_from_the_newest_record_and_says_so",),
    ),
    Tried(
        "the master's journal is damaged, and the job is launched again",
        (),
        (
            f"{_CALLER}a_run_whose_master_cannot_start_again_fails_soon_with_the_reason",
            f"{_RESUME}a_job_that_failed_goes_on_under_the_same_key",
        ),
    ),
    Tried(
        "the job stopped, its home gone, the newest record damaged",
        (),
        (f"{_RESUME}a_stopped_job_is_resumed_from_its_store_alone_and_trains_every_row_once",),
    ),
    Tried(
        "two masters of one job",
        (),
        (
            f"{_TERMS}a_superseded_master_commits_nothing_ends_and_touches_no_pod",
            f"{_TERMS}a_record_that_an_older_master_commits_late_is_in_nobodys_way",
        ),
    ),
    Tried(
        "two processes of one pod",
        (),
        ("platform/master/test_superseded.py::test_the_superseded_process_ends_and_the_job_goes_on",),
    ),
    Tried(
        "a late event of an earlier pod of that name",
        (),
        (f"{_RECONCILER}a_late_word_about_an_earlier_pod_of_a_name_replaces_nobody",),
    ),
    Tried(
        "control plane away while pods are wanted",
        (),
        (f"{_RECONCILER}a_cluster_that_is_away_costs_neither_a_record_nor_training",),
    ),
    Tried("newest record damaged", (), (f"{_STORES}newest_record_is_damaged_goes_on_from_the_one_before_it",)),
    Tried("checkpoint store away during a rollback", (), (f"{_STORES}store_goes_away_during_a_rollback_waits_for_it",)),
    Tried(
        "first command of a home killed in MLflow's migration, or two of them at once",
        (),
        (
            f"{_DATABASE}the_command_after_a_killed_first_one_works",
            f"{_DATABASE}first_commands_that_come_together_all_succeed",
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
        ("faults/test_sockets.py::test_a_cut_server_neither_answers_nor_accepts_and_goes_on_afterwards",),
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
        (f"{_SURROUNDINGS}a_full_disk_under_the_node_lets_the_job_wait_and_then_go_on",),
    ),
    Tried(
        "port taken by another program",
        ((Kind.PORT, Victim.MASTER), (Kind.PORT, Victim.AGENT)),
        (_AGENT_AND_PORTS,),
    ),
    Tried(
        "MLflow away from the middle of the training to its end",
        (),
        (f"{_SURROUNDINGS}mlflow_that_is_away_until_the_end_of_the_training_hears_of_it_afterwards",),
    ),
    Tried(
        "MLflow away from the launch on, the master killed meanwhile",
        (),
        ("faults/test_mlflow_away.py::test_a_job_trained_without_mlflow_is_published_later_with_all_its_figures",),
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
)
