"""Pictures of scaling: contents, omissions, and comparisons of predictions with measurements."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from elastrec.platform.history import scaling_figures as figures
from elastrec.platform.history.scaling_figures import Decision, Kept, Timed
from elastrec.platform.history.words import Gantt
from elastrec.platform.scaling.model.throughput import fit
from elastrec.platform.scaling.policies.three_stage import ThreeStage
from elastrec.platform.scaling.policy import View, decide
from elastrec.platform.scaling.types import MemoryCurve
from elastrec.platform.specs.shape import DONE, MigrationSeen, MovedServer
from tests.platform.scaling.jobs import GIB, PLENTY, PRICES, SHAPE, allocation, coefficients, measure, profile

ONE, THREE = allocation(1), allocation(3)
GREW = Decision(
    unix_seconds=160.0, samples_trained=100, policy="three-stage", before=ONE, after=THREE, changed=True,
    reason="best use of what is free", before_samples_per_second=10.0, predicted_samples_per_second=28.0,
)  # fmt: skip
SPEED = [Timed(100.0 + second, 10.0 if second < 60 else 28.0) for second in range(120)]
WORKERS = [Timed(100.0, 1.0), Timed(160.0, 3.0)]


def test_every_decision_is_marked_in_the_throughput_and_described() -> None:
    stayed = msgspec.structs.replace(GREW, unix_seconds=190.0, after=ONE, changed=False, reason="stays")
    picture = figures.throughput(SPEED, WORKERS, [GREW, stayed])
    assert picture is not None
    text = picture.get_supxlabel()
    assert text == "1  1.0 min: 1 → 3 workers. best use of what is free"
    (ticks,) = [line for line in picture.axes[0].lines if line.get_marker() == "|"]
    assert list(ticks.get_xdata()) == [1.5], "a round without a change is a tick on the axis"


@pytest.mark.parametrize("plans", [1, 6])
def test_the_reasons_of_plans_stand_directly_below_the_axes(plans: int) -> None:
    picture = figures.throughput(SPEED, WORKERS, [msgspec.structs.replace(GREW, reason="word " * 60)] * plans)
    assert picture is not None
    picture.draw_without_rendering()
    renderer = picture.canvas.get_renderer()  # type: ignore[attr-defined]
    axes = min(axis.get_tightbbox(renderer).y0 for axis in picture.axes)
    captions = picture._supxlabel.get_window_extent(renderer).y1
    assert 0 <= axes - captions < 0.2 * picture.dpi


def test_a_refused_plan_is_shown_with_the_reason() -> None:
    refused = msgspec.structs.replace(GREW, after=allocation(1, 2), changed=False, reason="not yet possible live")
    picture = figures.throughput(SPEED, WORKERS, [refused])
    assert picture is not None and "1 → 2 servers (not done). not yet possible live" in picture.get_supxlabel()


def test_before_anything_was_measured_nothing_is_drawn() -> None:
    assert figures.throughput([], WORKERS, [GREW]) is None
    assert figures.pareto([]) is None
    assert figures.promises([]) is None
    assert figures.fit_against_measured(fit(SHAPE, measure(coefficients(), [ONE])), []) is None


ROOMY = msgspec.structs.replace(ONE, parameter_server_memory_bytes=8 * GIB)
CURVE = MemoryCurve(
    samples=(100.0, 200.0, 300.0), low=(2.0 * GIB, 2.5 * GIB, 3.0 * GIB), likely=(2.0 * GIB, 3.0 * GIB, 4.0 * GIB),
    high=(2.0 * GIB, 4.0 * GIB, 6.0 * GIB), safe_bytes=3.6 * GIB,
)  # fmt: skip
FORECAST = msgspec.structs.replace(GREW, after=ROOMY, policy="memory-forecast", memory=CURVE)


def test_one_picture_shows_the_memory_forecast_its_decision_and_the_actual_use() -> None:
    picture = figures.server_memory([(50, 1.5 * GIB), (150, 2.4 * GIB), (290, 3.8 * GIB)], [GREW, FORECAST])
    assert picture is not None
    (axis,) = picture.axes
    lines = {str(line.get_label()): line for line in axis.lines}
    assert list(lines["measured"].get_ydata()) == [1.5, 2.4, 3.8]
    assert list(lines["forecast, then 4 → 8 GiB per server"].get_ydata()) == [2.0, 3.0, 4.0]
    (legend,) = picture.legends
    picture.draw_without_rendering()
    assert legend.get_window_extent().y1 <= axis.get_tightbbox().y0, "the legend covers no curve"
    limit = lines["limit of a server"]
    assert list(zip(limit.get_xdata(), limit.get_ydata(), strict=True)) == [
        (50.0, 4.0),
        (100.0, 4.0),
        (100.0, 8.0),
        (300.0, 8.0),
    ]
    (at,) = [line for line in axis.lines if list(line.get_xdata()) == [100.0, 100.0]]
    assert at.get_linestyle() == "-", "when it was decided"
    band = axis.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (2.0, 6.0)


def test_memory_that_was_refused_leaves_the_limit_where_it_was_and_is_named() -> None:
    picture = figures.server_memory([(50, 1.5 * GIB)], [msgspec.structs.replace(FORECAST, changed=False)])
    assert picture is not None
    lines = {str(line.get_label()): line for line in picture.axes[0].lines}
    assert "forecast, then 4 → 8 GiB per server (not done)" in lines
    assert set(lines["limit of a server"].get_ydata()) == {4.0}


def test_without_a_forecast_no_memory_is_drawn() -> None:
    assert figures.server_memory([(50, 1.5 * GIB)], [GREW]) is None


def test_the_fit_has_a_curve_for_each_size_and_a_dot_for_each_measurement() -> None:
    observations = measure(coefficients(), [allocation(w, p) for w in (1, 2, 3) for p in (1, 2)])
    picture = figures.fit_against_measured(fit(SHAPE, observations), observations)
    assert picture is not None
    curves = [line for line in picture.axes[0].lines if line.get_marker() == "None"]
    dots = [line for line in picture.axes[0].lines if line.get_marker() == "o"]
    assert len(curves) == 2 and sum(len(np.asarray(line.get_xdata())) for line in dots) == 6
    exact = {w: s for line in dots for w, s in zip(line.get_xdata(), line.get_ydata(), strict=True)}
    assert exact[1] == pytest.approx(SHAPE.batch_size / observations[1].iteration_seconds)


def test_the_front_shows_every_candidate_and_a_star_for_the_chosen_one() -> None:
    (plan,) = decide(ThreeStage(), [profile()], View(PLENTY, PRICES)).plans
    picture = figures.pareto(plan.considered)
    assert picture is not None
    (star,) = [line for line in picture.axes[0].lines if line.get_marker() == "*"]
    assert plan.predicted is not None
    assert list(star.get_xdata()) == [plan.predicted.cost_per_hour]


def test_a_prediction_is_judged_by_measurements_of_both_allocations() -> None:
    observations = measure(coefficients(), [ONE, THREE])
    one, three = (each.allocation.workers * 512 / each.iteration_seconds for each in observations)
    unmeasured = msgspec.structs.replace(GREW, after=allocation(5))
    refused = msgspec.structs.replace(GREW, changed=False)
    (kept,) = figures.kept_promises([unmeasured, refused, GREW], observations, 512)
    assert kept == Kept(name="1 → 3 workers", predicted_gain=18.0, measured_gain=pytest.approx(three - one))
    picture = figures.promises([kept])
    assert picture is not None and len(picture.axes[0].patches) == 2


def test_a_change_is_shown_in_readable_units() -> None:
    larger = msgspec.structs.replace(ONE, worker_cores=2.0, parameter_server_memory_bytes=8 * 2**30)
    assert figures.change(ONE, larger) == "1 → 2 cores per worker, 4 → 8 GiB per server"
    assert figures.change(ONE, ONE) == "stays"


MOVED = MigrationSeen(
    servers_before=2, servers_after=2, unix_seconds=1e9, begun_seconds=10.0, copying_seconds=15.0,
    handing_over_seconds=18.0, ended_seconds=18.5, outcome=DONE,
    servers=[
        MovedServer(name="ps-0"), MovedServer(name="ps-1", leaves=True),
        MovedServer(name="ps-2", is_new=True, up_seconds=14.0),
    ],
)  # fmt: skip


def test_a_migration_shows_serving_copying_and_the_hand_over() -> None:
    chart = Gantt.of(MOVED)
    left = 10.0 - 0.08 * 8.5
    parts = {
        name: [(bar.what, bar.begin + left, bar.begin + bar.seconds + left) for bar in bars]
        for name, bars in chart.rows
    }
    right = pytest.approx(18.5 + 0.08 * 8.5)
    assert parts["ps-0"] == [("serves", pytest.approx(left), right)]
    assert parts["ps-1"] == [("serves", pytest.approx(left), pytest.approx(18.5))], "old ones serve until the end"
    assert parts["ps-2"] == [("starts", 10.0, 14.0), ("copies", 15.0, 18.0), ("serves", 18.5, right)]
    assert chart.hand_over == (pytest.approx(18.0 - left), 0.5)
    assert chart.note == "8.5 s, hand-over 0.50 s"
    picture = figures.migrations([MOVED])
    assert picture is not None and picture.axes[0].get_title() == "2 → 2 parameter servers: 8.5 s, hand-over 0.50 s"
    assert [label.get_text() for label in picture.axes[0].get_yticklabels()] == ["ps-0", "ps-1", "ps-2"]


def test_a_cancelled_migration_does_not_change_the_old_servers() -> None:
    given_up = msgspec.structs.replace(MOVED, handing_over_seconds=None, ended_seconds=16.0, outcome="no room")
    rows = dict(Gantt.of(given_up).rows)
    assert [bar.what for bar in rows["ps-2"]] == ["starts", "copies"]
    assert rows["ps-1"] == rows["ps-0"] and Gantt.of(given_up).note == "no room"
    assert figures.migrations([]) is None


def test_the_picture_of_a_thousand_servers_has_few_rows_and_those_that_changed() -> None:
    old = [MovedServer(name=f"ps-{n}") for n in range(999)]
    one_more = msgspec.structs.replace(MOVED, servers=[*old, MovedServer(name="ps-new", is_new=True, up_seconds=1.0)])
    assert [name for name, _ in Gantt.of(one_more).rows] == ["ps-0 and 998 more", "ps-new"]
    new = [MovedServer(name=f"ps-{n}", is_new=True, up_seconds=MOVED.begun_seconds + n / 100) for n in range(1, 200)]
    many = msgspec.structs.replace(MOVED, servers=[*old, *new])
    rows = Gantt.of(many).rows
    assert len(rows) == 40 and rows[0][0] == "ps-0 and 998 more" and rows[-1] == (f"{199 - 38} more", [])
    picture = figures.migrations([many] * 6)
    assert picture is not None and picture.get_size_inches()[1] < 60
