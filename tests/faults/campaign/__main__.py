"""Random faults on real jobs: `python -m tests.faults.campaign --seed S --faults N [--output FILE.md]`.

Everything is drawn from the seed. An interrupted campaign continues when it is started again with the same `--state`;
`--only K` repeats one run. Several processes share one campaign with `--part 1/2`, `--part 2/2` and the same `--state`,
until they have inflicted N faults together; another call without `--part` writes the page. Exit code 0: all checks of
all runs passed.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog

from elastrec.platform.clusters.nodes import limits_enforced
from tests.faults.campaign.drill import drill
from tests.faults.campaign.injury import kinds_that_work
from tests.faults.campaign.outcome import Outcome
from tests.faults.campaign.plan import RUNS_PER_SHAPE, SHAPES, Kind, Run, Shape, draw_run
from tests.faults.campaign.report import Report, as_json, as_page, with_coverage
from tests.faults.campaign.site import Site, site_at

UNDISTURBED = -1
"""Number of the run without faults of a shape."""


class Notes:
    """The outcomes so far, one line of JSON each; the last one of a number counts."""

    def __init__(self, file: Path, seed: int) -> None:
        self._file, self._seed = file, seed
        self.undisturbed: dict[str, float] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.look()

    def look(self) -> None:
        """Takes what is there now: other processes may have added to it."""
        for line in self._file.read_text().splitlines() if self._file.exists() else ():
            self._take(msgspec.json.decode(line, type=Outcome))

    def add(self, outcome: Outcome) -> None:
        with self._file.open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(outcome) + b"\n")  # a line at once, whoever adds one beside
        self._take(outcome)

    def _take(self, outcome: Outcome) -> None:
        if outcome.number == UNDISTURBED:
            if not outcome.problems:
                self.undisturbed[outcome.shape] = outcome.auc
        elif outcome.seed == self._seed:
            self.outcomes[outcome.number] = outcome

    @property
    def faults(self) -> int:
        return sum(len(outcome.faults) for outcome in self.outcomes.values())


def campaign(site: Site, seed: int, numbers: Iterator[int], notes: Notes, evidence: Path, faults: int) -> Report:
    """Executes the runs with these numbers until enough faults were inflicted.

    Args:
        evidence: folder for logs and journals of runs with problems.
    """
    kinds = kinds_that_work(limits_enforced(site.cluster.nodes()))
    for number in numbers:
        notes.look()
        if notes.faults >= faults:
            break
        run = draw_run(seed, number, kinds)
        outcome = drill(site, run, _undisturbed(site, run.shape, notes, evidence), evidence)
        notes.add(outcome)
        _print(outcome)
    return Report(
        seed=seed,
        outcomes=[notes.outcomes[number] for number in sorted(notes.outcomes)],
        undisturbed=notes.undisturbed,
        left_out=[kind for kind in Kind if kind not in kinds],
    )


def _undisturbed(site: Site, shape: Shape, notes: Notes, evidence: Path) -> float:
    if str(shape) not in notes.undisturbed:
        outcome = drill(site, Run(0, UNDISTURBED, shape, ()), None, evidence)
        notes.add(outcome)
        assert not outcome.problems, f"without any fault: {outcome.problems}; see {evidence}"
    return notes.undisturbed[str(shape)]


def _print(outcome: Outcome) -> None:
    print(
        f"run {outcome.number} of seed {outcome.seed}: {outcome.shape}; {len(outcome.faults)} faults, "
        f"{outcome.generations} rollbacks, {outcome.lost} lost, {outcome.repeated} repeated, "
        f"AUC {outcome.auc:.5f}, {outcome.seconds:.0f} s: {'; '.join(outcome.problems) or 'everything held'}",
        flush=True,
    )


@contextmanager
def _folder(state: Path | None) -> Iterator[Path]:
    if state is not None:
        state.mkdir(parents=True, exist_ok=True)
        yield state.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        yield Path(folder)


def _quiet() -> None:
    # The jobs' own steps log every decision; here the outcome of each run is news enough.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("torch").setLevel(logging.ERROR)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--faults", type=int, default=300, help="make runs until so many were inflicted")
    parser.add_argument("--only", type=int, metavar="K", help="make run K, whether it was made or not")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="I/N", help="of the runs; needs --state")
    parser.add_argument("--state", type=Path, help="folder that keeps the outcomes; a campaign goes on from there")
    parser.add_argument("--output", type=Path, help="FILE.md or FILE.json")
    parser.add_argument("--coverage", type=Path, help="FILE.md: only renew its table of where each fault is tried")
    arguments = parser.parse_args()
    if arguments.coverage is not None:
        arguments.coverage.write_text(with_coverage(arguments.coverage.read_text()))
        return 0
    if arguments.seed is None:
        parser.error("--seed: a number is needed")
    if arguments.part[1] > 1 and arguments.state is None:
        parser.error("--part: needs the --state that all parts have in common")
    if arguments.output and arguments.output.suffix not in (".md", ".json"):
        parser.error(f"--output {arguments.output}: a file .md or .json is allowed")
    _quiet()
    output = arguments.output.absolute() if arguments.output else None
    with _folder(arguments.state) as folder:
        notes = Notes(folder / "outcomes.jsonl", arguments.seed)
        numbers = _numbers(notes, *arguments.part) if arguments.only is None else iter([arguments.only])
        # MLflow and others that drop files do it there.
        os.chdir(folder)
        with site_at(folder / f"home-{arguments.part[0]}") as site:
            limit = arguments.faults if arguments.only is None else sys.maxsize
            report = campaign(site, arguments.seed, numbers, notes, folder / "evidence", limit)
    if output is not None:
        output.write_text(as_page(report) if output.suffix == ".md" else as_json(report))
    else:
        print(as_page(report))
    return 1 if report.failed else 0


def _numbers(notes: Notes, part: int, parts: int) -> Iterator[int]:
    """Of the runs that were not made; parts have shapes of their own, each of which needs its undisturbed run once."""
    for number in itertools.count():
        if number not in notes.outcomes and number // RUNS_PER_SHAPE % parts == part - 1:
            yield number


def _part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts) <= len(SHAPES)):
        raise argparse.ArgumentTypeError(f"{text!r}: I/N is allowed, with I from 1 to N and N up to {len(SHAPES)}")
    return int(part), int(parts)


if __name__ == "__main__":
    sys.exit(main())
