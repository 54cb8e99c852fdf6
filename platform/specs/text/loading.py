"""Job files in and out: YAML text to checked specs, every problem at once, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.text.problems import problem_of
from elastrec.platform.specs.text.written_size import MAXIMUM_CHARACTERS, oversized_node, oversized_value

AnySpec = TypeVar("AnySpec", bound=Spec)


def load_job(source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> TrainingJob:
    """A job from a file's path, from YAML text or from a mapping.

    Args:
        source: a `Path` or a one-line text is a file; text with a line break is YAML itself.
        overrides: values by dotted path, for example `{"spec.training.batch_size": 256}`.

    Raises:
        SpecError: the file cannot be read, is no YAML, or fields are wrong; all problems are named.
    """
    content, name = _read(source)
    for path, value in (overrides or {}).items():
        _check_size(f"override {path}", value, "the overrides")
        _override(content, path, value)
    return validate(TrainingJob, content, name, "job")


def validate(kind: type[AnySpec], content: Any, source: str = "", whole: str = "") -> AnySpec:
    """A checked spec.

    Args:
        whole: stands for the path of a problem that belongs to no field.

    Raises:
        SpecError: with every problem, its path, the value and what is allowed.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise SpecError([problem_of(kind, content, detail, whole) for detail in error.errors()], source) from None


def dump_job(job: TrainingJob) -> str:
    """YAML text from which `load_job` makes an equal job."""
    return yaml.safe_dump(job.model_dump(mode="json", by_alias=True, exclude_none=True), sort_keys=False)


def job_from_json(text: str | bytes) -> TrainingJob:
    """The job of a text made by `model_dump_json(by_alias=True)`.

    Raises:
        SpecError: the text is no such job.
    """
    try:
        return TrainingJob.model_validate_json(text)
    except ValidationError as error:
        raise SpecError([problem_of(TrainingJob, None, detail, "job") for detail in error.errors()]) from None


def job_to_json(job: TrainingJob) -> str:
    """JSON with every field, the inverse of `job_from_json`."""
    return job.model_dump_json(by_alias=True)


def _read(source: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    if isinstance(source, Mapping):
        _check_size("job", source, "the inline job")
        return _copy(source), "the inline job"
    name = "the inline job"
    text = str(source)
    if isinstance(source, Path) or "\n" not in source:
        name = text
        text = read_text(source)
    return parse_mapping(text, name), name


def read_text(
    file: str | Path, allowed: str = "a YAML file in UTF-8", *, encoding: str = "utf-8", newline: str | None = None
) -> str:
    """The text of a file that the user has named.

    Args:
        allowed: what it has to be, for the message.
        newline: as in `open`.

    Raises:
        SpecError: it cannot be read, or has another encoding.
    """
    try:
        with Path(file).open(encoding=encoding, newline=newline) as opened:
            return opened.read()
    except (OSError, UnicodeDecodeError) as error:
        # The text of an OSError repeats the path.
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        problem = FieldProblem("file", f"a path that cannot be read ({reason})", allowed, "check the path")
        raise SpecError([problem], str(file)) from None


class _OnceLoader(yaml.SafeLoader):
    """Refuses values that are too large, duplicate keys in a mapping, of which YAML itself would use the last one, and
    dates and numbers that do not exist."""

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        oversized = None if node is None else oversized_node(node)
        if oversized is not None:
            part, characters = oversized
            raise _too_large("file", f"the value in line {part.start_mark.line + 1}", characters)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:
            # PyYAML's own constructors fail in these ways: 2026-02-30 has the form of a date, and is none.
            line, text = node.start_mark.line + 1, str(node.value)[:80]
            raise yaml.constructor.ConstructorError(
                None, None, f"the value {text!r} in line {line} ({error}); put it in quotes if it is text"
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value in keys and key.tag != "tag:yaml.org,2002:merge":
                line = key.start_mark.line + 1
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice, again in line {line}; every key only once"
                )
            if isinstance(key.value, str):
                keys.add(key.value)
        return super().construct_mapping(node, deep)


def parse_mapping(text: str, source: str) -> dict[str, Any]:
    """The mapping in a YAML text.

    Raises:
        SpecError: the text is no YAML, is empty or holds something else, is too large with its aliases written out, or
            a key stands twice.
    """
    try:
        content = parse_value(text)
    except SpecError as error:
        raise SpecError(error.problems, source) from None
    except yaml.YAMLError as error:
        line = " ".join(str(error).replace("<unicode string>", source).split())
        raise SpecError([FieldProblem("file", line, "YAML", "check indentation and quotes")], source) from None
    if not isinstance(content, dict):
        content_kind = "an empty file" if content is None else f"a {type(content).__name__}"
        allowed = "a mapping with apiVersion, kind, ..."
        raise SpecError([FieldProblem("file", content_kind, allowed, "begin with an example of the docs")], source)
    return content


def parse_value(text: str) -> Any:
    """Any value in a YAML text.

    Raises:
        YAMLError: the text is no YAML, or a key stands twice.
        SpecError: the value is too large with its aliases written out, or nested too deeply.
    """
    try:
        return yaml.load(text, _OnceLoader)  # noqa: S506 - a SafeLoader
    except RecursionError:
        raise SpecError([FieldProblem("file", "a value nested that deeply", "a few dozen levels")]) from None


def _check_size(path: str, value: Any, source: str) -> None:
    oversized = oversized_value(value)
    if oversized is not None:
        raise SpecError(_too_large(path, "a value", oversized[1]).problems, source)


def _too_large(path: str, what: str, characters: float) -> SpecError:
    size = (
        "that holds itself" if math.isinf(characters) else f"of {characters:,.0f} characters with aliases written out"
    )
    return SpecError(
        [
            FieldProblem(
                path,
                f"{what} {size}",
                f"at most {MAXIMUM_CHARACTERS:,} characters",
                "remove aliases (*name) of values that hold aliases",
            )
        ]
    )


def _copy(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _copy(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_copy(value) for value in content]
    return content


def _override(content: dict[str, Any], path: str, value: Any) -> None:
    place: Any = content
    keys = path.split(".")
    if "" in keys:
        raise _no_place(path, "", "names with one dot between them")
    for position, key in enumerate(keys):
        last = position == len(keys) - 1
        if isinstance(place, list):
            if not key.isdecimal() or int(key) >= len(place):
                raise _no_place(path, key, f"an index below {len(place)}")
            if last:
                place[int(key)] = value
            else:
                place = place[int(key)]
        elif isinstance(place, dict):
            if last:
                place[key] = value
            else:
                place = place.setdefault(key, {})
        else:
            raise _no_place(path, key, "a path through mappings and lists")


def _no_place(path: str, key: str, allowed: str) -> SpecError:
    return SpecError([FieldProblem(f"override {path}", repr(key), allowed, "check the path")], "the overrides")
