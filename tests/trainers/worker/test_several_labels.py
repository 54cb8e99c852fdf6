"""Workers with several labels, weights and custom losses, on real parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.platform.data.metrics.heads import HeadSketches
from elastrec.platform.data.reading.batches import targets_of
from elastrec.platform.transport.messages.directive import Mode
from elastrec.trainers.models import FeatureSchema, Head, Losses, Targets
from elastrec.trainers.models.parts import pooled_rows
from elastrec.trainers.worker.predictions import read_predictions
from tests.heads import predicted
from tests.trainers.worker.setting import ROWS, SHARD, one_after_the_other, reference, setting_fixture  # noqa: F401

LABELS = {"labels": [{"name": "label"}, {"name": "rating", "kind": "value"}]}


def trained(here: Any) -> None:
    """One worker trains all rows."""
    here.master.add_shards("train", ROWS, SHARD, seed=5, shuffle=True)
    here.start_worker()
    here.master.wait_for(lambda: len(here.master.done) == 4)
    assert not here.errors


def both_losses(result: Tensor, target_BT: Tensor) -> Tensor:
    """Of MMoE's outputs, as a job of LABELS trains them."""
    weight_B = target_BT[:, 2] if target_BT.shape[1] == 3 else torch.ones(len(target_BT))
    click = functional.binary_cross_entropy_with_logits(result[:, 0], target_BT[:, 0], reduction="none")
    return ((click + (result[:, 1] - target_BT[:, 1]) ** 2) * weight_B).mean()


@pytest.mark.parametrize("weight", [{}, {"weight": "share"}])
def test_a_job_of_two_labels_takes_the_steps_of_a_single_process(
    setting: Callable[..., Any],
    weight: Mapping[str, str],
) -> None:
    options = {"experts": 2, "expert_layer_sizes": [8], "tower_layer_sizes": [8]}
    here = setting(servers=2, architecture="mmoe", model_options=options, data={**LABELS, **weight})
    trained(here)
    here.finish()
    model, losses = reference(here, one_after_the_other(here), both_losses)
    windows = [beat.metrics for beat in here.master.heartbeats if beat.metrics.steps]
    assert sum(window.loss_sum for window in windows) / ROWS == pytest.approx(np.mean(losses), abs=1e-5)
    parts = [sum(window.losses[name] for window in windows) for name in ("label", "rating")]
    assert sum(parts) / ROWS == pytest.approx(np.mean(losses), abs=1e-5) and min(parts) > 0
    flat = np.concatenate([server.dense.values for server in here.servers])
    expected = torch.cat(
        [value.detach().reshape(-1) for name, value in model.named_parameters() if "embedding_bags" not in name]
    )
    np.testing.assert_allclose(flat, expected.numpy(), atol=2e-5)


def test_every_head_is_evaluated_against_its_label(setting: Callable[..., Any]) -> None:
    here = setting(mode="async", architecture="mmoe", data=LABELS)
    trained(here)
    here.master.done.clear()
    here.master.add_shards("evaluate", ROWS, 100)
    here.master.command(Mode.EVALUATE)
    here.master.wait_for(lambda: len(here.master.done) == 9)
    here.finish()
    kept = read_predictions(here.workers[0]._predictions_uri)
    together = HeadSketches()
    for item in kept:
        assert item.metadata.heads == ["label", "rating"]
        target_BT = targets_of(item.batch)
        (click,), (rating,) = (predicted(item.prediction[:, head], target_BT[:, head]) for head in (0, 1))
        together.update([click, rating._replace(head="rating", kind="value")])
    assert together == here.master.sketches
    assert together.heads["label"].rows == together.heads["rating"].rows == ROWS


class TwoPhases(nn.Module):
    """A memory tower, trained by one loss, and an adaptive tower on its frozen output, trained by another: two backward
    passes.

    Primus §5: the second loss has no gradient in the memory tower.
    """

    heads = (Head("adapted", label="label"), Head("memory", label="label"))

    def __init__(self, embedding_bag_collection: nn.Module, schema: FeatureSchema) -> None:
        super().__init__()
        self.embedding_bag_collection = embedding_bag_collection
        width = len(schema.sparse_names) * schema.embedding_dimension
        self.memory = nn.Linear(width, 1)
        self.adapt = nn.Linear(width + 1, 1)

    @staticmethod
    def row_dimension(embedding_dimension: int) -> int:
        return embedding_dimension

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> dict[str, Tensor]:
        first_BX = pooled_rows(self.embedding_bag_collection, sparse_features).flatten(1)
        memory_B = self.memory(first_BX).squeeze(1)
        # The second tower asks for the rows again: the same ones, of the same pull.
        second_BX = pooled_rows(self.embedding_bag_collection, sparse_features).flatten(1)
        adapted_B = self.adapt(torch.cat([second_BX, memory_B.detach().unsqueeze(1)], dim=1)).squeeze(1)
        return {"memory": memory_B, "adapted": adapted_B}

    def loss(self, outputs: Mapping[str, Tensor], targets: Targets) -> Losses:
        by_name = {
            name: functional.binary_cross_entropy_with_logits(outputs[name], targets.labels["label"])
            for name in ("memory", "adapted")
        }
        return Losses(by_name, list(by_name.values()))


def test_several_backward_passes_of_a_step_add_up(setting: Callable[..., Any]) -> None:
    here = setting(architecture=f"{__name__}:TwoPhases", servers=2)
    trained(here)
    here.finish()

    def both(result: Mapping[str, Tensor], target_BT: Tensor) -> Tensor:
        parts = [functional.binary_cross_entropy_with_logits(part, target_BT[:, 0]) for part in result.values()]
        return sum(parts)

    model, losses = reference(here, one_after_the_other(here), both)
    windows = [beat.metrics for beat in here.master.heartbeats if beat.metrics.steps]
    assert sum(window.loss_sum for window in windows) / ROWS == pytest.approx(np.mean(losses), abs=1e-5)
    flat = np.concatenate([server.dense.values for server in here.servers])
    expected = torch.cat(
        [value.detach().reshape(-1) for name, value in model.named_parameters() if "embedding_bags" not in name]
    )
    np.testing.assert_allclose(flat, expected.numpy(), atol=2e-5)
