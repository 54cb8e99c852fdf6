"""`make screenshots`: trains two days in a private stack and takes the pictures of README and docs in Chromium."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import click
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console

from elastrec.operators import settings
from elastrec.platform.jobs import Platform, observe
from elastrec.platform.specs.errors import ElastrecError
from tools.screenshots import airflow, compare
from tools.stack.demo import DAYS, JOB_FILE, ROWS_PER_DAY, make_clicks, wait_for_dag
from tools.stack.rest import AirflowClient
from tools.stack.services import ServiceStack

_POLL_SECONDS = 2.0


@click.command()
@click.option("--home", type=click.Path(path_type=Path), default=Path("demo_data"), help="Folder of everything.")
@click.option("--rows-per-day", type=int, default=ROWS_PER_DAY, show_default=True)
@click.option("--output", type=click.Path(path_type=Path, exists=True), default=Path("docs/images"), show_default=True)
def main(home: Path, rows_per_day: int, output: Path) -> None:
    """Takes the pictures of README and docs."""
    # As Ctrl-C, so that the services are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("there is no Chromium on this machine (apt-get install chromium)")
    console = Console(highlight=False)
    clicks = home / "clicks"
    try:
        # That of the demo, if its home has one.
        days = [day.day for day in make_clicks(clicks, rows_per_day, DAYS, console).days]
    except ElastrecError as error:
        sys.exit(f"no pictures were taken: {error}")
    with ServiceStack(home) as stack, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        client = AirflowClient(stack.airflow_url)
        wait_for_dag(client, settings.DAG_ID)
        client.end_active_runs(settings.DAG_ID)
        client.unpause(settings.DAG_ID)
        for number in range(2):
            first = days[number]
            conf = {
                "job_file": JOB_FILE,
                "interval_start": f"{first}T00:00:00+00:00",
                "interval_end": f"{first + timedelta(days=1)}T00:00:00+00:00",
                "overrides": {"spec.data.path": str(clicks.absolute())},
            }
            run_id = client.trigger(settings.DAG_ID, conf)
            console.print(f"training {first}: DAG run {run_id}", soft_wrap=True)
            _follow(stack, client, browser, run_id, output if number else None)
        compare.shoot(stack, browser, output)
        browser.close()
    for picture in sorted(output.glob("*.png")):
        console.print(str(picture), soft_wrap=True)


def _follow(stack: ServiceStack, client: AirflowClient, browser: Browser, run_id: str, output: Path | None) -> None:
    """Waits until a run has ended; takes the picture of the job's page in the middle of its training."""
    platform = Platform.connect(stack.cluster_config(), stack.mlflow_url, str(stack.home / "work"))
    while (state := client.run_state(settings.DAG_ID, run_id)) not in ("success", "failed"):
        task = client.tasks(settings.DAG_ID, run_id).get("offline_phase", {})
        if output is not None and str(task.get("state")) in ("running", "deferred"):
            job_id = client.xcom(settings.DAG_ID, run_id, "launch")["job_id"]
            metrics = observe(platform, job_id).metrics
            if metrics.shards_done * 2 > metrics.shards_total > 0:
                airflow.shoot_job(stack, browser, output, job_id)
                output = None
        time.sleep(_POLL_SECONDS)
    if state == "failed":
        raise SystemExit(f"the DAG run {run_id} failed; look at {stack.airflow_url}")


if __name__ == "__main__":
    main()
