"""Simulates several policies on the same jobs with the same faults, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from elastrec.platform.history.records import JobRecord
from elastrec.platform.jobs.what_if.job_table import read_arrivals, read_jobs, read_node_changes
from elastrec.platform.jobs.what_if.past_jobs import jobs_of
from elastrec.platform.jobs.what_if.simulation_file import BY_HAND_NAME, SimulationFile
from elastrec.platform.scaling.amounts import Change, PriceList, Resources
from elastrec.platform.scaling.policies.static import Static
from elastrec.platform.scaling.policy import ScalingPolicy, load_policy
from elastrec.platform.scaling.search.objectives import Rules
from elastrec.platform.scaling.types import Overheads
from elastrec.platform.scaling.warm_start import WarmStartSettings
from elastrec.platform.simulator.mixes import Habits, recurring
from elastrec.platform.simulator.node_changes import NodeChange
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.report import Report
from elastrec.platform.simulator.settings import BY_HAND, Handling, Settings
from elastrec.platform.simulator.simulation import Simulation
from elastrec.platform.simulator.workload import JobToRun
from elastrec.platform.specs.errors import FieldProblem, ScalingError, SpecError
from elastrec.platform.specs.scaling import names_a_file

Progress = Callable[[str, int, int], None]
"""Called with (policy, finished jobs, all jobs)."""


class Gathered(msgspec.Struct, frozen=True):
    """The jobs of a comparison.

    Attributes:
        notes: for people: jobs that were left out, and assumptions.
        overheads: measured in the history; None without a history.
        node_changes: changes of the number of nodes.
    """

    jobs: tuple[JobToRun, ...]
    notes: tuple[str, ...] = ()
    overheads: Overheads | None = None
    node_changes: tuple[NodeChange, ...] = ()


def gather(
    asked: SimulationFile, base: Path, records: Sequence[JobRecord] = (), overheads: Overheads | None = None
) -> Gathered:
    """The jobs of a simulation file.

    Args:
        base: folder of relative paths of CSV files.
        records, overheads: of the history, if the file uses one.

    Raises:
        SpecError: a CSV file is wrong, or the history has no finished job.
    """
    workload = asked.workload
    if workload.jobs is not None:
        table = read_jobs(base / workload.jobs, workload.time_unit, skip_wrong_lines=workload.skip_wrong_lines)
        gathered = Gathered(table.jobs, tuple(f"left out: {each}" for each in table.skipped))
    elif workload.made_up is not None:
        made = workload.made_up
        arrivals = read_arrivals(base / made.arrivals, workload.time_unit) if made.arrivals else None
        habits = Habits(models=made.models, teams=min(made.teams, made.models))
        jobs = recurring(made.jobs, asked.seed, habits, made.mean_time_between_jobs, arrivals)
        gathered = Gathered(jobs, ("the jobs are made up",))
    else:
        past = jobs_of(records)
        if not past.jobs:
            why_none = "; ".join(f"{name}: {why}" for name, why in past.left_out[:5]) or "the experiment has no job"
            problem = FieldProblem(
                "workload.history", why_none, "at least one finished job", "name another experiment or tracking server"
            )
            raise SpecError([problem])
        left_out = tuple(f"left out: {name}: {why}" for name, why in past.left_out)
        gathered = Gathered(past.jobs, (*past.notes, *left_out), overheads)
    if asked.changes == "workers":
        movable = frozenset({Change.WORKERS})
        jobs = tuple(msgspec.structs.replace(each, movable=each.movable & movable) for each in gathered.jobs)
        gathered = msgspec.structs.replace(gathered, jobs=jobs)
    if asked.cluster.node_changes is not None:
        changes = read_node_changes(base / asked.cluster.node_changes, workload.time_unit)
        gathered = msgspec.structs.replace(gathered, node_changes=changes)
    return gathered


def settings_of(asked: SimulationFile, measured: Overheads | None, handling: Handling) -> Settings:
    """The settings of the simulation; fields that are absent in the file are measured or have defaults."""
    trouble, known = asked.trouble, measured or Overheads()
    start = known.worker_start_seconds if trouble.start_time is None else trouble.start_time
    pause = known.migration_pause_seconds if trouble.migration_pause is None else trouble.migration_pause
    return Settings(
        seed=asked.seed, interval_seconds=asked.round_interval, start_seconds=start, migration_pause_seconds=pause,
        worker_start_core_seconds=known.worker_start_core_seconds,
        server_start_core_seconds=known.server_start_core_seconds,
        noise=trouble.noise, hours_between_failures=trouble.hours_between_failures,
        straggler_share=trouble.stragglers, hot_server_share=trouble.hot_servers, handling=handling,
        patience_rounds=asked.patience_rounds, until_seconds=asked.at_most,
    )  # fmt: skip


def compare(asked: SimulationFile, gathered: Gathered, progress: Progress | None = None) -> list[Report]:
    """One report per policy, in the file's order.

    Raises:
        ScalingError: a policy does not exist or cannot be loaded.
    """
    prices = PriceList(core_hour=asked.prices.core_hour, gibibyte_hour=asked.prices.gibibyte_hour)
    size = Resources(asked.cluster.cores, float(asked.cluster.memory))
    policies, reports = _policies(asked.policies), []
    if progress is not None:
        for name in policies:
            progress(name, 0, len(gathered.jobs))
    for name, policy in policies.items():
        by_hand = name == BY_HAND_NAME
        simulation = Simulation(
            gathered.jobs,
            Nodes(asked.cluster.nodes, size),
            policy,
            prices,
            settings_of(asked, gathered.overheads, BY_HAND if by_hand else Handling()),
            rules=Rules(max_slowdown=asked.max_slowdown),
            warm_start=WarmStartSettings() if asked.warm_start and not by_hand else None,
            node_changes=gathered.node_changes,
            progress=None if progress is None else _told(progress, name),
        )
        reports.append(msgspec.structs.replace(simulation.run(), policy=name))
    return reports


def _policies(asked: Sequence[str]) -> dict[str, ScalingPolicy]:
    """Policies by their names in the report; a policy in a file has its own name. All are loaded before the first one
    runs.

    Raises:
        ScalingError: a policy cannot be loaded, or two would have the same name in the table.
    """
    policies: dict[str, ScalingPolicy] = {}
    for name in asked:
        policy = Static() if name == BY_HAND_NAME else load_policy(name)
        shown = policy.name if names_a_file(name) else name
        if shown in policies or (shown != name and shown in asked):
            raise ScalingError(f"policy {name}: its name {shown!r} is another one's too; give the class another name")
        policies[shown] = policy
    return policies


def _told(progress: Progress, name: str) -> Callable[[int, int], None]:
    return lambda ended, jobs: progress(name, ended, jobs)
