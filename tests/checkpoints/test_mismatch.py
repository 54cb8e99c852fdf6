from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from elastrec.checkpoints.mismatch import Verdict, compare
from elastrec.checkpoints.summary import DenseSummary, ModelSummary, summarize
from elastrec.platform.specs.errors import CheckpointError, SpecError
from elastrec.platform.specs.job import TrainingJob

MakeJob = Callable[..., TrainingJob]
DENSE = [DenseSummary(name="in.weight", shape=(8, 2)), DenseSummary(name="out.weight", shape=(1, 8))]


@pytest.fixture
def record(make_job: MakeJob) -> ModelSummary:
    return summarize(make_job(), DENSE)


def test_an_unchanged_job_keeps_everything(record: ModelSummary, make_job: MakeJob) -> None:
    for dense in (None, DENSE):
        adaptation = compare(record, make_job(), dense)
        assert adaptation.is_exact
        assert adaptation.table("ad") is adaptation.dense("in.weight") is Verdict.KEPT


def test_a_learning_rate_is_not_a_mismatch(record: ModelSummary, make_job: MakeJob) -> None:
    job = make_job(optimizers={"rows": {"learning_rate": 0.5}}, training={"batch_size": 7, "seed": 9})
    assert compare(record, job, DENSE).is_exact


def test_a_new_feature_is_initialised_and_a_removed_one_is_dropped(record: ModelSummary, make_job: MakeJob) -> None:
    wider = [DenseSummary(name="in.weight", shape=(8, 3)), DENSE[1]]
    adaptation = compare(record, make_job(sparse=("ad", "user", "page")), wider)
    assert [adaptation.table(name) for name in ("ad", "user", "page")] == [Verdict.KEPT, Verdict.KEPT, Verdict.NEW]
    assert adaptation.dense("in.weight") is Verdict.NEW
    assert adaptation.dense("out.weight") is Verdict.KEPT
    assert compare(record, make_job(sparse=("ad",))).table("user") is Verdict.DROPPED


def test_a_changed_dimension_initialises_every_table_again(record: ModelSummary, make_job: MakeJob) -> None:
    adaptation = compare(record, make_job(dimension=8))
    assert adaptation.table("ad") is adaptation.table("user") is Verdict.NEW
    assert adaptation.dense("anything") is Verdict.KEPT_WHERE_SHAPE_FITS
    assert not adaptation.refused


def test_a_new_dimension_of_a_table_initialises_only_that_table(make_job: MakeJob) -> None:
    record = summarize(make_job(architecture="dcn_v2"), DENSE)
    adaptation = compare(record, make_job(architecture="dcn_v2", tables={"ad": {"dimension": 6}}))
    assert adaptation.table("ad") is Verdict.NEW and adaptation.table("user") is Verdict.KEPT
    decision = adaptation.decisions[0]
    assert decision.field == "spec.tables.ad.dimension" and decision.reason == "the dimension changed from 4 to 6"
    assert adaptation.dense("anything") is Verdict.KEPT_WHERE_SHAPE_FITS


def test_a_first_order_model_has_rows_of_another_length(record: ModelSummary, make_job: MakeJob) -> None:
    assert compare(record, make_job(architecture="deepfm")).table("ad") is Verdict.NEW


def test_rows_of_the_same_length_with_and_without_a_weight_are_not_mixed(make_job: MakeJob) -> None:
    plain, weighted = {"architecture": "dlrm", "dimension": 9}, {"architecture": "deepfm", "dimension": 8}
    for old, new in ((plain, weighted), (weighted, plain)):
        decision = compare(summarize(make_job(**old)), make_job(**new)).decisions[0]
        assert decision.verdict is Verdict.NEW and "first-order weight" in decision.reason
    assert compare(summarize(make_job(**weighted)), make_job(architecture="xdeepfm", dimension=8)).table("ad") is (
        Verdict.KEPT
    )


def test_another_row_optimiser_keeps_rows_without_their_state(record: ModelSummary, make_job: MakeJob) -> None:
    adaptation = compare(record, make_job(optimizers={"rows": {"kind": "adam"}}), DENSE)
    assert adaptation.table("ad") is Verdict.KEPT_WITHOUT_STATE
    assert adaptation.dense("in.weight") is Verdict.KEPT


def test_another_rule_of_the_first_order_weights_keeps_rows_without_that_state(make_job: MakeJob) -> None:
    def job(kind: str) -> TrainingJob:
        return make_job(architecture="deepfm", dimension=8, optimizers={"first_order": {"kind": kind}})

    record = summarize(job("sgd"))
    assert compare(record, job("sgd")).table("ad") is Verdict.KEPT
    decision = compare(record, job("adam")).decisions[0]
    assert decision.verdict is Verdict.KEPT_WITHOUT_STATE and decision.field == "spec.optimizers.first_order.kind"
    assert "first-order weights' optimiser changed from sgd to adam" in decision.reason


def test_a_record_with_one_state_per_row_continues_with_it(make_job: MakeJob) -> None:
    def job(first_order: str) -> TrainingJob:
        return make_job(architecture="deepfm", dimension=8, optimizers={"first_order": {"kind": first_order}})

    record = summarize(job("adagrad"))
    older = structs.replace(record, tables=[structs.replace(table, segments=[]) for table in record.tables])
    assert compare(older, job("adagrad")).table("ad") is Verdict.KEPT
    decision = compare(older, job("ftrl")).decisions[0]
    assert decision.verdict is Verdict.KEPT_WITHOUT_STATE and "from adagrad to ftrl" in decision.reason


def test_another_rule_of_a_table_is_a_mismatch_of_that_table(record: ModelSummary, make_job: MakeJob) -> None:
    adaptation = compare(record, make_job(tables={"ad": {"optimizer": {"kind": "sgd"}}}), DENSE)
    assert adaptation.table("ad") is Verdict.KEPT_WITHOUT_STATE and adaptation.table("user") is Verdict.KEPT


def test_another_dense_optimiser_keeps_the_values(record: ModelSummary, make_job: MakeJob) -> None:
    for dense in (None, DENSE):
        adaptation = compare(record, make_job(optimizers={"dense": {"kind": "sgd"}}), dense)
        assert adaptation.dense("in.weight") is Verdict.KEPT_WITHOUT_STATE
        assert adaptation.table("ad") is Verdict.KEPT


@pytest.mark.parametrize(("old", "new"), [(None, 100), (100, None), (100, 200)])
def test_a_changed_hash_size_is_refused_with_the_ways_out(make_job: MakeJob, old: int | None, new: int | None) -> None:
    def job(size: int | None, **more: int) -> TrainingJob:
        return make_job(tables={"ad": {"hash_size": size}} if size else {}, **more)

    adaptation = compare(summarize(job(old)), job(new))
    assert adaptation.table("ad") is Verdict.REFUSED and adaptation.table("user") is Verdict.KEPT
    with pytest.raises(SpecError, match=r"spec\.tables\.ad\.hash_size(.|\n)*start_from: nothing"):
        adaptation.raise_if_refused()
    assert compare(summarize(job(old)), job(new, dimension=9)).table("ad") is Verdict.NEW


def test_another_architecture_keeps_rows_but_no_dense_parameter(record: ModelSummary, make_job: MakeJob) -> None:
    adaptation = compare(record, make_job(architecture="dcn_v2"), [DENSE[0], DenseSummary(name="cross", shape=(3,))])
    assert adaptation.table("ad") is Verdict.KEPT
    assert adaptation.dense("in.weight") is Verdict.NEW
    assert adaptation.dense("out.weight") is Verdict.DROPPED
    assert adaptation.dense("cross") is Verdict.NEW


@pytest.mark.parametrize(
    "change", [{"dense": ("price", "age")}, {"sparse": ("user", "ad")}, {"sparse": ("ad", "page")}]
)
def test_features_that_changed_places_do_not_inherit_each_others_weights(
    record: ModelSummary, make_job: MakeJob, change: dict[str, tuple[str, ...]]
) -> None:
    adaptation = compare(record, make_job(**change), DENSE)
    assert adaptation.dense("in.weight") is adaptation.dense("out.weight") is Verdict.NEW


def _stepping(make_job: MakeJob, **features: list[dict[str, Any]]) -> TrainingJob:
    """The job with these steps of its features; `age` is one that the steps of others leave alone."""
    data = {
        "path": "clicks",
        "dense": [{"name": "age"}, {"name": "price"}],
        "sparse": [{"name": "ad"}, {"name": "user"}, {"name": "both"}, {"name": "seen", "is_list": True}],
        "features": {"both": [{"step": "cross", "columns": ["ad", "user"]}], **features},
    }
    return make_job(data=data)


PRICE = [{"step": "log1p"}, {"step": "standardize", "mean": 2, "scale": 3}]


def test_changed_steps_initialise_a_feature_and_its_crosses_again(make_job: MakeJob) -> None:
    record = summarize(_stepping(make_job, ad=[{"step": "hash", "size": 9}]), DENSE)
    adaptation = compare(record, _stepping(make_job, ad=[{"step": "hash", "size": 8}]), DENSE)
    verdicts = [adaptation.table(name) for name in ("ad", "user", "both", "seen")]
    assert verdicts == [Verdict.NEW, Verdict.KEPT, Verdict.NEW, Verdict.KEPT]
    assert adaptation.dense("in.weight") is Verdict.KEPT
    assert adaptation.decisions[0].field == "spec.data.features.ad"


def test_unfitted_statistics_and_list_lengths_do_not_change_steps(make_job: MakeJob) -> None:
    record = summarize(_stepping(make_job, price=PRICE, seen=[{"step": "keep_last", "count": 5}]), DENSE)
    unfitted = _stepping(make_job, price=[PRICE[0], {"step": "standardize"}], seen=[{"step": "keep_first", "count": 2}])
    assert compare(record, unfitted, DENSE).is_exact
    assert compare(record, _stepping(make_job, price=PRICE), DENSE).is_exact
    other = _stepping(make_job, price=[PRICE[0], {"step": "standardize", "mean": 2, "scale": 4}])
    assert compare(record, other, DENSE).dense("in.weight") is Verdict.NEW


@pytest.mark.parametrize(
    ("values", "other", "verdict"),
    [
        ([3, 5, 7], {"out_of_vocabulary": 99}, Verdict.KEPT),
        ([5, 3], {"out_of_vocabulary": 99}, Verdict.NEW),
        ([3], {"out_of_vocabulary": 99}, Verdict.NEW),
        ([3, 5], {"out_of_vocabulary": 98}, Verdict.NEW),
        ([3, 5], {}, Verdict.NEW),
    ],
)
def test_values_at_the_end_of_a_vocabulary_leave_the_others_their_ids(
    make_job: MakeJob, values: list[int], other: dict[str, int], verdict: Verdict
) -> None:
    def listing(values: list[int], **more: int) -> TrainingJob:
        return _stepping(make_job, ad=[{"step": "vocabulary", "values": values, **more}])

    record = summarize(listing([3, 5], out_of_vocabulary=99), DENSE)
    assert compare(record, listing(values, **other), DENSE).table("ad") is verdict
    # Without a number of its own, what is out of the vocabulary moves when the vocabulary grows.
    record = summarize(listing([3, 5]), DENSE)
    assert compare(record, listing([3, 5]), DENSE).is_exact
    assert compare(record, listing([3, 5, 7]), DENSE).table("ad") is Verdict.NEW


def test_a_short_form_equals_its_steps(make_job: MakeJob) -> None:
    record = summarize(make_job(), DENSE)

    def changed(transform: str) -> TrainingJob:
        dense = [{"name": "age"}, {"name": "price", "transform": transform}]
        return make_job(data={"path": "clicks", "dense": dense, "sparse": [{"name": "ad"}, {"name": "user"}]})

    assert compare(record, changed("log1p"), DENSE).is_exact
    assert compare(record, changed("none"), DENSE).dense("in.weight") is Verdict.NEW
    # An older record has no short forms.
    assert compare(structs.replace(record, steps_json=""), changed("none"), DENSE).is_exact


def test_a_step_of_another_version_is_an_error_that_names_the_feature(record: ModelSummary, make_job: MakeJob) -> None:
    later = structs.replace(record, steps_json='{"price": [{"step": "of a later version"}]}')
    with pytest.raises(CheckpointError, match=r"price\.0: .*'of a later version'.*the version that wrote it"):
        compare(later, make_job(), DENSE)


def test_refuse_stops_at_any_change_and_names_each(record: ModelSummary, make_job: MakeJob) -> None:
    job = make_job(sparse=("ad", "page", "site"), continual={"on_mismatch": "refuse"})
    adaptation = compare(record, job)
    with pytest.raises(SpecError) as caught:
        adaptation.raise_if_refused()
    assert len(caught.value.problems) == 4  # user dropped, page and site new, dense by shape
    assert all("on_mismatch: adapt" in problem.remedy for problem in caught.value.problems)
    compare(record, make_job(continual={"on_mismatch": "refuse"})).raise_if_refused()


def test_the_table_for_people_has_one_line_per_decision(record: ModelSummary, make_job: MakeJob) -> None:
    text = str(compare(record, make_job(sparse=("ad", "page"), optimizers={"rows": {"kind": "sgd"}})))
    lines = text.splitlines()
    assert lines[0].split() == ["what", "name", "decision", "record", "job", "why"]
    assert any("user" in line and "dropped" in line for line in lines)
    assert any("page" in line and "initialised anew" in line for line in lines)
    assert any("ad" in line and "optimiser state anew" in line and "adagrad to sgd" in line for line in lines)


def test_the_error_about_an_unknown_name_lists_the_known_ones(record: ModelSummary, make_job: MakeJob) -> None:
    with pytest.raises(KeyError, match=r"no table 'x' among \['ad', 'user'\]"):
        compare(record, make_job()).table("x")
