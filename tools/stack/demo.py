"""`make demo`: a click log, a private Airflow and MLflow, one run of `daily_retraining`, and its results.

The job begins too small and grows while it trains; then one of its parameter servers is killed.

All files are in one folder (default `demo_data`); a second run uses the click log again. On every kind of exit, no
process is left.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import click
import structlog
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from elastrec.operators import settings
from elastrec.platform.cli.progress import JobProgress
from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate
from elastrec.platform.history.connection import experiments_url
from elastrec.platform.jobs import Platform, observe
from elastrec.platform.specs.errors import ClusterError, ElastrecError
from tools.stack import demo_scaling
from tools.stack.demo_scaling import Scaling
from tools.stack.processes import ServiceError
from tools.stack.rest import AirflowApiError, AirflowClient
from tools.stack.services import ServiceStack
from tools.stack.watching import Watch

JOB_FILE = "demo.yaml"
ROWS_PER_DAY, DAYS = 2_000_000, 3
"""Of the click log."""
_STEP_WORDS = {
    "prepare_data": "check job, data and checkpoint",
    "warm_start": "choose start-up sizes",
    "launch": "start the job",
    "offline_phase": "train and evaluate",
    "evaluate_and_gate": "export the model, pass the gate",
    "register": "register the model",
    "finish": "remove the job from the cluster",
}
_SHOWN_STATES = ("running", "success", "failed", "up_for_retry", "upstream_failed")
_DAG_SECONDS = 120.0
_LOOK_SECONDS = 1.0


class DemoError(Exception):
    """The demo failed; the message names the log to read."""


@dataclass(frozen=True)
class Outcome:
    """The results of one run of the DAG."""

    run_id: str
    metrics: dict[str, Any]
    decision: dict[str, Any]
    registered: dict[str, Any]
    run_url: str
    seconds: float
    scaling: Scaling


@click.command()
@click.option("--home", type=click.Path(path_type=Path), default=Path("demo_data"), help="Folder of everything.")
@click.option("--rows-per-day", type=int, default=ROWS_PER_DAY, show_default=True)
@click.option("--days", type=click.IntRange(2), default=DAYS, show_default=True, help="The last one is evaluated on.")
@click.option("--kill/--no-kill", "kills", default=True, help="Kill a parameter server once the job has grown.")
@click.option("--wait/--no-wait", default=True, help="Keep the pages up until Ctrl-C.")
def main(home: Path, rows_per_day: int, days: int, kills: bool, wait: bool) -> None:
    """Shows elastrec on this machine."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    # `kill` and a closed terminal end the demo as Ctrl-C does, so that the services are stopped.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    console = Console(highlight=False)
    is_done = False
    try:
        truth = make_clicks(home / "clicks", rows_per_day, days, console)
        with console.status("starting Airflow, MLflow and the node agent (about 20 s)"):
            stack = ServiceStack(home)
            stack.start()
        watch = Watch(stack)
        with stack:
            outcome = run_dag(stack, watch, home / "clicks", console, kills=kills)
            show(console, stack, outcome, truth)
            is_done = True
            if wait:
                console.print("\nThe pages stay up until you press [bold]Ctrl-C[/].")
                while True:
                    time.sleep(_LOOK_SECONDS)
                    _look_after(watch, console.print)
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running")
        if not is_done:
            sys.exit(130)
    except (DemoError, ServiceError, ElastrecError, AirflowApiError) as error:
        Console(stderr=True, highlight=False).print(f"the demo failed: {error}", markup=False, soft_wrap=True)
        sys.exit(1)


def make_clicks(folder: Path, rows_per_day: int, days: int, console: Console) -> GenerateReport:
    """The click log in a folder; an existing one is used again."""
    spec = GenerateSpec(path=str(folder.absolute()), rows_per_day=rows_per_day, days=days, seed=1)
    bar = Progress(TextColumn("generating clicks"), BarColumn(), MofNCompleteColumn(), console=console, transient=True)
    begin = time.monotonic()
    with bar:
        task = bar.add_task("rows", total=rows_per_day * days)
        report = generate(spec, lambda done, total: bar.update(task, completed=done, total=total))
    console.print(
        f"click log: {report.rows:,} rows in {len(report.days)} days, {report.bytes / 2**20:.0f} MiB, in {folder} "
        f"({time.monotonic() - begin:.0f} s)"
    )
    return report


def run_dag(stack: ServiceStack, watch: Watch, clicks: Path, console: Console, *, kills: bool) -> Outcome:
    """Triggers the DAG and shows its steps, and inside the training its phases, until it ends.

    Raises:
        DemoError: the DAG cannot be read, or the run failed; holds the end of the failed task's log.
    """
    airflow = AirflowClient(stack.airflow_url)
    for dag in (settings.DAG_ID, demo_scaling.DAG_ID):
        wait_for_dag(airflow, dag)
        for forgotten in airflow.end_active_runs(dag):
            console.print(f"ended the run {forgotten}, which an interrupted demo left unfinished", soft_wrap=True)
        airflow.unpause(dag)
    begin = time.monotonic()
    conf = {"job_file": JOB_FILE, "overrides": {"spec.data.path": str(clicks.absolute())}}
    run_id = airflow.trigger(settings.DAG_ID, conf)
    _print_addresses(console, stack)
    console.print(f"DAG run     {run_id}", soft_wrap=True)
    platform = Platform.connect(stack.cluster_config(), stack.mlflow_url, str(stack.home / "work"))
    shown: dict[str, str] = {}
    # A deferred task runs twice, but is printed once.
    said: set[tuple[str, str]] = set()
    with JobProgress(console=console) as progress:
        scaling = Scaling(airflow, lambda words: progress.say(f"{time.monotonic() - begin:6.1f} s  {words}"), kills)
        while True:
            state = airflow.run_state(settings.DAG_ID, run_id)
            tasks = airflow.tasks(settings.DAG_ID, run_id)
            for task_id, words in _STEP_WORDS.items():
                before, now = shown.get(task_id, ""), str(tasks.get(task_id, {}).get("state") or "")
                shown[task_id] = now
                if now != before and now in _SHOWN_STATES and (task_id, now) not in said:
                    said.add((task_id, now))
                    progress.say(f"{time.monotonic() - begin:6.1f} s  {task_id:<18} {now:<12} {words}")
            _look_after(watch, progress.say)
            if shown.get("offline_phase") in ("running", "deferred"):
                _show_job(airflow, platform, run_id, progress, scaling)
            if state in ("success", "failed"):
                break
            time.sleep(0.5)
    if state == "failed":
        raise DemoError(_failure(airflow, run_id, tasks))
    return _outcome(airflow, run_id, time.monotonic() - begin, scaling)


def show(console: Console, stack: ServiceStack, outcome: Outcome, truth: GenerateReport) -> None:
    """The table of results."""
    last = truth.days[-1]
    metrics, registered = outcome.metrics, outcome.registered
    table = Table(title="daily_retraining", show_header=False, title_justify="left")
    table.add_row("samples trained", f"{metrics['samples_trained']:,} in {outcome.seconds:.0f} s, all steps together")
    table.add_row("evaluation rows", f"{metrics['evaluation_samples']:,} of {last.day} (never trained on)")
    scaling = outcome.scaling
    unchanged = f"the job was not changed: {scaling.why_unchanged}"
    table.add_row("scaling", escape("\n".join(scaling.changes) or scaling.grown or unchanged))
    if scaling.killed:
        back = scaling.back_after_seconds
        found = "it had ended before the server was back" if back is None else f"it trained again {back:.0f} s later"
        table.add_row(f"{scaling.killed} was killed", found)
    else:
        table.add_row("kill of a server", escape(f"not shown: {scaling.why_not_killed}"))
    table.add_row("AUC", f"{metrics['auc']:.4f}   (best possible: {last.best_auc:.4f})")
    table.add_row(
        "normalised entropy",
        f"{metrics['normalized_entropy']:.4f}   (best possible: {last.best_normalized_entropy:.4f})",
    )
    champion = ", champion" if registered["is_champion"] else ""
    table.add_row("model", f"{registered['name']} version {registered['version']}{champion}")
    table.add_row("gate", str(outcome.decision["reason"]))
    console.print()
    console.print(table)
    console.print(f"MLflow run  {outcome.run_url}", soft_wrap=True)
    _print_addresses(console, stack)


def _print_addresses(console: Console, stack: ServiceStack) -> None:
    console.print(f"Airflow     {stack.log_in_url}", soft_wrap=True)
    console.print(f"MLflow      {experiments_url(stack.mlflow_url)}", soft_wrap=True)


def _look_after(watch: Watch, say: Callable[[str], object]) -> None:
    for name in watch.look():
        say(f"{name} had ended on its own or was hanging, and was started again")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def wait_for_dag(airflow: AirflowClient, dag: str) -> None:
    """Waits until Airflow has read a DAG's file.

    Raises:
        DemoError: the file cannot be read, or not within two minutes.
    """
    deadline = time.monotonic() + _DAG_SECONDS
    while not airflow.has_dag(dag):
        errors = airflow.import_errors()
        if errors:
            raise DemoError(f"a DAG file cannot be read:\n{errors[0]}")
        if time.monotonic() > deadline:
            raise DemoError(f"Airflow did not read the DAG {dag} within {_DAG_SECONDS:.0f} s")
        time.sleep(0.3)


def _show_job(airflow: AirflowClient, platform: Platform, run_id: str, progress: JobProgress, scaling: Scaling) -> None:
    launched = airflow.xcom(settings.DAG_ID, run_id, "launch")
    if not launched:
        return
    try:
        observation = observe(platform, launched["job_id"])
    except ClusterError:
        return  # finished and removed between two checks; the task's state shows the result
    if observation.reachable:
        progress.show(observation.metrics)
        scaling.look(launched["job_id"], observation.metrics)


def _outcome(airflow: AirflowClient, run_id: str, seconds: float, scaling: Scaling) -> Outcome:
    def output(task_id: str) -> dict[str, Any]:
        values: dict[str, Any] = airflow.xcom(settings.DAG_ID, run_id, task_id)
        return values

    return Outcome(
        run_id=run_id,
        metrics=output("offline_phase"),
        decision=output("evaluate_and_gate"),
        registered=output("register"),
        run_url=output("launch")["run_url"],
        seconds=seconds,
        scaling=scaling,
    )


def _failure(airflow: AirflowClient, run_id: str, tasks: dict[str, dict[str, Any]]) -> str:
    for task_id in _STEP_WORDS:
        task = tasks.get(task_id, {})
        if task.get("state") == "failed":
            log = airflow.log(settings.DAG_ID, run_id, task_id, int(task["try_number"]))
            return f"the task {task_id} failed; its log ends with:\n" + "\n".join(log.splitlines()[-40:])
    return f"the DAG run {run_id} failed"


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
