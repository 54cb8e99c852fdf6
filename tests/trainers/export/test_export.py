"""The export of a record to an MLflow model: it equals the trainer, or is refused with the name of the feature."""

from __future__ import annotations

import platform
import subprocess
import sys
import venv
from importlib.metadata import distribution, distributions, version
from pathlib import Path

import mlflow
import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml
from mlflow.entities import LoggedModelStatus
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from elastrec.checkpoints import open_record
from elastrec.platform.data.convert import ByRows, convert
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import CheckpointError, DataError, HistoryError, JobFailedError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.messages.export import parse_result, result_line
from elastrec.trainers.export import wheel as wheel_module
from elastrec.trainers.export.artifact import INDEX_FILE, Artifact, write_artifact
from elastrec.trainers.export.logged_model import TAG_RECORD
from elastrec.trainers.export.process import export
from elastrec.trainers.export.scorer import PyfuncModel, Scorer
from elastrec.trainers.export.signature import raw_frame
from elastrec.trainers.export.wheel import write_wheel
from elastrec.trainers.worker.predictions import read_predictions, write_predictions
from tests.test_house import ROOMS, ROOT, sources
from tests.trainers.export.conftest import ROWS, build, parquet_log, raw_rows


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A tracking store and the id of an experiment in it."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder}/mlflow.db"
    client = mlflow.MlflowClient(uri)
    return uri, client.create_experiment("elastrec", artifact_location=(folder / "artifacts").as_uri())


@pytest.fixture
def tracking(experiment: tuple[str, str]) -> tuple[str, str]:
    """A tracking store and a new run in it."""
    uri, experiment_id = experiment
    return uri, mlflow.MlflowClient(uri).create_run(experiment_id).info.run_id


def test_predictions_of_the_logged_model_equal_the_trainers(finished, tracking, tmp_path: Path) -> None:
    uri, run_id = tracking
    first = export(
        msgspec.structs.replace(finished.request, tracking_uri=uri, run_id=run_id),
        tmp_path,
    )
    assert first.checked_rows == 300
    assert first.largest_difference < 1e-6
    assert first.challenger is not None and first.challenger.samples == 300
    assert first.champion is None and first.champion_problem == ""
    assert parse_result("noise\n" + result_line(first) + "\n") == first
    assert list(tmp_path.iterdir()) == []

    loaded = mlflow.pyfunc.load_model(first.model_uri)
    frame = raw_frame(finished.job.spec.data, finished.raw)
    trained = np.concatenate([item.prediction[:, 0] for item in read_predictions(finished.request.predictions_uri)])
    np.testing.assert_allclose(loaded.predict(frame)["probability"], trained, atol=1e-6)

    # A frame as pandas reads the files: a column of ids with holes is float64.
    as_read = finished.raw.drop_columns(["label"]).to_pandas()
    np.testing.assert_allclose(loaded.predict(as_read)["probability"], trained, atol=1e-6)
    whole = as_read[as_read["user"].notna()].astype({"user": "int64"})
    np.testing.assert_allclose(loaded.predict(whole)["probability"], trained[whole.index], atol=1e-6)

    assert mlflow.MlflowClient(uri).get_run(run_id).info.status == "RUNNING"

    # The same model as champion: the same figures on the same rows.
    second = export(
        msgspec.structs.replace(finished.request, tracking_uri=uri, run_id=run_id, champion_model_uri=first.model_uri),
        tmp_path,
    )
    assert second.champion == second.challenger


def test_logging_a_model_does_not_change_the_series_of_its_run(finished, tracking, tmp_path: Path) -> None:
    uri, run_id = tracking
    client = mlflow.MlflowClient(uri)
    client.log_metric(run_id, "pods/workers", 3.0, step=0)
    client.log_metric(run_id, "curves/auc", 0.5, step=100)
    exported = export(msgspec.structs.replace(finished.request, tracking_uri=uri, run_id=run_id), tmp_path)
    model = client.get_logged_model(exported.model_uri.removeprefix("models:/"))
    assert {metric.key for metric in model.metrics or []}.isdisjoint({"pods/workers", "curves/auc"})
    assert set(client.get_run(run_id).data.metrics) == {"pods/workers", "curves/auc"}
    assert [(metric.step, metric.value) for metric in client.get_metric_history(run_id, "curves/auc")] == [(100, 0.5)]
    assert model.model_id in {output.model_id for output in client.get_run(run_id).outputs.model_outputs}


def test_exported_files_contain_no_pickle(finished, tmp_path: Path) -> None:
    export(msgspec.structs.replace(finished.request, artifact_uri=str(tmp_path / "model")), tmp_path)
    suffixes = {file.suffix for file in (tmp_path / "model").rglob("*") if file.is_file()}
    assert suffixes <= {".npy", ".json", ".txt", ".yaml", ".yml", ".whl", ""}
    for file in (tmp_path / "model").rglob("*.npy"):
        np.load(file, allow_pickle=False)


def test_a_champion_that_cannot_be_loaded_is_named_and_does_not_stop_the_export(finished, tmp_path: Path) -> None:
    result = export(msgspec.structs.replace(finished.request, champion_model_uri=str(tmp_path / "absent")), tmp_path)
    assert result.challenger is not None
    assert result.champion is None
    assert "absent" in result.champion_problem


@pytest.mark.parametrize("feature", ["price", "city", "history"])
def test_a_model_that_differs_is_refused_and_the_feature_is_named(finished, tmp_path: Path, feature: str) -> None:
    import pyarrow as pa

    tampered = str(tmp_path / "predictions")
    for index, item in enumerate(read_predictions(finished.request.predictions_uri)):
        batch, prediction, pooled = item.batch, item.prediction.copy(), item.pooled.copy()
        if index == 1:
            prediction[17, 0] += 0.01
            if feature == "price":
                position = batch.schema.get_field_index("dense")
                values = np.asarray(batch.column("dense").flatten()).copy()
                values[17] += 1
                batch = batch.set_column(position, "dense", pa.FixedSizeListArray.from_arrays(pa.array(values), 1))
            elif feature == "city":
                values = np.asarray(batch.column("city")).copy()
                values[17] += 1
                batch = batch.set_column(batch.schema.get_field_index("city"), "city", pa.array(values))
            else:
                pooled[17, 4 * item.metadata.features.index("history")] += 0.1
        changed = msgspec.structs.replace(item, batch=batch, prediction=prediction, pooled=pooled)
        write_predictions(tampered, index, changed)
    with pytest.raises(JobFailedError, match=rf"row 120 \+ 17 .*first feature that differs: '{feature}'"):
        export(msgspec.structs.replace(finished.request, predictions_uri=tampered), tmp_path)


def test_a_table_with_a_dimension_of_its_own_is_exported_and_checked_feature_by_feature(tmp_path: Path) -> None:
    finished = build(tmp_path / "job", "wide_and_deep", city_dimension=7)
    export_folder = tmp_path / "export"
    export_folder.mkdir()
    result = export(finished.request, export_folder)
    assert result.checked_rows == ROWS and result.largest_difference < 1e-6
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    index = write_artifact(artifact, finished.job, "job-1", open_record(finished.request.record_uri))
    assert {table.name: table.dimension for table in index.tables} == {"goods": 5, "city": 8, "device": 5}
    tampered = str(tmp_path / "predictions")
    for index_of_file, item in enumerate(read_predictions(finished.request.predictions_uri)):
        prediction, pooled, features = item.prediction.copy(), item.pooled.copy(), item.metadata.features
        prediction[3, 0] += 0.01
        before = features[: features.index("city")]
        pooled[3, 5 * len(before) + 7] += 0.1  # the last number of the longer rows
        write_predictions(tampered, index_of_file, msgspec.structs.replace(item, prediction=prediction, pooled=pooled))
    with pytest.raises(JobFailedError, match=r"first feature that differs: 'city', its pooled embedding by 0\.1"):
        export(msgspec.structs.replace(finished.request, predictions_uri=tampered), export_folder)


def test_missing_predictions_fail_the_export(finished, tmp_path: Path) -> None:
    with pytest.raises(JobFailedError, match="left no predictions"):
        export(msgspec.structs.replace(finished.request, predictions_uri=str(tmp_path / "none")), tmp_path)


def test_a_row_that_cannot_be_scored_is_marked_with_the_reason_and_the_others_are_scored(
    finished, tmp_path: Path
) -> None:
    folder = tmp_path / "artifact"
    folder.mkdir()
    write_artifact(folder, finished.job, "job-1", open_record(finished.request.record_uri))
    model = PyfuncModel(Scorer(Artifact(folder)))
    frame = raw_frame(finished.job.spec.data, finished.raw.slice(0, 5))
    whole = model.predict(frame)
    assert not whole["is_bad"].any() and whole["reason"].isna().all()
    frame.loc[2, "device"] = "no hexadecimal"
    frame.loc[4, "price"] = np.inf
    frame.loc[4, "device"] = "neither"
    answer = model.predict(frame)
    assert answer["is_bad"].tolist() == [False, False, True, False, True]
    good = ~answer["is_bad"]
    np.testing.assert_array_equal(answer["probability"][good], whole["probability"][good])
    assert answer["probability"][~good].isna().all()
    assert "column 'device': found 'no hexadecimal'" in answer["reason"][2]
    assert "column 'price': found inf, expected a finite number" in answer["reason"][4]
    with pytest.raises(DataError, match="column 'city' is missing"):
        model.predict(frame.drop(columns="city"))


def test_dense_parameters_that_are_not_those_of_the_model_are_refused(finished, tmp_path: Path) -> None:
    written = write_artifact(tmp_path, finished.job, "job-1", open_record(finished.request.record_uri))
    first = written.dense[0]
    for dense, words in (
        (written.dense[1:], rf"\['{first.name}'\] are missing and \[\] are unknown"),
        (
            [*written.dense, msgspec.structs.replace(first, name="other.weight")],
            r"\[\] are missing and \['other.weight'\]",
        ),
    ):
        (tmp_path / INDEX_FILE).write_bytes(msgspec.json.encode(msgspec.structs.replace(written, dense=dense)))
        with pytest.raises(CheckpointError, match=words):
            Scorer(Artifact(tmp_path))


def test_an_artifact_contains_no_password(finished, tmp_path: Path) -> None:
    written = finished.job.model_dump(by_alias=True)
    written["spec"]["checkpoint"]["store"] = "s3://key:hunter2@minio:9000/records"
    record = open_record(finished.request.record_uri)
    record.uri = "s3://key:hunter2@minio:9000/records/tiny"
    write_artifact(tmp_path, TrainingJob.model_validate(written), "job-1", record)
    assert not [file.name for file in tmp_path.rglob("*.json") if "hunter2" in file.read_text()]
    assert Artifact(tmp_path).job.spec.checkpoint.store == "s3://key:***@minio:9000/records"
    assert Artifact(tmp_path).index.record_uri == "s3://key:***@minio:9000/records/tiny"


def test_a_record_of_changes_alone_is_refused(finished, tmp_path: Path) -> None:
    record = open_record(finished.request.record_uri)
    record.manifest = msgspec.structs.replace(record.manifest, base="000000000001-earlier")
    with pytest.raises(CheckpointError, match="only what has changed since 000000000001-earlier; export a full record"):
        write_artifact(tmp_path, finished.job, "job-1", record)


class UploadError(Exception):
    """As of a client of an artifact store, which is neither an OSError nor one of MLflow."""


@pytest.mark.parametrize("error", [OSError("connection lost"), UploadError("connection lost")], ids=["os", "store"])
def test_a_model_whose_files_did_not_all_arrive_is_marked_as_failed(
    finished, tracking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    uri, run_id = tracking
    begun: list[str] = []

    def breaks_off(client: mlflow.MlflowClient, model_id: str, folder: str) -> None:
        begun.append(model_id)
        raise error

    monkeypatch.setattr(mlflow.MlflowClient, "log_model_artifacts", breaks_off)
    with pytest.raises(HistoryError, match=f"could not be logged in run {run_id}: .*connection lost"):
        export(msgspec.structs.replace(finished.request, tracking_uri=uri, run_id=run_id), tmp_path)
    (model_id,) = begun
    assert mlflow.MlflowClient(uri).get_logged_model(model_id).status == LoggedModelStatus.FAILED


def test_a_model_that_is_exported_again_in_its_run_is_logged_once(finished, tracking, tmp_path: Path) -> None:
    uri, run_id = tracking
    client = mlflow.MlflowClient(uri)
    experiment_id = client.get_run(run_id).info.experiment_id
    other = client.create_logged_model(experiment_id, source_run_id=run_id, tags={TAG_RECORD: "file:///another"})
    client.finalize_logged_model(other.model_id, LoggedModelStatus.READY)
    request = msgspec.structs.replace(finished.request, tracking_uri=uri, run_id=run_id)
    first, second = (export(request, tmp_path).model_uri for _ in range(2))
    assert first == second != other.model_uri
    assert len(client.search_logged_models([experiment_id], f"source_run_id = '{run_id}'")) == 2


def test_a_model_that_a_killed_evaluator_has_left_half_uploaded_is_marked_as_failed_by_the_next_one(
    finished, tracking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, run_id = tracking
    client = mlflow.MlflowClient(uri)
    experiment_id = client.get_run(run_id).info.experiment_id
    left = client.create_logged_model(experiment_id, source_run_id=run_id).model_id
    ready = client.create_logged_model(experiment_id, source_run_id=run_id).model_id
    client.finalize_logged_model(ready, LoggedModelStatus.READY)
    of_other = client.create_logged_model(experiment_id, source_run_id=client.create_run(experiment_id).info.run_id)

    def breaks_off(client: mlflow.MlflowClient, model_id: str, folder: str) -> None:
        raise OSError("connection lost")

    monkeypatch.setattr(mlflow.MlflowClient, "log_model_artifacts", breaks_off)
    with pytest.raises(HistoryError, match="connection lost"):
        export(msgspec.structs.replace(finished.request, tracking_uri=uri, run_id=run_id), tmp_path)
    found = [client.get_logged_model(model_id).status for model_id in (left, ready, of_other.model_id)]
    assert found == [LoggedModelStatus.FAILED, LoggedModelStatus.READY, LoggedModelStatus.PENDING]


@pytest.fixture(scope="module")
def exported(finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an exported model."""
    folder = tmp_path_factory.mktemp("exported")
    export(msgspec.structs.replace(finished.request, artifact_uri=str(folder / "model")), folder)
    return folder / "model"


def requirements_of(model: Path) -> list[str]:
    return (model / "requirements.txt").read_text().splitlines()


def test_a_model_brings_the_package_that_it_needs(exported: Path, tmp_path: Path) -> None:
    wheels = {wheel.name.partition("-")[0]: wheel for wheel in (exported / "wheels").iterdir()}
    assert set(wheels) == {"elastrec", "fbgemm_gpu"}
    lines = requirements_of(exported)
    *_, conda = yaml.safe_load((exported / "conda.yaml").read_text())["dependencies"]
    assert conda == {"pip": lines}
    assert {line for line in lines if "wheels/" in line} == {f"wheels/{wheel.name}" for wheel in wheels.values()}
    assert not [line for line in lines if line.startswith(("elastrec", "fbgemm-gpu="))]
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    command = [sys.executable, "-m", "pip", "--python", str(environment), "install", "--quiet", "--no-deps"]
    subprocess.run([*command, "--no-index", *(str(wheel) for wheel in wheels.values())], cwd=exported, check=True)
    target = environment / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    installed = {file.relative_to(target) for file in target.rglob("*.py")}
    wanted = {Path("elastrec") / file.relative_to(ROOT) for room in ROOMS for file in sources(room)}
    assert installed == wanted
    (metadata,) = target.glob("elastrec-*.dist-info/METADATA")
    assert metadata.read_text() in [each.read_text("METADATA") for each in distributions(name="elastrec")]
    check = [sys.executable, "-m", "pip", "--python", str(environment), "list", "--format", "freeze"]
    listed = subprocess.run(check, capture_output=True, text=True, check=True).stdout.split()
    assert f"fbgemm_gpu=={version('fbgemm-gpu-cpu')}" in [line.replace("-", "_") for line in listed]


def test_a_models_requirements_are_the_locked_versions_of_all_that_the_package_needs(exported: Path) -> None:
    locked = dict(line.split("==") for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line)
    named = dict(line.split("==") for line in requirements_of(exported) if "==" in line)
    assert {name: locked.get(name) for name in named} == named
    # An installer that gets these has nothing to choose.
    shipped = {"elastrec", "fbgemm-gpu"}
    for name in ("elastrec", *named):
        for needed in map(Requirement, distribution(name).requires or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                found = canonicalize_name(needed.name)
                assert found in shipped or needed.specifier.contains(named[found]), f"{name} needs {needed}"
    environment = yaml.safe_load((exported / "python_env.yaml").read_text())
    assert environment["python"] == platform.python_version() and environment["dependencies"] == ["-r requirements.txt"]


def test_wheels_of_other_contents_have_other_names_and_equal_ones_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = write_wheel(tmp_path / "1"), write_wheel(tmp_path / "2")
    assert first.name == second.name and first.read_bytes() == second.read_bytes()
    monkeypatch.setattr(wheel_module, "SUB_PACKAGES", wheel_module.SUB_PACKAGES[1:])
    assert write_wheel(tmp_path / "3").name != first.name


@pytest.fixture(scope="module")
def text_log(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    """The rows of `raw_rows` as text, items of the history with names instead of numbers."""
    folder = tmp_path_factory.mktemp("text")
    rows = raw_rows(1, ROWS).to_pylist()
    lines = [
        ",".join(
            "" if value is None else "|".join(f"item {one}" for one in value) if isinstance(value, list) else str(value)
            for value in row.values()
        )
        for row in rows
    ]
    (folder / "log.csv").write_text("\n".join([",".join(rows[0]), *lines]) + "\n")
    return TrainingData.model_validate(
        {
            "path": str(folder / "log.csv"),
            "format": "csv",
            "partitioning": "none",
            "dense": [{"name": "price"}],
            "sparse": [
                {"name": "user"},
                {"name": "city", "encoding": "string"},
                {"name": "device", "encoding": "hexadecimal"},
                {"name": "history", "encoding": "string", "is_list": True},
            ],
        }
    )


def test_a_model_of_a_converted_log_scores_rows_as_the_log_had_them(
    text_log: TrainingData, tracking: tuple[str, str], tmp_path: Path
) -> None:
    converted = convert(text_log, str(tmp_path / "converted"), layout=ByRows(rows=ROWS)).data
    finished = build(tmp_path, data=converted)
    uri, run_id = tracking
    work = tmp_path / "work"
    work.mkdir()
    first = export(msgspec.structs.replace(finished.request, tracking_uri=uri, run_id=run_id), work)
    assert first.checked_rows == ROWS and first.largest_difference < 1e-6

    loaded = mlflow.pyfunc.load_model(first.model_uri)
    scorer = loaded.get_raw_model()
    ids = pq.read_table(next((tmp_path / "converted").rglob("*.parquet")))
    text = pa.csv.read_csv(
        text_log.path,
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(("city", "device", "history"), pa.string()), strings_can_be_null=True
        ),
    )
    from_ids, from_text = scorer.score(ids), scorer.score(text)
    assert not from_text.bad.any()
    assert from_text.batch == from_ids.batch
    np.testing.assert_array_equal(from_text.prediction, from_ids.prediction)
    assert len(np.unique(from_ids.prediction)) > ROWS // 2

    as_text = pd.read_csv(text_log.path, dtype=dict.fromkeys(("city", "device", "history"), str))
    as_lists = as_text.assign(history=as_text["history"].fillna("").str.split("|"))
    whole_prices = as_text.assign(price=3)
    for frame in (as_text, as_lists, raw_frame(converted, ids), raw_frame(converted, text)):
        np.testing.assert_allclose(loaded.predict(frame)["probability"], from_ids.prediction[:, 0], atol=1e-6)
    assert loaded.predict(whole_prices)["probability"].notna().all()
    refused = loaded.predict(as_text[:2].assign(device="no id"))
    assert refused["is_bad"].all() and "found 'no id', expected 1 to 16 hexadecimal digits" in refused["reason"][0]


def test_rows_that_training_skipped_are_neither_compared_nor_shown_as_an_example(
    text_log: TrainingData, tmp_path: Path
) -> None:
    header, *lines = Path(text_log.path).read_text().splitlines()
    fields = [line.split(",") for line in lines]
    fields[1][1] = "dear"  # among the rows of the example
    fields[150][2] = "no id"
    log = tmp_path / "log.csv"
    log.write_text("\n".join([header, *(",".join(row) for row in fields)]) + "\n")
    skipping = {"path": str(log), "bad_rows": {"policy": "skip", "at_most": 2}}
    finished = build(tmp_path, data=TrainingData.model_validate(text_log.model_dump(by_alias=True) | skipping))
    work = tmp_path / "work"
    work.mkdir()
    result = export(msgspec.structs.replace(finished.request, artifact_uri=str(tmp_path / "model")), work)
    assert result.checked_rows == ROWS - 2 and result.challenger is not None and result.challenger.samples == ROWS - 2
    example = mlflow.models.Model.load(str(tmp_path / "model")).load_input_example(str(tmp_path / "model"))
    assert len(example) == 5
    assert not mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(example)["is_bad"].any()


def test_a_model_with_a_transform_scores_rows_without_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counting_transform.py").write_text(
        "import pyarrow as pa\n"
        "def count(batch):\n"
        "    counts = pa.array([float(len(row)) for row in batch['history'].to_pylist()])\n"
        "    return pa.RecordBatch.from_arrays([*batch.columns, counts], names=[*batch.schema.names, 'count'])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    raw = raw_rows(1, ROWS)
    plain = parquet_log(tmp_path / "log", raw).model_dump(by_alias=True)
    dense = [{"name": "price"}, {"name": "count"}]
    data = TrainingData.model_validate(plain | {"transform": "counting_transform:count", "dense": dense})
    finished = build(tmp_path, data=data)
    work = tmp_path / "work"
    work.mkdir()
    result = export(msgspec.structs.replace(finished.request, artifact_uri=str(tmp_path / "model")), work)
    assert result.checked_rows == ROWS and result.challenger is not None and result.challenger.samples == ROWS
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    rows = raw.drop_columns(["label"]).to_pandas()
    assert model.predict(rows)["probability"].notna().all()
    empty = model.predict(rows[:0])
    assert list(empty) == ["probability", "is_bad", "reason"] and len(empty) == 0
