from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from elastrec.checkpoints.mismatch import Verdict, compare
from elastrec.checkpoints.summary import DenseSummary, ModelSummary, summarize
from elastrec.platform.specs.errors import SpecError
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


def test_a_new_feature_starts_anew_and_a_removed_one_is_dropped(record: ModelSummary, make_job: MakeJob) -> None:
    wider = [DenseSummary(name="in.weight", shape=(8, 3)), DENSE[1]]
    adaptation = compare(record, make_job(sparse=("ad", "user", "page")), wider)
    assert [adaptation.table(name) for name in ("ad", "user", "page")] == [Verdict.KEPT, Verdict.KEPT, Verdict.NEW]
    assert adaptation.dense("in.weight") is Verdict.NEW
    assert adaptation.dense("out.weight") is Verdict.KEPT
    assert compare(record, make_job(sparse=("ad",))).table("user") is Verdict.DROPPED


def test_a_changed_dimension_starts_every_table_anew(record: ModelSummary, make_job: MakeJob) -> None:
    adaptation = compare(record, make_job(dimension=8))
    assert adaptation.table("ad") is adaptation.table("user") is Verdict.NEW
    assert adaptation.dense("anything") is Verdict.KEPT_WHERE_SHAPE_FITS
    assert not adaptation.refused


def test_a_table_that_gets_a_dimension_of_its_own_starts_anew_alone(make_job: MakeJob) -> None:
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


def test_a_record_whose_rows_have_one_state_goes_on_with_it(make_job: MakeJob) -> None:
    def job(first_order: str) -> TrainingJob:
        return make_job(architecture="deepfm", dimension=8, optimizers={"first_order": {"kind": first_order}})

    record = summarize(job("adagrad"))
    older = structs.replace(record, tables=[structs.replace(table, segments=[]) for table in record.tables])
    assert compare(older, job("adagrad")).table("ad") is Verdict.KEPT
    decision = compare(older, job("ftrl")).decisions[0]
    assert decision.verdict is Verdict.KEPT_WITHOUT_STATE and "from adagrad to ftrl" in decision.reason


def test_another_rule_of_a_table_of_its_own_is_that_tables_mismatch(record: ModelSummary, make_job: MakeJob) -> None:
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


def test_an_unknown_name_is_told_with_those_known(record: ModelSummary, make_job: MakeJob) -> None:
    with pytest.raises(KeyError, match=r"no table 'x' among \['ad', 'user'\]"):
        compare(record, make_job()).table("x")
