"""The inputs and outputs of tasks, as OpenLineage data sets.

Only the provider `apache-airflow-providers-openlineage` calls this module; without it, the module is not imported.
Names of data sets follow OpenLineage's rules for each store. A log is one data set, and the days of a task are its
subset, so that the graph connects the days of a job; records and versions of a model are data sets with versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from elastrec.platform.specs.text.uris import without_credentials

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset

    from elastrec.platform.jobs import Prepared, Registered
    from elastrec.platform.jobs.starting.clustering import Clustered

_OBJECT_STORES = frozenset({"s3", "gs", "abfs", "abfss"})
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


def name_of(uri: str) -> tuple[str, str]:
    """(namespace, name) of a folder or file; credentials in the URI are left out.

    `s3://bucket/clicks` is (`s3://bucket`, `clicks`), `hdfs://nn:8020/clicks` (`hdfs://nn:8020`, `/clicks`), and a path
    (`file`, `/data/clicks`). See https://openlineage.io/docs/spec/naming.
    """
    parts = urlsplit(without_credentials(uri))
    scheme = _ALIASES.get(parts.scheme, parts.scheme)
    path = parts.path.rstrip("/") or "/"
    if scheme in ("", "file"):
        return "file", path
    return f"{scheme}://{parts.netloc}", path.lstrip("/") if scheme in _OBJECT_STORES else path


def training_rows(prepared: Prepared) -> InputDataset:
    """The log, with the days and the number of rows for training."""
    path, _ = _paths(prepared)
    return _log(path, prepared.interval.start, prepared.interval.end, prepared.training_rows)


def evaluation_rows(prepared: Prepared) -> InputDataset:
    """The log, or the separate evaluation log of the job, with the days and rows for evaluation."""
    _, path = _paths(prepared)
    interval = prepared.interval
    return _log(path, interval.evaluation_begin, interval.evaluation_end, prepared.evaluation_rows)


def record_read(uri: str) -> InputDataset:
    """The checkpoint record with which a job began, or from which a model was exported."""
    from openlineage.client.event_v2 import InputDataset

    namespace, name = name_of(uri)
    return InputDataset(namespace, name)


def record_written(uri: str, rows: int) -> OutputDataset:
    """The record with which a job ended.

    Args:
        rows: samples trained.
    """
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import output_statistics_output_dataset

    namespace, name = name_of(uri)
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=rows)
    return OutputDataset(namespace, name, outputFacets={"outputStatistics": statistics})


def model(registered: Registered, tracking_uri: str) -> OutputDataset:
    """A version of a registered model."""
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import dataset_type_dataset, dataset_version_dataset

    facets = {
        "version": dataset_version_dataset.DatasetVersionDatasetFacet(registered.version),
        "datasetType": dataset_type_dataset.DatasetTypeDatasetFacet("MODEL"),
    }
    return OutputDataset(without_credentials(tracking_uri), f"models/{registered.name}", facets=facets)


def clustered(source: str, result: Clustered) -> OperatorLineage[Any, Any]:
    """A partition of a log, and the same partition clustered by session."""
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import input_statistics_input_dataset, output_statistics_output_dataset

    read = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
        rowCount=result.rows, size=result.source_bytes
    )
    written = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=result.rows, size=result.bytes
    )
    return lineage(
        [InputDataset(*name_of(source), inputFacets={"inputStatistics": read})],
        [OutputDataset(*name_of(result.path), outputFacets={"outputStatistics": written})],
    )


def lineage(inputs: list[InputDataset], outputs: list[OutputDataset]) -> OperatorLineage[Any, Any]:
    """The result of a task's lineage method for the provider."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    return OperatorLineage(inputs=inputs, outputs=outputs)


def _paths(prepared: Prepared) -> tuple[str, str]:
    """The paths of the rows for training and for evaluation."""
    from elastrec.platform.specs.text.loading import job_from_json

    data = job_from_json(prepared.job_json).spec.data
    return data.path, data.evaluation_path or data.path


def _log(path: str, start: str, end: str, rows: int) -> InputDataset:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import base_subset_dataset, input_statistics_input_dataset

    facets: dict[str, Any] = {
        "inputStatistics": input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=rows)
    }
    if start:
        # An interval in ISO 8601.
        days = base_subset_dataset.Partition(dimensions={"start": start, "end": end}, identifier=f"{start}/{end}")
        condition = base_subset_dataset.PartitionSubsetCondition(partitions=[days])
        facets["subset"] = base_subset_dataset.InputSubsetInputDatasetFacet(inputCondition=condition)
    namespace, name = name_of(path)
    return InputDataset(namespace, name, inputFacets=facets)
