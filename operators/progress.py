"""Progress lines of a running job and their timing, for the task's log and the demo's terminal."""

from __future__ import annotations

from dataclasses import dataclass, field

from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics


@dataclass
class Progress:
    """Decides when a line is due: at each change of phase, otherwise every `every_seconds`."""

    every_seconds: float
    _phase: Phase | None = field(default=None, init=False)
    _said: float = field(default=0.0, init=False)

    def is_due(self, metrics: TrainingMetrics, now: float) -> bool:
        """Whether a line is due at the time `now` (seconds, monotonic)."""
        if metrics.phase is self._phase and now - self._said < self.every_seconds:
            return False
        self._phase, self._said = metrics.phase, now
        return True


def progress_line(metrics: TrainingMetrics) -> str:
    """Phase, samples, samples/s, loss, and how many workers and servers are up."""
    parts = [metrics.phase.value]
    if metrics.samples_total:
        share = min(1.0, metrics.samples_trained / metrics.samples_total)
        parts.append(f"{metrics.samples_trained:,} of {metrics.samples_total:,} samples ({share:.0%})")
    if metrics.samples_per_second:
        parts.append(f"{metrics.samples_per_second:,.0f} samples/s")
    if metrics.loss is not None:
        parts.append(f"loss {metrics.loss:.4f}")
    if metrics.phase is Phase.EVALUATING and metrics.evaluation_shards_total:
        parts.append(f"{metrics.evaluation_shards_done} of {metrics.evaluation_shards_total} evaluation shards")
    if metrics.evaluated and metrics.auc is not None:
        parts.append(f"AUC {metrics.auc:.4f}")
    if metrics.evaluated and metrics.normalized_entropy is not None:
        parts.append(f"NE {metrics.normalized_entropy:.4f}")
    if not metrics.phase.is_final:
        workers, servers = up(metrics, Role.WORKER), up(metrics, Role.PARAMETER_SERVER)
        parts.append(f"{workers} workers and {servers} servers up")
    if metrics.reason:
        parts.append(metrics.reason.splitlines()[0])
    return " · ".join(parts)


def up(metrics: TrainingMetrics, role: Role) -> int:
    """The number of pods of a role that have registered with the master and are working."""
    return sum(pod.role is role and pod.state == "Running" for pod in metrics.pods)
