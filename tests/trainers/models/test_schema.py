"""The schema of a model's inputs, and the pooling of its tables."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from torchrec.modules.embedding_configs import PoolingType

from elastrec.platform.specs.job import TrainingJob
from elastrec.trainers.models import FeatureSchema, embedding_tables


def job(*sparse: dict[str, Any]) -> TrainingJob:
    return TrainingJob.model_validate(
        {
            "metadata": {"name": "clicks"},
            "spec": {"model": {"architecture": "dlrm"}, "data": {"path": "clicks", "sparse": sparse}},
        }
    )


def listed(name: str, pooling: str, table: str) -> dict[str, Any]:
    return {"name": name, "is_list": True, "pooling": pooling, "table": table}


def test_a_single_id_shares_a_table_with_lists_of_any_pooling() -> None:
    made = job({"name": "item", "table": "items"}, listed("seen", "mean", "items"), listed("liked", "sum", "likes"))
    assert [table.pooling for table in embedding_tables(made)] == [PoolingType.MEAN, PoolingType.SUM]
    assert embedding_tables(made)[0].feature_names == ["item", "seen"]
    with pytest.raises(ValidationError, match=r"the lists of the tables \['items'\] ask for different pooling"):
        job(listed("liked", "sum", "items"), listed("seen", "mean", "items"))


def test_a_list_that_attention_pools_is_not_pooled_by_servers() -> None:
    made = job({"name": "item"}, listed("seen", "attention", "item"), listed("liked", "mean", "item"))
    assert [table.pooling for table in embedding_tables(made)] == [PoolingType.MEAN]
    assert made.spec.sequence_features == ("seen",)
    assert FeatureSchema.from_job(made).attention == ("seen",)
    with pytest.raises(ValidationError, match="a meaning only with is_list: true"):
        job({"name": "item", "pooling": "attention"})
