"""Stored results of benchmarks: one JSON file per benchmark in `benchmarks/results/`.

`python -m benchmarks NAME --save` stores its figures. Figures from another machine are added with the measured commit,
in the form that `--output json` prints:

python -m benchmarks.common.results storage.json --commit 5012c56 --date 2026-11-24

A stored figure is replaced when it is measured again; one that its benchmark no longer has is deleted from the file by
hand.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.common.names import benchmarks

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
INTERVAL = "95_%_interval"
"""The setting of a figure with the interval of a mean over seeds."""
_WRITTEN = ("benchmarks/results", "docs/figures.md")
"""What publishing figures changes: no code that is measured."""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The origin of a figure.

    Attributes:
        date: the day on which it was measured.
        commit: of the measured code, all 40 digits.
        others_cores: average number of cores of other processes during the measurement; None if not known.
        of_publication: whether date and commit are those of the figure's publication, because the measured code was not
            recorded.
    """

    date: datetime.date
    commit: str
    others_cores: float | None = None
    of_publication: bool = False


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One figure as `Figure.document` writes it, and its origin."""

    figure: str
    value: float
    unit: str
    goal: str | None
    met: bool | None
    simulated: bool
    settings: dict[str, Any]
    measured: Origin
    compared: bool = False

    @property
    def benchmark(self) -> str:
        return self.figure.partition(".")[0]


def load(folder: Path = RESULTS) -> dict[str, list[Result]]:
    """The results by benchmark.

    Raises:
        ValueError: a file that is not one of results, or has those of another benchmark.
    """
    results = {}
    for file in sorted(folder.glob("*.json")):
        try:
            results[file.stem] = msgspec.json.decode(file.read_bytes(), type=list[Result])
        except msgspec.DecodeError as error:
            raise ValueError(f"{file}: {error}; write it with python -m benchmarks {file.stem} --save") from None
        if foreign := [result.figure for result in results[file.stem] if result.benchmark != file.stem]:
            raise ValueError(f"{file}: {foreign[0]} is no figure of {file.stem}; move it to its benchmark's file")
    return results


def store(documents: Iterable[Mapping[str, Any]], measured: Origin, folder: Path = RESULTS) -> list[Path]:
    """Stores figures in the files of their benchmarks, replacing those of the same names.

    Raises:
        ValueError: a document that is not a figure's, or of no benchmark; nothing is stored then.
    """
    try:
        # Through JSON, as in the file, because settings may be tuples and values NumPy's.
        new = [
            msgspec.convert({**json.loads(json.dumps(document)), "measured": measured}, Result)
            for document in documents
        ]
    except (msgspec.ValidationError, TypeError) as error:
        raise ValueError(f"not figures as --output json prints them: {error}") from None
    if unknown := {result.benchmark for result in new} - benchmarks().keys():
        raise ValueError(f"no benchmark has the name {min(unknown)!r}; allowed: {', '.join(benchmarks())}")
    kept, files = load(folder), []
    for benchmark in dict.fromkeys(result.benchmark for result in new):
        by_figure = {
            result.figure: result for result in (*kept.get(benchmark, ()), *new) if result.benchmark == benchmark
        }
        lines = ",\n".join(msgspec.json.encode(result).decode() for result in by_figure.values())
        files.append(folder / f"{benchmark}.json")
        folder.mkdir(exist_ok=True)
        files[-1].write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return files


def full_commit(name: str, root: Path = ROOT) -> str:
    """The 40 digits of a commit of this repository.

    Raises:
        ValueError: there is no commit of that name.
    """
    done = _git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if done.returncode:
        raise ValueError(f"--commit {name}: no commit of this repository; allowed: what git rev-parse knows")
    return done.stdout.strip()


def measured_commit(root: Path = ROOT) -> str:
    """The commit of this working tree.

    Raises:
        ValueError: a tracked or new file differs from it, so that no commit has the code to measure.
    """
    left_out = [f":(exclude){path}" for path in _WRITTEN]
    changed = _git(root, "status", "--porcelain", "--", ".", *left_out).stdout.splitlines()
    if changed:
        raise ValueError(f"--save: {changed[0][3:]} is not committed; commit it, or move it away, and measure again")
    return full_commit("HEAD", root)


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)


def main(arguments: Sequence[str], folder: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="+", help="what `python -m benchmarks NAME --output json` printed")
    parser.add_argument("--commit", required=True, help="the code that was measured")
    parser.add_argument("--date", required=True, type=datetime.date.fromisoformat, help="when, YYYY-MM-DD")
    given = parser.parse_args(arguments)
    try:
        measured = Origin(given.date, full_commit(given.commit))
        documents = [document for file in given.file for document in msgspec.json.decode(file.read_bytes())]
        files = store(documents, measured, folder)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print("kept in", *(file.name for file in files))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
