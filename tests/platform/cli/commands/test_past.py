"""Commands for jobs that have ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from elastrec.platform import jobs
from elastrec.platform.cli.commands.past import explain, ledger
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import Decided, Effect, RecordAttempt
from elastrec.platform.master.reporting.explanation import write_explanation
from elastrec.platform.master.reporting.ledger import SCHEMA, write_ledger
from elastrec.platform.master.service.journal import Journal
from elastrec.platform.specs.errors import SpecError
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.transport.messages.ledger import OwnPlan
from tests.platform.master.fakes import FakeLauncher
from tests.platform.master.world import World, plan


class Noting(World):
    """A world that keeps the lines of its ledger and its timeline."""

    def handle(self, event: events.Event) -> list[Effect]:
        effects = super().handle(event)
        self.lines = [*getattr(self, "lines", []), *(e for e in effects if isinstance(e, RecordAttempt | Decided))]
        return effects


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a job that has succeeded and left its ledger in the default store."""
    config = LocalConfig(address="", token="secret")
    platform = jobs.Platform(FakeLauncher(), config, "", str(tmp_path), tmp_path)  # type: ignore[arg-type]
    monkeypatch.setattr(jobs.Platform, "from_environment", staticmethod(lambda **_: platform))
    world = Noting(plan())
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED
    journal = Journal(tmp_path / "journal")
    journal.begin(plan())
    journal.start()
    journal.wait(journal.append(events.Begun(time=0.0), world.lines, lambda: b""))
    write_ledger(str(tmp_path / "checkpoints"), "clicks", "clicks-1", world.state, journal)
    write_explanation(str(tmp_path / "checkpoints"), "clicks", "clicks-1", world.state, journal)
    journal.close()
    return "clicks-1"


def output_of(command: Any, *arguments: str) -> str:
    shown = CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    return shown.output


def test_the_ledger_shows_every_attempt_and_the_sums(gone: str) -> None:
    shown = output_of(ledger, gone)
    assert shown.startswith("KIND") and "j-worker-0" in shown and "…" not in shown
    assert "train: 13 attempts at 13 shards; 130 rows, 0 of them repeated; the model has seen 130" in shown
    assert "evaluate: 3 attempts at 3 shards; 25 rows" in shown


def test_the_ledger_as_json_has_one_object_an_attempt(gone: str) -> None:
    found = json.loads(output_of(ledger, gone, "--output", "json", "--kind", "train"))
    assert found["totals"] == {"train": {"attempts": 13, "shards": 13, "rows": 130, "repeated": 0, "kept": 130}}
    assert {"shard", "pod", "from", "to", "repeated", "ended_at"} <= set(found["attempts"][0])


def test_the_ledger_is_exported_as_parquet(gone: str, tmp_path: Path) -> None:
    output_of(ledger, gone, "--parquet", str(tmp_path / "out.parquet"))
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.num_rows == 16 and table.schema.names == SCHEMA.names


def test_the_story_has_the_parts_and_the_timeline(gone: str) -> None:
    text = output_of(explain, gone)
    assert (
        text.startswith("clicks-1 has succeeded; ")
        and "waiting for data" in text
        and "succeeded after 130 samples" in text
    )
    found = json.loads(output_of(explain, gone, "--output", "json"))
    assert sum(found["parts"].values()) == pytest.approx(found["wall_seconds"], rel=0.01)
    assert found["timeline"][0]["what"].startswith("began")


def test_the_json_of_the_story_has_the_masters_own_plans_as_objects(gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = jobs.Platform.from_environment()
    own = OwnPlan(unix_seconds=1.0, samples=2, plan_json=b'{"policy":"memory-forecast"}', outcome="done")
    story = msgspec.structs.replace(jobs.explanation(platform, gone, jobs.DEFAULT_STORE), own_plans=[own])
    monkeypatch.setattr(jobs, "explanation", lambda *_: story)
    (found,) = json.loads(output_of(explain, gone, "--output", "json"))["own_plans"]
    plan = {"policy": "memory-forecast"}
    assert found == {"unix_seconds": 1.0, "samples": 2, "outcome": "done", "reason": "", "plan": plan}


def test_an_unknown_job_is_named_with_the_remedy(gone: str) -> None:
    for command in (ledger, explain):
        with pytest.raises(SpecError, match=r"'clicks-9' is not .* a job of the cluster or of .*--store"):
            output_of(command, "clicks-9")
