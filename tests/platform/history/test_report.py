"""The report of a job is one self-contained page with the contents of its run."""

from __future__ import annotations

import base64
import html
import re
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from mlflow.tracking import MlflowClient

from elastrec.platform.history import History, Point
from elastrec.platform.history import metric_names as names
from elastrec.platform.history.decisions import Decisions
from elastrec.platform.history.report import REPORT_FILE, Story, StoryEntry, StoryPart
from elastrec.platform.history.scaling_figures import Decision
from elastrec.platform.jobs.types import Allocation, GateDecision, Interval, ModelScore, Prepared
from elastrec.platform.scaling import amounts
from elastrec.platform.scaling.policies.three_stage import ThreeStage
from elastrec.platform.scaling.policy import View, decide
from elastrec.platform.scaling.types import MemoryCurve
from elastrec.platform.specs.metrics import FaultCost, Phase
from tests.phones import phone, stacked_tables
from tests.platform.scaling.jobs import PLENTY, profile
from tests.platform.scaling.jobs import PRICES as PRICE_LIST

pytestmark = pytest.mark.services

RECORD = f"file:///{'home/' * 12}checkpoints/clicks/records/000000676768-394a429f-9c16e7cf"
STORY = Story(
    text="clicks: Succeeded",
    wall_seconds=200.0,
    goodput=0.75,
    coverage="50.0 s of this were before the job was resumed",
    parts=[
        StoryPart("training", 150.0, "workers trained rows that count"),
        StoryPart("checkpointing", 25.0, "training paused for a record"),
        StoryPart("redoing_lost_work", 25.0, "training that a rollback threw away, so that it had to be done again"),
    ],
    timeline=[
        StoryEntry(1.0, 1.7e9, "began without a record", ""),
        StoryEntry(
            40.0,
            1.7e9 + 40,
            "lost clicks-ps-0, replaced by clicks-ps-0-1",
            "its process was killed <kill -9>",
            True,
            FaultCost(vacant_seconds=4.5),
        ),
        StoryEntry(
            40.0,
            1.7e9 + 40,
            f"rolled back to {RECORD}",
            "clicks-ps-0: its process was killed <kill -9>",
            True,
            FaultCost(
                paused_seconds=6.25, core_seconds=18.75, byte_seconds=0.0, repeated_rows=1234, repeated_seconds=25.0
            ),
        ),
        StoryEntry(70.0, 1.7e9 + 70, "the master continued", "gone", True, FaultCost(without_master_seconds=3.0)),
        StoryEntry(71.0, 1.7e9 + 71, "something of an earlier version", "nobody counted", True),
    ],
)
BESIDE = r'<tr><td>([^<]*)</td><td data-column="This job">([^<]*)</td><td data-column="Champion\'s">([^<]*)</td></tr>'
VOID = {"meta", "br", "img", "polyline"}


class Tags(HTMLParser):
    """Checks that elements end in the order in which they began; collects what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = [str(value) for name, value in attrs if name == "src" or (tag == "link" and name == "href")]
        # A picture that stands in the page itself is not loaded from anywhere.
        self.loaded += [value for value in named if not value.startswith("data:")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def text_of(page: str) -> str:
    tags = Tags()
    tags.feed(page)
    assert tags.open == [] and tags.loaded == [] and "<script" not in page
    return re.sub(r"\s+", " ", page)


def decision() -> Decision:
    """Two more workers, and a forecast of memory."""
    before = amounts.Allocation(
        workers=1, worker_cores=1.0, worker_memory_bytes=2**30, parameter_servers=1, parameter_server_cores=1.0,
        parameter_server_memory_bytes=2**30,
    )  # fmt: skip
    after = amounts.Allocation(**{**{name: getattr(before, name) for name in before.__struct_fields__}, "workers": 3})
    return Decision(
        unix_seconds=1.7e9, samples_trained=200, policy="three-stage", before=before, after=after, changed=True,
        reason="two more workers pay", predicted_samples_per_second=30_000.0,
        proposed="2 candidates: 1 → 3 workers, 1 → 0.5 cores per server",
        memory=MemoryCurve(
            samples=(200.0, 300.0), low=(1e9, 2e9), likely=(1e9, 3e9), high=(1e9, 4e9), safe_bytes=2.0**29
        ),
    )  # fmt: skip


def decide_with_reasons(history: History, run_id: str) -> None:
    """A decision that was written as a round of scaling writes it."""
    kept = Decisions(history._tracking_uri, history._experiment)
    rounds = kept.log_decision(run_id, decision(), [], {})
    (plan,) = decide(ThreeStage(), [profile()], View(PLENTY, PRICE_LIST)).plans
    kept.log_model(run_id, rounds, plan.considered, None, ())


@pytest.fixture
def run_id(history: History, make_prepared: Callable[..., Prepared], allocation: Allocation) -> str:
    return history.start_run(make_prepared(), allocation)


def test_the_report_of_a_finished_job_has_its_figures_decisions_faults_and_costs(
    history: History, client: MlflowClient, run_id: str, tmp_path: Path
) -> None:
    for step in (100, 200, 300):
        values = {
            names.named(names.MEMORY_BYTES, role="parameter_server"): 1e9, names.MEMORY_KILLS: 2.0,
        }  # fmt: skip
        history.log_series(run_id, [Point(name, value, step, time.time()) for name, value in values.items()])
        values = {names.LOSS: 0.7 - step / 1000, names.SAMPLES_PER_SECOND: 50.0 * step, names.CORE_HOURS: 1.25}
        history.log_series(run_id, [Point(name, value, step, time.time()) for name, value in values.items()])
    gate = GateDecision(
        passed=True, reason="better by 0.01", candidate=ModelScore(0.7512, 0.9034, 200),
        champion=ModelScore(0.7412, 0.9134, 200), champion_version="1",
    )  # fmt: skip
    history.log_gate(run_id, gate)
    Decisions(history._tracking_uri, history._experiment).log_decision(run_id, decision(), [], {})
    history.finish_run(run_id, Phase.SUCCEEDED, story=STORY)
    page = Path(client.download_artifacts(run_id, REPORT_FILE, str(tmp_path))).read_text()
    text = text_of(page)
    for words in (
        "Succeeded",
        "0.7512", "0.7412", "0.9034", "better by 0.01", "passed",
        "1.25 core-hours", ", 2026-01-01</td>", "in 1 epoch, minibatches",
        "2 min 30 s", "redoing lost work", "in 75 %", "50.0 s of this were before the job was resumed",
        "three-stage", "1 → 3 workers", "1 → 0.5 cores per server", "two more workers pay", "30,000",
        "lost clicks-ps-0", "killed &lt;kill -9&gt;",
        "elastrec run job.json --from 2026-01-01 --until 2026-01-02 --evaluate-until 2026-01-03",
        'aria-label="Loss"', 'aria-label="Samples per second"',
    ):  # fmt: skip
        assert words in text, words
    for picture in ("throughput", "memory"):
        (encoded,) = re.findall(rf'<img id="{picture}" [^>]*src="data:image/png;base64,([^"]+)"', page)
        assert base64.b64decode(encoded).startswith(b"\x89PNG") and len(encoded) < 2**18
    assert "Pods that were killed for memory: 2." in text
    assert "began without a record" not in text, "a beginning is no fault"


def test_the_command_of_an_hourly_job_has_its_hours(
    history: History, make_prepared: Callable[..., Prepared], allocation: Allocation
) -> None:
    hours = Interval("2026-01-01T22:00:00+01:00", "2026-01-02T00:00:00+01:00", "2026-01-02T01:00:00+01:00")
    run_id = history.start_run(msgspec.structs.replace(make_prepared(), interval=hours), allocation)
    command = "--from 2026-01-01T22:00:00+01:00 --until 2026-01-02 --evaluate-until 2026-01-02T01:00:00+01:00 --set"
    assert f"elastrec run job.json {command} spec.continual.start_from=file:///store" in text_of(history.report(run_id))


def test_the_command_of_a_job_that_was_evaluated_on_a_later_day_has_that_day(
    history: History, make_prepared: Callable[..., Prepared], allocation: Allocation
) -> None:
    start, end, later, last = (f"2026-01-0{day}T00:00:00+00:00" for day in (1, 2, 4, 5))
    prepared = msgspec.structs.replace(make_prepared(), interval=Interval(start, end, last, later))
    text = text_of(history.report(history.start_run(prepared, allocation)))
    days = "--from 2026-01-01 --until 2026-01-02 --evaluate-from 2026-01-04 --evaluate-until 2026-01-05"
    assert f"elastrec run job.json {days} --set" in text


def test_every_fault_is_one_line_with_its_cost_or_unknown() -> None:
    lost, master, uncounted = STORY.faults
    assert lost.what == f"lost clicks-ps-0, replaced by clicks-ps-0-1; rolled back to {RECORD}"
    assert lost.cause == "clicks-ps-0: its process was killed <kill -9>", "a cause is said once"
    assert (lost.cost.paused_seconds, lost.cost.repeated_rows, lost.cost.vacant_seconds) == (6.25, 1234, 4.5)
    assert master.cost.paused_seconds is None and uncounted.cost == FaultCost()


def test_the_report_has_the_cost_of_each_fault_and_of_all(history: History, run_id: str) -> None:
    text = text_of(history.report(run_id, STORY))
    (table,) = re.findall(r'<table id="faults" class="stacked">(.*?)</table>', text)
    lost, master, uncounted, total = (
        [line.strip() for line in re.sub(r"<[^>]+>", "|", cell).split("|") if line.strip()]
        for cell in re.findall(r'<td class="cost" data-column="Cost">(.*?)</td>', table)
    )
    assert lost == [
        "Training paused: 6.2 s", "Held meanwhile: 18.8 core-seconds", "Trained again: 1,234 rows, 25.0 s",
        "Place vacant: 4.5 s",
    ]  # fmt: skip
    assert master == ["Training paused: unknown", "Trained again: unknown", "Without a master: 3.0 s"]
    assert uncounted == ["unknown"] and total == [*lost, "Without a master: 3.0 s"]


def test_the_report_leads_to_the_dag_run_the_tasks_log_and_the_run_as_far_as_there_are_any(
    history: History, make_prepared: Callable[..., Prepared], allocation: Allocation
) -> None:
    tags = {"airflow.url": "http://airflow/dags/d/runs/r", "airflow.log_url": "http://airflow/t?a=1&try_number=2"}
    tagged = msgspec.structs.replace(make_prepared("clicks-a"), run_tags=tags)
    run_id = history.start_run(tagged, allocation)
    # The address can be copied: a frame such as that of MLflow's viewer may not open links.
    link = r'<div>([^<]+): <a href="([^"]+)" target="_blank" rel="noopener">([^<]+)</a></div>'
    found = [[html.unescape(each) for each in shown] for shown in re.findall(link, history.report(run_id))]
    assert [(url, words) for words, url, text in found if url == text] == [
        (tags["airflow.url"], "DAG run"), (tags["airflow.log_url"], "Task's log"),
        (history.run_url(run_id), "MLflow run"),
    ]  # fmt: skip
    by_hand = history.report(history.start_run(make_prepared("clicks-b"), allocation))
    assert "DAG run" not in by_hand and "s log" not in by_hand and "MLflow run" in by_hand


PRICES = {"core_hour": 0.36, "gibibyte_hour": 0.04, "currency": "EUR"}


def test_the_report_shows_why_each_plan_was_made(history: History, run_id: str) -> None:
    assert 'class="wide plan"' not in history.report(run_id)
    decide_with_reasons(history, run_id)
    text = text_of(history.report(run_id))
    ((words, shown),) = re.findall(
        r'<h3>([^<]+)</h3> <p class="muted">[^<]+ UTC: two more workers pay</p> <div class="wide plan">(.*?)</div>',
        text,
    )
    assert words == "1. 1 → 3 workers"
    ((caption, encoded),) = re.findall(r'<img alt="([^"]+)" [^>]*src="data:image/png;base64,([^"]+)"', shown)
    assert caption.startswith("What could have been done") and base64.b64decode(encoded).startswith(b"\x89PNG")


def test_with_prices_the_report_has_the_cost_in_money_and_without_them_none(
    history: History, make_prepared: Callable[..., Prepared], allocation: Allocation
) -> None:
    paid, unpaid = (
        history.start_run(make_prepared(job_id, prices=prices), allocation)
        for job_id, prices in (("clicks-paid", PRICES), ("clicks-unpaid", None))
    )
    for run_id in (paid, unpaid):
        values = {names.CORE_HOURS: 10.0, names.GIBIBYTE_HOURS: 20.0}
        history.log_series(run_id, [Point(name, value, 100, time.time()) for name, value in values.items()])
    history.log_series(paid, [Point(names.COST, 4.4, 100, time.time())])
    assert history.record(paid).cost == "4.40 EUR" and history.record(unpaid).cost == ""
    text = text_of(history.report(paid, STORY))
    assert "10 core-hours, 20 GiB-hours: <b>4.40 EUR</b>, at 0.36 EUR per core-hour and 0.04 EUR per GiB-hour." in text
    (table,) = re.findall(r'<table id="faults" class="stacked">(.*?)</table>', text)
    assert "Held meanwhile: 18.8 core-seconds, 0.00187 EUR<" in table
    text = text_of(history.report(unpaid, STORY))
    assert "10 core-hours, 20 GiB-hours." in text and "EUR" not in text
    gate = GateDecision(passed=True, reason="better", candidate=ModelScore(0.7, 0.9, 200), champion=None)
    history.log_gate(unpaid, gate, champion_run=paid)
    beside = text_of(history.report(unpaid))
    assert ("cost", "–", "4.40 EUR") in re.findall(BESIDE, beside)


def test_the_report_fits_a_phone_and_needs_nothing_else(
    history: History, make_prepared: Callable[..., Prepared], allocation: Allocation, run_id: str, tmp_path: Path
) -> None:
    """In a browser that is 390 px wide no table scrolls sideways, nor does the page."""
    for step in (100, 200, 300):
        values = {
            names.named(names.MEMORY_BYTES, role="parameter_server"): 1e9, names.SAMPLES_PER_SECOND: 50.0 * step,
            names.LOSS: 0.7 - step / 1000,
        }  # fmt: skip
        history.log_series(run_id, [Point(name, value, step, time.time()) for name, value in values.items()])
    decide_with_reasons(history, run_id)
    gate = GateDecision(passed=True, reason="better", candidate=ModelScore(0.7, 0.9, 200), champion=None)
    champion = history.start_run(make_prepared("clicks-champion", batch_size=512), allocation)
    history.log_gate(run_id, gate, champion_run=champion)
    file, requests = tmp_path / "report.html", list[str]()
    file.write_text(history.report(run_id, STORY))
    with phone() as page:
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        assert stacked_tables(page) == ["beside", "decisions", "faults"]
        narrowest = page.evaluate(
            "Math.min(...[...document.querySelectorAll('#trained td:last-child, #time td:last-child')]"
            ".map(cell => cell.getBoundingClientRect().width))"
        )
        drawn = page.evaluate("[...document.images].map(image => [image.id, image.naturalWidth > 0])")
    assert narrowest > 40, "a column of single letters cannot be read"
    assert drawn == [["throughput", True], ["", True], ["memory", True]]
    assert [url for url in requests if not url.startswith("data:")] == [file.as_uri()]


def test_the_report_shows_the_champions_training_and_its_cost(
    history: History, make_prepared: Callable[..., Prepared], allocation: Allocation
) -> None:
    runs = [
        history.start_run(make_prepared(job_id, batch_size=size, rows=rows), allocation)
        for job_id, size, rows in (("clicks-old", 512, 1000), ("clicks-new", 256, 2000))
    ]
    for run_id, core_hours in zip(runs, (1.25, 2.5), strict=True):
        history.log_series(run_id, [Point(names.CORE_HOURS, core_hours, 100, time.time())])
    gate = GateDecision(
        passed=True, reason="better by 0.01", candidate=ModelScore(0.7512, 0.9034, 200),
        champion=ModelScore(0.7412, 0.9134, 200), champion_version="1",
    )  # fmt: skip
    history.log_gate(runs[1], gate, champion_run=runs[0])
    rows = re.findall(BESIDE, text_of(history.report(runs[1])))
    assert {
        ("run", "clicks-new", "clicks-old"),
        ("training rows", "2000", "1000"),
        ("core-hours", "2.5000", "1.2500"),
        ("training.batch_size", "256", "512"),
    } <= set(rows)
    assert "training.epochs" not in [name for name, _, _ in rows], "equal parameters say nothing"
    assert "Beside the champion" not in text_of(history.report(runs[0]))


def test_without_the_champions_run_the_report_only_lacks_the_comparison(
    history: History, client: MlflowClient, run_id: str
) -> None:
    client.set_tag(run_id, "elastrec.champion_run", "0" * 32)
    assert "Beside the champion" not in text_of(history.report(run_id))


def test_the_report_of_an_immediate_failure_marks_unknown_values(
    history: History, client: MlflowClient, run_id: str, tmp_path: Path
) -> None:
    history.finish_run(run_id, Phase.FAILED, "ZeroDivisionError: <division>")
    text = text_of(Path(client.download_artifacts(run_id, REPORT_FILE, str(tmp_path))).read_text())
    for words in (
        "Failed",
        "ZeroDivisionError: &lt;division&gt;",
        "It was not evaluated.",
        "None was made.",
        "Unknown",
        "elastrec resume",
    ):
        assert words in text, words
    said = StoryEntry(2.0, 1.7e9, "failed", "ZeroDivisionError")
    history.finish_run(run_id, Phase.FAILED, "again", story=msgspec.structs.replace(STORY, timeline=[said]))
    text = text_of(Path(client.download_artifacts(run_id, REPORT_FILE, str(tmp_path))).read_text())
    assert "None before the failure at the top of this page." in text


def test_a_run_without_a_job_is_closed_without_a_report(history: History, client: MlflowClient, run_id: str) -> None:
    client.delete_tag(run_id, "elastrec.team")
    history.finish_run(run_id, Phase.STOPPED)
    assert client.get_run(run_id).info.status == "KILLED"
    assert REPORT_FILE not in [each.path for each in client.list_artifacts(run_id)]
