"""Options and arguments that several commands share."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
import msgspec
import yaml
from rich.console import Console

from elastrec.platform.clusters.local.absent import AbsentLauncher
from elastrec.platform.jobs.surroundings import Platform, home_folder
from elastrec.platform.jobs.types import Interval
from elastrec.platform.specs.errors import MISSING, ElastrecError, FieldProblem, SpecError
from elastrec.platform.specs.text.loading import parse_value
from elastrec.platform.specs.text.whole_file import write_whole

_WIDE_COLUMNS = 500
Function = TypeVar("Function", bound=Callable[..., Any])


class OutputFile(click.Path):
    """A file that a command writes at its end; what cannot be written is refused before the command's work."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        path = str(super().convert(value, param, ctx))
        folder = Path(path).parent
        if not folder.is_dir():
            self.fail(f"{str(folder)!r} is not a folder; create it, or name another file", param, ctx)
        if not os.access(folder, os.W_OK):
            self.fail(f"the folder {str(folder)!r} cannot be written; name another file", param, ctx)
        return path


def write_output(path: str, content: bytes, what: str) -> None:
    """Writes a file as a whole: if the disk is full, an earlier file stays, and no part of the new one.

    Raises:
        ElastrecError: it cannot be written; the message names the path and `what`.
    """
    target = Path(path).resolve()
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(content)  # a pipe or a device
            return
        write_whole(target, content)
    except OSError as error:
        raise ElastrecError(f"{path}: {what} cannot be written: {error.strerror or error}") from error


class NotBlank(click.types.StringParamType):
    """Text; a blank one is refused: as the value of a variable that was not set, it would select another job, or a
    folder that nobody named."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text."""
        text = str(super().convert(value, param, ctx))
        if not text.strip():
            self.fail(f"{text!r} is blank", param, ctx)
        return text


class FiniteRange(click.FloatRange):
    """Numbers without `nan` and `inf`, which no bound of a FloatRange excludes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number", param, ctx)
        return number


def output_option(function: Function) -> Function:
    """`--output text|json`."""
    return click.option(
        "--output",
        "-o",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Format of the result.",
    )(function)


class Days(NamedTuple):
    """The options of a data interval, as they were given; None: not given."""

    since: str | None = None
    until: str | None = None
    evaluate_from: str | None = None
    evaluate_until: str | None = None

    @property
    def options(self) -> list[tuple[str, str]]:
        """Name and value of each option that was given."""
        names = ("--from", "--until", "--evaluate-from", "--evaluate-until")
        return [(name, text) for name, text in zip(names, self, strict=True) if text is not None]


def job_options(function: Callable[..., None]) -> Callable[..., None]:
    """FILE, `--set PATH=VALUE` and the data interval, as the arguments `file`, `overrides` and `days`."""

    @functools.wraps(function)
    def with_days(**arguments: Any) -> None:
        days = Days(*(arguments.pop(name) for name in Days._fields))
        function(**arguments, days=days)

    command: Callable[..., None] = with_days
    for option in (
        click.option(
            "--evaluate-until", metavar="DATE",
            help="End of the partitions to evaluate on; default: one day after their start.",
        ),
        click.option(
            "--evaluate-from", metavar="DATE",
            help="Start of the partitions to evaluate on, if the one at --until has no rows. Default: --until.",
        ),
        click.option(
            "--until", metavar="DATE",
            help="End of the partitions to train on, exclusive (ISO 8601, in the log's time zone).",
        ),
        click.option(
            "--from", "since", metavar="DATE",
            help="Start of the partitions to train on. Default: all but the newest, which is used for evaluation.",
        ),
        click.option(
            "--set", "overrides", multiple=True, metavar="PATH=VALUE",
            help="Override one field, for example --set spec.training.batch_size=256. Repeatable.",
        ),
        click.argument("file", type=click.Path(dir_okay=False)),
    ):  # fmt: skip
        command = option(command)
    return command


def platform_to_look() -> Platform:
    """The platform for a command that starts no process; prints a message if no node agent runs."""
    platform = Platform.for_looking()
    if isinstance(platform.launcher, AbsentLauncher):
        click.echo(f"no node agent runs for {home_folder()}, and none is started", err=True)
    return platform


def parse_overrides(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Values by path; the value is read as YAML.

    Raises:
        SpecError: a pair without `=`, or a value that is not YAML.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        path, sign, text = pair.partition("=")
        try:
            if not sign or not path:
                raise ValueError
            values[path] = parse_value(text)
        except SpecError as error:
            problems = [replace(problem, path=f"--set {path}") for problem in error.problems]
            raise SpecError(problems, "the command line") from None
        except (ValueError, yaml.YAMLError):
            problem = FieldProblem("--set", repr(pair), "PATH=VALUE", "for example spec.training.batch_size=256")
            raise SpecError([problem], "the command line") from None
    return values


def parse_interval(days: Days) -> Interval | None:
    """The interval, or None if no option was given.

    Raises:
        SpecError: an invalid date, or another option without `--from`.
    """
    dates = {option: _date(option, text) for option, text in days.options}
    if days.since is None:
        if dates:
            problem = FieldProblem("--from", MISSING, "a date", f"give --from together with {next(iter(dates))}")
            raise SpecError([problem], "the command line")
        return None
    return Interval(
        dates["--from"],
        dates.get("--until", ""),
        dates.get("--evaluate-until", ""),
        dates.get("--evaluate-from", ""),
    )


def _date(option: str, text: str) -> str:
    try:
        # Empty text, as of an unset variable of a script, must not select the default.
        return datetime.fromisoformat(text).isoformat()
    except ValueError:
        problem = FieldProblem(option, repr(text), "an ISO 8601 date such as 2026-01-31 or 2026-01-31T07:00")
        raise SpecError([problem], "the command line") from None


def wide_console() -> Console:
    """A console for tables with many columns: the terminal wraps long lines, and no cell is truncated."""
    return Console(width=_WIDE_COLUMNS)


def echo_json(value: Any) -> None:
    """One JSON object (or list) on standard output."""
    click.echo(msgspec.json.encode(value).decode())
