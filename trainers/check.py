"""`python -m elastrec.trainers.check`: checks that the job's model can be built and computes the expected outputs.

Reads a TrainingJob as JSON from standard input, builds the model with tables of one row, and runs four generated
samples forward and backward. Exit code 0, or 1 with a JSON list of problems as the last line of standard output.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence

import msgspec

from elastrec.trainers.imports import postpone_torchrec, without_collector

with without_collector():
    postpone_torchrec()
    import torch
    from torch import Tensor, nn
    from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from elastrec.platform.specs.errors import FieldProblem, JobFailedError, SpecError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.trainers.embedding.dense import FlatParameters
from elastrec.trainers.models.heads import JobHeads
from elastrec.trainers.models.registry import build_model
from elastrec.trainers.models.schema import FeatureSchema, embedding_tables

_SAMPLES = 4
_MOST_NAMED = 3


def check(job: TrainingJob) -> list[FieldProblem]:
    """All problems of the job's model and feature transform; empty if both are usable."""
    problems = _check_transform(job)
    try:
        tables = _OneRowTables(embedding_tables(job), job.spec.sequence_features)
        model = build_model(
            job.spec.model,
            tables,
            FeatureSchema.from_job(job),
            seed=job.spec.training.seed,
        )
    except SpecError as error:
        return problems + error.problems
    except Exception:
        return [*problems, _own_fault(job, "a model that can be built")]
    try:
        FlatParameters(model)
        heads = JobHeads(model, job.spec.data)
    except SpecError as error:
        return problems + error.problems
    return problems + _check_gate(job, heads) + _check_step(job, model, heads, tables)


class _OneRowTables(nn.Module):
    """Embeddings for generated samples with the id 0: KeyedJaggedTensor to KeyedTensor, as in torchrec.

    It has the same further methods as `RemoteEmbeddingBagCollection` in a job.

    Args:
        sequences: features that the output leaves out, because the model asks for their `rows`.
    """

    def __init__(self, tables: list[EmbeddingBagConfig], sequences: Sequence[str]) -> None:
        super().__init__()
        self._tables = tables
        self._uses = [(number, table, name) for number, table in enumerate(tables) for name in table.feature_names]
        self._pooled = [use for use in self._uses if use[2] not in sequences]
        self._rows = nn.ParameterList(torch.empty(1, table.embedding_dim).uniform_(-1, 1) for table in tables)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        return self._tables

    def is_weighted(self) -> bool:
        return False

    @property
    def has_gradients(self) -> bool:
        """Whether a backward pass has reached rows."""
        return any(rows.grad is not None for rows in self._rows)

    def rows(self, features: KeyedJaggedTensor, name: str) -> Tensor:
        """One row for each id of a feature, `[L, D]`, not pooled."""
        number = next(number for number, _, feature in self._uses if feature == name)
        rows: Tensor = self._rows[number][features[name].values()]
        return rows

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        jagged = features.to_dict()
        pooled: list[Tensor] = []
        for number, table, name in self._pooled:
            mode = "mean" if table.pooling is PoolingType.MEAN else "sum"
            values, offsets = jagged[name].values(), jagged[name].offsets()
            pooled.append(
                nn.functional.embedding_bag(values, self._rows[number], offsets, mode=mode, include_last_offset=True)
            )
        return KeyedTensor(
            keys=[name for _, _, name in self._pooled],
            length_per_key=[table.embedding_dim for _, table, _ in self._pooled],
            values=torch.cat(pooled, dim=1) if pooled else torch.zeros(features.stride(), 0),
        )


def _check_gate(job: TrainingJob, heads: JobHeads) -> list[FieldProblem]:
    gate = job.spec.gate
    if gate.head is not None and gate.head not in heads.names:
        return [FieldProblem("spec.gate.head", repr(gate.head), f"an output of the model: {', '.join(heads.names)}")]
    kind = heads.kinds[heads.names.index(gate.head) if gate.head else 0]
    allowed = ("normalized_error",) if kind == "value" else ("auc", "normalized_entropy")
    if gate.metric not in allowed:
        judged = repr(gate.head or heads.names[0])
        return [
            FieldProblem("spec.gate.metric", repr(gate.metric), f"{' or '.join(allowed)} for {judged}, a {kind} label")
        ]
    return []


def _check_step(job: TrainingJob, model: torch.nn.Module, heads: JobHeads, tables: _OneRowTables) -> list[FieldProblem]:
    """Forward, loss and backward on generated samples."""

    def wrong(allowed: str) -> list[FieldProblem]:
        return [FieldProblem("spec.model.architecture", repr(job.spec.model.architecture), allowed)]

    before = {name: tensor.clone() for name, tensor in _untrained_state(model).items()}
    try:
        result = model(*_made_up_batch(job))
    except Exception:
        return [_own_fault(job, "a model whose forward works on the job's features")]
    after = _untrained_state(model)
    if changed := [name for name, tensor in before.items() if name in after and not torch.equal(tensor, after[name])]:
        # Each worker would have its own; neither records nor the exported model would have any.
        names = ", ".join(changed[:_MOST_NAMED]) + (", ..." if len(changed) > _MOST_NAMED else "")
        return wrong(
            f"a model whose forward changes no state: servers hold only trained parameters, not {names}; use LayerNorm "
            "instead of BatchNorm, or register the buffer with persistent=False if it can be computed again"
        )
    try:
        outputs = heads.outputs(result, _SAMPLES)
    except JobFailedError as error:
        if len(heads.names) > 1:
            return wrong(f"a model with an output for each label: {error}")
        found = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
        return wrong(f"a model whose forward returns one logit per sample: shape ({_SAMPLES},), not {found}")
    if not any(outputs[name].requires_grad for name in heads.names):
        return wrong("a model whose logits depend on its parameters")
    for name in heads.names:
        if not outputs[name].isfinite().all():
            shown = outputs[name].detach().flatten().tolist()
            return wrong(f"a model whose logits are finite for features that are all zero, not {shown}")
    try:
        losses = heads.losses(outputs, heads.targets(torch.zeros(_SAMPLES, len(job.spec.data.targets))))
        for number, loss in enumerate(losses.trained, start=1):
            loss.backward(retain_graph=number < len(losses.trained))
    except JobFailedError as error:
        return wrong(f"a model whose loss can be trained: {error}")
    except Exception:
        return [_own_fault(job, "a model whose loss works on the job's labels")]
    if not tables.has_gradients:
        return wrong("a model whose loss depends on its embedding_bag_collection")
    return []


def _untrained_state(model: nn.Module) -> dict[str, Tensor]:
    """Tensors of the model's state that are no parameters, such as the running means of BatchNorm, by name."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    state = model.state_dict()
    return {name: each for name, each in state.items() if name not in parameters and isinstance(each, Tensor)}


def _made_up_batch(job: TrainingJob) -> tuple[torch.Tensor, KeyedJaggedTensor]:
    features = [feature.name for feature in job.spec.data.sparse]
    count = len(features) * _SAMPLES
    sparse = KeyedJaggedTensor(
        keys=features,
        values=torch.zeros(count, dtype=torch.int64),
        lengths=torch.ones(count, dtype=torch.int32),
    )
    return torch.zeros(_SAMPLES, len(job.spec.data.dense)), sparse


def _check_transform(job: TrainingJob) -> list[FieldProblem]:
    path = job.spec.data.transform
    if path is None:
        return []
    module_name, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (Exception, SystemExit) as error:
        value = f"{path!r} ({type(error).__name__}: {error})"
        remedy = "install the package where the pods run or put it on PYTHONPATH"
        return [FieldProblem("spec.data.transform", value, "a function that can be imported by the pods", remedy)]
    if not callable(found):
        return [FieldProblem("spec.data.transform", f"{path!r} (a {type(found).__name__})", "a function")]
    return []


def _own_fault(job: TrainingJob, allowed: str) -> FieldProblem:
    value = f"{job.spec.model.architecture!r} with options {job.spec.model.options}"
    return FieldProblem("spec.model", value, allowed, traceback.format_exc(limit=-3))


def main() -> int:
    job = job_from_json(sys.stdin.read())
    problems = check(job)
    if problems:
        sys.stdout.write(msgspec.json.encode(problems).decode() + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Exits without torch's clean-up, which takes half a second, while the caller waits for the answer.
    os._exit(exit_code)
