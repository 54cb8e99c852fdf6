"""A small hand-made finished job: Parquet rows, a record of two parts, and the predictions of its trainer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.checkpoints import PartWriter, answer, commit_record, new_record_uri, predictions_folder
from elastrec.platform.data.manifest import build_manifest, read_manifest
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.data import DenseFeature, FileFormat, Partitioning, SparseFeature, TrainingData
from elastrec.platform.specs.job import CheckpointSpec, JobSpec, Metadata, ModelSpec, TableSpec, TrainingJob
from elastrec.platform.transport.messages.export import ExportRequest
from elastrec.trainers.models import FeatureSchema, JobHeads, build_model, embedding_tables
from elastrec.trainers.worker.inputs import inputs_of
from elastrec.trainers.worker.predictions import Predictions, PredictionsMetadata, write_predictions
from tests.checkpoints.writing import write_bucket
from tests.manifests import write_manifest
from tests.suite.installed import parsed_once  # noqa: F401 (for all tests of the room)
from tests.suite.migrated import migrated_once  # noqa: F401 (for all tests of the room)

ROWS, SHARD = 300, 120


def raw_rows(seed: int, rows: int) -> pa.Table:
    generator = np.random.default_rng(seed)
    price = generator.normal(5, 3, rows)
    return pa.table(
        {
            "label": pa.array(generator.integers(0, 2, rows), pa.int64()),
            "price": pa.array(price, mask=generator.random(rows) < 0.2),
            "user": pa.array(generator.integers(0, 40, rows), pa.int64(), mask=generator.random(rows) < 0.1),
            "city": pa.array([f"c{i}" if i else None for i in generator.integers(0, 9, rows)], pa.string()),
            "device": pa.array([f"{i:08x}" for i in generator.integers(0, 2**31, 7)[generator.integers(0, 7, rows)]]),
            "history": pa.array([list(generator.integers(0, 60, n)) for n in generator.integers(0, 4, rows)]),
        }
    )


@dataclass
class FinishedJob:
    job: TrainingJob
    request: ExportRequest
    manifest_uri: str
    raw: pa.Table


class MappedCollection(EmbeddingBagCollection):
    """torchrec's own collection over a dictionary of ids; what is not in it counts as zero."""

    ids: dict[str, dict[int, int]]

    def forward(self, features: KeyedJaggedTensor):
        tables = {name: table.name for table in self.embedding_bag_configs() for name in table.feature_names}
        values = [
            self.ids[tables[key]].get(int(value), len(self.ids[tables[key]]))
            for key in features.keys()  # noqa: SIM118 (no mapping)
            for value in features[key].values()
        ]
        return super().forward(
            KeyedJaggedTensor(keys=features.keys(), values=torch.tensor(values), lengths=features.lengths())
        )


def build(
    folder: Path,
    architecture: str = "dlrm",
    name: str = "tiny",
    data: TrainingData | None = None,
    city_dimension: int | None = None,
) -> FinishedJob:
    """A finished job on `data`, which has ROWS rows and the features of `raw_rows`; default: Parquet of those rows."""
    raw = raw_rows(1, ROWS)
    data = data or parquet_log(folder, raw)
    job = TrainingJob(
        metadata=Metadata(name=name),
        spec=JobSpec(
            model=ModelSpec(architecture=architecture, embedding_dimension=4),
            data=data,
            tables={"city": TableSpec(hash_size=5, dimension=city_dimension)},
            checkpoint=CheckpointSpec(store=str(folder / "store")),
        ),
    )
    manifest_uri = str(folder / "evaluation.json")
    write_manifest(build_manifest(data), manifest_uri)
    record, collection, model = trained(job, folder)
    predictions_uri = predictions_folder(job.spec.checkpoint.store, name, "job-1")
    predict(job, manifest_uri, predictions_uri, collection, model)
    request = ExportRequest(
        job_json=job.model_dump_json(by_alias=True),
        job_id="job-1",
        store_uri=job.spec.checkpoint.store,
        record_uri=record,
        predictions_uri=predictions_uri,
        evaluation_manifest_uri=manifest_uri,
    )
    return FinishedJob(job, request, manifest_uri, raw)


def parquet_log(folder: Path, raw: pa.Table) -> TrainingData:
    data_folder = folder / "data"
    data_folder.mkdir(parents=True)
    pq.write_table(raw, data_folder / "part-0.parquet", row_group_size=70)
    return TrainingData(
        path=str(data_folder),
        format=FileFormat.PARQUET,
        partitioning=Partitioning.NONE,
        dense=(DenseFeature(name="price"),),
        sparse=(
            SparseFeature(name="user", table="goods", pooling="mean"),
            SparseFeature(name="city", encoding="string"),
            SparseFeature(name="device", encoding="hexadecimal"),
            SparseFeature(name="history", table="goods", pooling="mean", is_list=True),
        ),
    )


def trained(job: TrainingJob, folder: Path) -> tuple[str, MappedCollection, torch.nn.Module]:
    generator = np.random.default_rng(7)
    reader = ShardReader(job.spec.data, build_manifest(job.spec.data), hash_sizes={"city": 5})
    batches = list(reader.read(0, ROWS, seed=0, shuffle=False, batch_size=ROWS))
    jagged = inputs_of(batches[0]).sparse
    tables = embedding_tables(job)
    rows: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for table in tables:
        ids = np.unique(np.concatenate([jagged[name].values().numpy() for name in table.feature_names]))
        ids = generator.permutation(ids)[: max(1, len(ids) * 3 // 4)]  # some were never trained
        rows[table.name] = ids, generator.normal(0, 1, (len(ids), table.embedding_dim)).astype(np.float32)
        table.num_embeddings = len(ids) + 1
    collection = MappedCollection(tables=tables)
    collection.ids = {name: {int(key): row for row, key in enumerate(ids)} for name, (ids, _) in rows.items()}
    for name, (ids, values) in rows.items():
        weight = collection.embedding_bags[name].weight
        weight.data[: len(ids)] = torch.from_numpy(values)
        weight.data[len(ids)] = 0
    model = build_model(job.spec.model, collection, FeatureSchema.from_job(job), seed=3).eval()
    dense = {key: value for key, value in model.named_parameters() if not key.startswith("embedding_bag_collection.")}

    uri = new_record_uri(job.spec.checkpoint.store, job.metadata.name, "job-1", 1)
    manifests = []
    for part in range(2):
        elements = sum(value.numel() for value in dense.values())
        dense_range = (0, elements // 2) if part == 0 else (elements // 2, elements)
        buckets = range(part, job.spec.resources.virtual_buckets, 2)
        groups = [answer(list(rows), buckets)]
        with PartWriter(uri, f"server-{part}", groups=groups, dense_ranges=[dense_range]) as writer:
            for number, (ids, values) in enumerate(rows.values()):
                for bucket in range(part, 6, 2):
                    mine = ids % 6 == bucket
                    write_bucket(writer, bucket, number, {"ids": ids[mine], "values": values[mine]})
            for key, value in dense.items():
                flat = value.detach().numpy().reshape(-1)
                half = len(flat) // 2
                start, end = (0, half) if part == 0 else (half, len(flat))
                if start < end:
                    writer.write_dense(key, tuple(value.shape), start, {"value": flat[start:end]})
            manifests.append(writer.finish())
    commit_record(uri, manifests, b"{}", job=job, job_id="job-1", kind="final", step=1, generation=0)
    return uri, collection, model


def predict(job: TrainingJob, manifest_uri: str, folder_uri: str, collection, model) -> None:
    reader = ShardReader(job.spec.data, read_manifest(manifest_uri), hash_sizes={"city": 5})
    heads = JobHeads(model, job.spec.data)
    for index, start in enumerate(range(0, ROWS, SHARD)):
        length = min(SHARD, ROWS - start)
        (batch,) = reader.read(start, length, seed=0, shuffle=False, batch_size=SHARD)
        inputs = inputs_of(batch)
        with torch.no_grad():
            result = model(dense_features=inputs.dense_BI, sparse_features=inputs.sparse)
            pooled = collection(inputs.sparse)
        write_predictions(
            folder_uri,
            index,
            Predictions(
                metadata=PredictionsMetadata(
                    start=start, length=length, features=list(pooled.keys()), heads=list(heads.names)
                ),
                batch=batch,
                prediction=heads.predictions(heads.outputs(result, batch.num_rows)).numpy(),
                pooled=pooled.values().numpy(),
            ),
        )


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedJob:
    return build(tmp_path_factory.mktemp("finished"))
