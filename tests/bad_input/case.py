"""One wrong input: how it is made, and the required contents of its message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
ROWS = 8


def columns() -> dict[str, Any]:
    """One good day of the log that every case spoils in its own way."""
    return {
        "label": [0, 1] * (ROWS // 2),
        "I1": [float(i) for i in range(ROWS)],
        "C1": list(range(ROWS)),
        "C2": [f"{i:08x}" for i in range(ROWS)],
        "C3": [f"text {i}" for i in range(ROWS)],
        "history": [[i, i + 1] for i in range(ROWS)],
    }


@dataclass
class Place:
    """A folder with a good click log and a good job file.

    Attributes:
        content: contents of the job file, which cases change before it is written.
        environment: environment variables of the call, in addition to its home.
    """

    folder: Path
    content: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for day in DAYS:
            self.write(day)
        self.content = {
            "apiVersion": "elastrec.io/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "click"},
            "spec": {
                "model": {"architecture": "wide_and_deep", "embedding_dimension": 4},
                "data": {
                    "path": str(self.log),
                    "dense": [{"name": "I1"}],
                    "sparse": [
                        {"name": "C1"},
                        {"name": "C2", "encoding": "hexadecimal"},
                        {"name": "C3", "encoding": "string"},
                        {"name": "history", "is_list": True},
                    ],
                },
                "resources": {
                    "master": {"cores": 0.25, "memory": "256Mi"},
                    "worker": {"cores": 0.5, "memory": "1Gi"},
                    "parameter_server": {"cores": 0.25, "memory": "512Mi"},
                    "evaluator": {"cores": 0.5, "memory": "1Gi"},
                },
            },
        }

    @property
    def log(self) -> Path:
        return self.folder / "clicks"

    @property
    def job_file(self) -> Path:
        return self.folder / "job.yaml"

    def part(self, day: str) -> Path:
        """The one file of a day."""
        return self.log / f"day={day}" / "part-0.parquet"

    def write(self, day: str, **changed: Any) -> None:
        """A day with other values in some columns; None takes a column away."""
        content = {name: values for name, values in {**columns(), **changed}.items() if values is not None}
        self.part(day).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(content), self.part(day))

    def write_text(self, text: str | bytes, day: str = DAYS[0], name: str = "part-0.csv") -> None:
        """A day of text in place of Parquet."""
        self.part(day).unlink(missing_ok=True)
        body = text if isinstance(text, bytes) else text.encode()
        (self.part(day).parent / name).write_bytes(body)

    def set(self, path: str, value: Any) -> None:
        """Changes one field of the job file; Ellipsis removes it."""
        *parents, last = path.split(".")
        place: Any = self.content
        for key in parents:
            place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
        if value is ...:
            del place[last]
        elif isinstance(place, list):
            place[int(last)] = value
        else:
            place[last] = value

    def write_job(self) -> None:
        self.job_file.write_text(yaml.safe_dump(self.content, sort_keys=False))


Arguments = Callable[[Place], list[str]]


@dataclass(frozen=True)
class Case:
    """A wrong input.

    Attributes:
        group: heading in the docs.
        title: what is wrong, in words.
        prepare: makes the input wrong; returns the command line.
        says: texts that the message must contain: the field, the value, what is allowed, how to fix it.
    """

    group: str
    title: str
    prepare: Arguments
    says: tuple[str, ...]


def run(place: Place) -> list[str]:
    return ["run", str(place.job_file)]


def with_field(path: str, value: Any) -> Arguments:
    """`elastrec run` on a job file in which one field has another value."""

    def prepare(place: Place) -> list[str]:
        place.set(path, value)
        return run(place)

    return prepare


def with_files(spoil: Callable[[Place], object]) -> Arguments:
    """`elastrec run` after something was done to files or job."""

    def prepare(place: Place) -> list[str]:
        spoil(place)
        return run(place)

    return prepare


def call(*arguments: str) -> Arguments:
    """A command line; JOB stands for the good job file's path, CLICKS for the log, NEW for a path that is free."""

    def prepare(place: Place) -> list[str]:
        paths = {"JOB": str(place.job_file), "CLICKS": str(place.log), "NEW": str(place.folder / "new")}
        return [paths.get(argument, argument) for argument in arguments]

    return prepare


@contextmanager
def quiet_files(folder: Path) -> Iterator[list[str]]:
    """The names of files and folders that appeared or vanished below a folder, known at the end."""
    before = {str(path) for path in folder.rglob("*")}
    changed: list[str] = []
    yield changed
    after = {str(path) for path in folder.rglob("*")}
    changed += sorted(before ^ after)
