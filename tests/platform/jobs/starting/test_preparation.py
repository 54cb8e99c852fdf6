"""`prepare`: what it does not change, files of a running job with the same key, and the fitting of feature steps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastrec.checkpoints import take_term
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.data.manifest import read_manifest
from elastrec.platform.jobs import Interval, Platform, Prepared, days_to_continue, prepare
from elastrec.platform.jobs.starting import preparation
from elastrec.platform.jobs.starting.kept_launch import keep_launch
from elastrec.platform.specs.errors import NoRowsError, SpecError
from elastrec.platform.specs.features import Standardize, Steps
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.text.loading import job_from_json
from tests.operators.steps import ALLOCATION
from tests.platform.jobs.records import final_record, periodic_record
from tests.platform.master.fakes import FakeLauncher, job


class _Usable:
    """Takes every model; a real check loads torch."""

    def __init__(self, job: TrainingJob) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def wait(self) -> None:
        pass


def write_day(folder: Path, day: int, rows: int) -> None:
    place = folder / f"day=2026-01-{day:02}"
    place.mkdir(parents=True, exist_ok=True)
    price = [float(day * number) for number in range(rows)]
    label = [row % 2 for row in range(rows)]
    pq.write_table(pa.table({"label": label, "user": list(range(rows)), "price": price}), place / "part-0.parquet")


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Platform:
    monkeypatch.setattr(preparation, "ModelCheck", _Usable)
    for day in (1, 2):
        write_day(tmp_path / "data", day, 100 * day)
    return Platform(FakeLauncher(), LocalConfig(address="", token=""), "", str(tmp_path / "work"), tmp_path)


def test_preparing_other_rows_under_the_same_key_keeps_the_files_of_the_running_job(
    platform: Platform, tmp_path: Path
) -> None:
    clicks = job()
    running = prepare(platform, clicks, "clicks-1")
    uris = (running.training_manifest, running.evaluation_manifest)
    before = [read_manifest(uri) for uri in uris]
    assert [manifest.rows for manifest in before] == [100, 200]

    write_day(tmp_path / "data", 3, 300)
    later = prepare(platform, clicks, "clicks-1")
    assert [read_manifest(uri) for uri in uris] == before
    assert read_manifest(later.training_manifest).rows == later.training_rows == 300
    assert read_manifest(later.evaluation_manifest).rows == later.evaluation_rows == 300


def test_a_job_that_was_begun_has_the_same_files_after_the_log_has_got_another_day(
    platform: Platform, tmp_path: Path
) -> None:
    (tmp_path / "users.txt").write_text("3\n5\n")
    clicks = _with_steps(tmp_path, PRICE)
    begun = prepare(platform, clicks, "clicks-1")
    place = (job_from_json(begun.job_json).spec.checkpoint.store, "clicks", "clicks-1")
    keep_launch(place[0], begun, ALLOCATION, earlier_terms=0)
    take_term(*place, holder="h", address="127.0.0.1:1", base=lambda: "")
    write_day(tmp_path / "data", 3, 300)
    assert prepare(platform, clicks, "clicks-1") != begun
    interval = days_to_continue(platform, clicks, "clicks-1")
    assert interval == begun.interval
    # The figures of its steps are those of its own rows, too.
    assert prepare(platform, clicks, "clicks-1", interval) == begun


@pytest.mark.parametrize("emptiness", ["no folder", "no file", "no rows"])
def test_the_day_before_a_day_without_rows_is_trained_and_evaluated_on_a_later_one(
    emptiness: str, platform: Platform, tmp_path: Path
) -> None:
    """Without that, its rows could be trained neither as that day nor together with others."""
    for day, rows in ((3, 0), (4, 400), (5, 500)):
        write_day(tmp_path / "data", day, rows)
    if emptiness != "no rows":
        (tmp_path / "data/day=2026-01-03/part-0.parquet").unlink()
    if emptiness == "no folder":
        (tmp_path / "data/day=2026-01-03").rmdir()
    start, end, after = (f"2026-01-0{day}T00:00:00" for day in (2, 3, 4))
    with pytest.raises(NoRowsError, match=r"day=2026-01-03.*evaluated on later ones: `--evaluate-from DATE`"):
        prepare(platform, job(), "clicks-1", Interval(start))
    prepared = prepare(platform, job(), "clicks-1", Interval(start, end, evaluation_start=after))
    assert (prepared.training_rows, prepared.evaluation_rows) == (200, 400)
    assert read_manifest(prepared.evaluation_manifest).partitions == ["day=2026-01-04"]
    # The next run continues from its record, and only a folder that should not be there seems to be left out.
    store = Path(job_from_json(prepared.job_json).spec.checkpoint.store)
    record = final_record(store, job(), 1, (prepared.interval.start, prepared.interval.end))
    following = prepare(platform, job(), "clicks-2", Interval(after))
    assert following.start_record == record
    assert ("day=2026-01-03" in following.untrained) == (emptiness != "no folder")


def test_preparing_the_same_rows_again_makes_no_other_manifests(platform: Platform, tmp_path: Path) -> None:
    first, again = (prepare(platform, job(), "clicks-1") for _ in range(2))
    assert first == again
    assert len(list((tmp_path / "work/manifests/clicks-1").iterdir())) == 2


def _with_steps(folder: Path, price: list[dict[str, Any]], **spec: Any) -> TrainingJob:
    """A job on the days of `write_day` with these steps of the price and the users of a file."""
    data = {
        "path": "data",
        "dense": [{"name": "price"}],
        "sparse": [{"name": "user"}],
        "features": {"price": price, "user": [{"step": "vocabulary", "file": "users.txt"}]},
    }
    return job(data=data, checkpoint={"store": str(folder / "store")}, **spec)


def _steps(prepared: Prepared) -> dict[str, Steps]:
    return job_from_json(prepared.job_json).spec.data.features


def _figures(prepared: Prepared) -> tuple[float | None, float | None]:
    [step] = [step for step in _steps(prepared)["price"] if isinstance(step, Standardize)]
    return step.mean, step.scale


PRICE = [{"step": "clip", "low": 0}, {"step": "standardize"}]


def test_steps_are_fitted_on_the_training_rows_alone(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "users.txt").write_text("3\n5\n")
    # A value beyond float32 is none any more once it is standardized.
    large = pa.table({"label": [0, 1], "user": [3, 4], "price": [0.0, 1e100]})
    pq.write_table(large, tmp_path / "data/day=2026-01-01/part-0.parquet")
    prepared = prepare(platform, _with_steps(tmp_path, PRICE[1:], deduplication="auto"), "clicks-1")
    assert _figures(prepared) == pytest.approx((5e99, 5e99))
    assert _steps(prepared)["user"][0].summary == "vocabulary(values=(3, 5))"
    assert prepared.fitted.splitlines() == [
        "Fitted steps:", "  price: standardize(mean=5e+99, scale=5e+99), fitted on 2 rows",
    ]  # fmt: skip
    assert prepared.tables == (prepared.fitted, prepared.deduplication)


def test_repetition_is_measured_after_the_fitted_steps(platform: Platform, tmp_path: Path) -> None:
    quarters = [{"step": "standardize"}, {"step": "bucketize", "boundaries": [-1.6, -1.4, -1.2]}]
    data = {"path": "data", "sparse": [{"name": "price"}], "features": {"price": quarters}}
    prepared = prepare(platform, job(data=data, deduplication={"groups": [["price"]]}), "clicks-1")
    [factor] = re.findall(r"price .*factor +([0-9.]+),", prepared.deduplication)
    # Four ids in batches of ten; before the figures were known, all prices would lie above -1.2.
    assert 2 < float(factor) < 4


def test_the_order_of_rows_is_compared_once_it_is_known_whether_sessions_are_kept_together(
    platform: Platform, tmp_path: Path
) -> None:
    data = {"path": "data", "sparse": [{"name": "user"}], "session": "user"}
    earlier = prepare(platform, job(data=data), "clicks-1")
    continual = {"start_from": periodic_record(tmp_path / "store", earlier, 1)}
    # No row repeats, so that nothing is deduplicated.
    again = prepare(platform, job(data=data, continual=continual, deduplication="auto"), "clicks-2")
    assert again.start_note.endswith("20 of 100 samples are trained")
    with pytest.raises(SpecError, match=r"spec.deduplication \(.*: 'user' is not allowed; allowed: '', as when"):
        prepare(platform, job(data=data, continual=continual, deduplication={"groups": [["user"]]}), "clicks-3")


def test_days_that_were_left_out_since_the_record_that_a_job_continues_from_are_named(
    platform: Platform, tmp_path: Path
) -> None:
    """A day failed, and the next ones ran: they have learned nothing of it."""
    clicks = job()
    in_store = job(checkpoint={"store": str(tmp_path / "work/checkpoints")})
    final_record(tmp_path / "work/checkpoints", in_store, 1, ("2026-01-01T00:00Z", "2026-01-02T00:00Z"))
    for day in (3, 5, 6):
        write_day(tmp_path / "data", day, 10)

    def untrained(day: int, job: TrainingJob = clicks) -> str:
        return prepare(platform, job, f"clicks-{day}", Interval(f"2026-01-{day:02}T00:00:00")).untrained

    assert untrained(2) == ""
    assert untrained(5).startswith(
        "2 partitions between the rows of the record that it continues from and its own rows not trained: "
        "day=2026-01-02, day=2026-01-03. To train on them, run them before this one"
    )
    assert untrained(5, job(continual={"start_from": "nothing"})) == ""
    final_record(tmp_path / "work/checkpoints", in_store, 2, ("2026-01-03T00:00Z", "2026-01-04T00:00Z"))
    # There is no partition of the fourth.
    assert untrained(5) == ""
    (tmp_path / "data/day=2026-1-4").mkdir()
    assert untrained(5) == "", "a job is not refused for a folder that is not its own"


def test_a_job_that_continues_from_a_record_keeps_its_statistics(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "users.txt").write_text("3\n5\n")
    first = prepare(platform, _with_steps(tmp_path, PRICE), "clicks-1")
    final_record(tmp_path / "store", job_from_json(first.job_json), 1)
    write_day(tmp_path / "data", 3, 300)
    second = prepare(platform, _with_steps(tmp_path, PRICE), "clicks-2")
    assert second.start_record and second.training_rows == 300
    assert _figures(second) == _figures(first)
    assert second.fitted.endswith(", of the record") and "kept" in second.adaptation
    assert "changed" not in second.adaptation


def test_changed_steps_are_fitted_and_their_rows_initialised_again(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "users.txt").write_text("3\n5\n")
    first = prepare(platform, _with_steps(tmp_path, PRICE), "clicks-1")
    final_record(tmp_path / "store", job_from_json(first.job_json), 1)
    (tmp_path / "users.txt").write_text("3\n5\n7\n")
    changed = _with_steps(tmp_path, [{"step": "log1p"}, {"step": "standardize"}])
    second = prepare(platform, changed, "clicks-2")
    assert second.start_record and _figures(second) != _figures(first)
    assert second.fitted.endswith("fitted on 100 rows")
    assert "the steps of price changed" in second.adaptation and "the steps of user changed" in second.adaptation
    strict = _with_steps(tmp_path, PRICE[1:], continual={"on_mismatch": "refuse"})
    with pytest.raises(SpecError, match=r"spec\.data\.features\.user(.|\n)*spec\.data\.features\.price"):
        prepare(platform, strict, "clicks-2")
