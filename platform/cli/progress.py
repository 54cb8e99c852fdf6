"""The progress line of a running job: one line per phase, rewritten in place on a terminal, otherwise printed now and
then."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics

PLAIN_LINE_EVERY_SECONDS = 5.0
_LONG_BAR, _SHORT_BAR = 20, 10
_REASON_CHARACTERS = 90
"""Of the reason for which a job waits, in a line on a terminal."""
_WITH_REASON = (
    Phase.PENDING, Phase.STARTING, Phase.RECOVERING, Phase.SAVING, Phase.EVALUATING, Phase.FAILED, Phase.UNKNOWN,
)  # fmt: skip
_EXPENDABLE = ("servers", "workers", "samples", "bar", "speed", "loss", "auc", "shards")


def progress_line(metrics: TrainingMetrics, width: int | None = None) -> str:
    """One line of text about a job at one moment.

    Args:
        width: of the terminal, in characters; the least important parts are left out until the line fits. None: no
        limit.
    """
    parts = _parts(metrics, None if width is None else _REASON_CHARACTERS)
    for name in _EXPENDABLE:
        if width is None or len("  ".join(parts.values())) <= width:
            break
        if name == "bar" and name in parts and len(parts[name]) > _SHORT_BAR + 2:
            parts[name] = _bar(metrics, _SHORT_BAR)
            if len("  ".join(parts.values())) <= width:
                break
        parts.pop(name, None)
    return "  ".join(parts.values())


def _parts(metrics: TrainingMetrics, reason_characters: int | None) -> dict[str, str]:
    """The parts of a line, from left to right."""
    parts = {"phase": f"{metrics.phase.value:<10}"}
    done, total = _shards(metrics)
    if total:
        parts["bar"] = _bar(metrics, _LONG_BAR)
        parts["shards"] = f"shards {done}/{total}"
    if metrics.samples_trained:
        parts["samples"] = f"samples {metrics.samples_trained:,}"
    if metrics.samples_per_second and metrics.phase is Phase.TRAINING:
        parts["speed"] = f"{metrics.samples_per_second:,.0f}/s"
    if metrics.loss is not None:
        parts["loss"] = f"loss {metrics.loss:.4f}"
    if metrics.auc is not None:
        parts["auc"] = f"{'AUC' if metrics.evaluated else 'train AUC'} {metrics.auc:.4f}"
    for role, word in ((Role.WORKER, "workers"), (Role.PARAMETER_SERVER, "servers")):
        pods = [pod for pod in metrics.pods if pod.role is role]
        if pods and not metrics.phase.is_final:
            up = sum(pod.state.lower() in ("ready", "running") for pod in pods)
            parts[word] = f"{word} {up}/{len(pods)}"
    if metrics.failed_saves:
        parts["saves"] = f"saves failed {metrics.failed_saves}"
    if metrics.reason and metrics.phase in _WITH_REASON:
        parts["reason"] = f"({metrics.reason.splitlines()[0][:reason_characters]})"
    return parts


def _shards(metrics: TrainingMetrics) -> tuple[int, int]:
    if metrics.phase is Phase.EVALUATING:
        return metrics.evaluation_shards_done, metrics.evaluation_shards_total
    return metrics.shards_done, metrics.shards_total


def _bar(metrics: TrainingMetrics, cells: int) -> str:
    done, total = _shards(metrics)
    filled = round(cells * done / total)
    return f"[{'█' * filled}{'·' * (cells - filled)}]"


class JobProgress:
    """Shows a job's progress on standard error; a context manager.

    Args:
        quiet: show nothing.
    """

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self._quiet = quiet
        self._console = console or Console(file=sys.stderr, highlight=False)
        self._terminal = self._console.is_terminal
        self._live: Live | None = None
        self._shown: TrainingMetrics | None = None
        self._last = ""
        self._printed = ""
        self._printed_at = 0.0

    def __enter__(self) -> JobProgress:
        return self

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        if self._quiet:
            return
        self._settle()
        self._console.print(Text(text), soft_wrap=True)

    def show(self, metrics: TrainingMetrics) -> None:
        """Shows the present state of the job; the last line of an ended phase stays."""
        if self._quiet:
            return
        before, self._shown = self._shown, metrics
        if before is not None and before.phase is not metrics.phase:
            # The phase ended between two observations: its last line shows the end, not the earlier observation. After
            # a rollback, and while the master does not answer, the figures are not those of its end.
            if (before.generation, before.shards_total) == (metrics.generation, metrics.shards_total):
                self._put(metrics.model_copy(update={"phase": before.phase, "reason": before.reason}))
            self._settle()
        self._put(metrics)

    def _put(self, metrics: TrainingMetrics) -> None:
        line = progress_line(metrics, self._console.width if self._terminal else None)
        if self._terminal:
            if self._live is None:
                self._live = Live(console=self._console, refresh_per_second=4, transient=False)
                self._live.start()
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"))
        elif line != self._last and time.monotonic() - self._printed_at >= PLAIN_LINE_EVERY_SECONDS:
            self._print(line)
            self._printed_at = time.monotonic()
        self._last = line

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)
        self._printed = line

    def _settle(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif self._last not in ("", self._printed):
            self._print(self._last)
        self._last = ""
        self._printed_at = 0.0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._settle()
