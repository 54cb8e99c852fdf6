"""Converts pydantic's validation errors to problems that name the field, the value, what is allowed and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.errors import COMBINATION, MISSING, FieldProblem, near
from elastrec.platform.specs.text.patterns import PATTERN_WORDS
from elastrec.platform.specs.text.some import counted

_LONGEST_VALUE = 80
_DEEPEST_SECTION = 5
_MOST_SUGGESTED = 3
_KEY = "[key]"
"""The last part of pydantic's path to a key of a mapping."""
_KINDS = {
    "model_type": "a section with fields",
    "dict_type": "a mapping of names to values",
    "tuple_type": "a list",
    "list_type": "a list",
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}
"""Words for the kind of value that a field has, by pydantic's type of error."""


class FieldError(ValueError):
    """Raised by the validator of a section: one field inside the section is wrong.

    Args:
        path: of the field, from the section on.
    """

    def __init__(self, path: str, value: str, allowed: str, remedy: str) -> None:
        super().__init__(f"{path}: {value} is not allowed; allowed: {allowed}; {remedy}")
        self.path, self.value, self.allowed, self.remedy = path, value, allowed, remedy


def problem_of(kind: type[Spec], content: Any, detail: Any, whole: str = "") -> FieldProblem:
    """One of the errors of a pydantic ValidationError.

    Args:
        content: what was checked; None where it is out of reach.
        whole: stands for the path of a problem that belongs to no field.
    """
    parts = [part for part in detail["loc"] if part not in ("function-after", "json-or-python")]
    value = _show(detail["input"])
    if parts and parts[-1] == _KEY:
        parts, value = parts[:-2], f"the name {value}"
    path = ".".join(str(part) for part in _without_tags(parts, content)) or whole
    error = detail["type"]
    context = detail.get("ctx", {})
    if isinstance(inner := context.get("error"), FieldError):
        place = f"{path}.{inner.path}" if parts else inner.path
        return FieldProblem(place, inner.value, inner.allowed, inner.remedy)
    if error == "missing":
        return FieldProblem(path, MISSING, "a value", "add the field")
    if error == "union_tag_not_found":
        return FieldProblem(path, value, f"a mapping with {context['discriminator']}", "say which one it is")
    if error == "union_tag_invalid":
        allowed_names = [tag.strip().strip("'") for tag in context["expected_tags"].split(",")]
        field = context["discriminator"].strip("'")
        return FieldProblem(
            f"{path}.{field}",
            repr(context["tag"]),
            f"one of {', '.join(allowed_names)}",
            near(context["tag"], allowed_names),
        )
    if error == "extra_forbidden":
        key = str(detail["loc"][-1])
        allowed_names = _known_fields(kind, detail["loc"][:-1])
        close = difflib.get_close_matches(key, allowed_names, n=1) or _elsewhere(kind, key)
        remedy = f"did you mean {' or '.join(map(repr, close))}?" if close else "remove the field"
        return FieldProblem(path, "an unknown field", f"the fields {', '.join(allowed_names)}", remedy)
    if error == "value_error":
        reason = str(context.get("error", detail["msg"]))
        if isinstance(detail["input"], Mapping | Spec):
            return FieldProblem(path, COMBINATION, reason)
        return FieldProblem(path, value, reason, getattr(context.get("error"), "remedy", ""))
    if error in ("enum", "literal_error"):
        return FieldProblem(path, value, f"one of {context['expected']}")
    remedy = ""
    if detail["input"] is None:
        remedy = "fill it in" if _is_required(kind, detail["loc"]) else "fill it in or remove it"
    return FieldProblem(path, value, _KINDS.get(error) or _allowed(detail), remedy)


def _without_tags(parts: list[Any], content: Any) -> list[Any]:
    """A path without the names by which pydantic distinguishes the kinds of a union: the file has no such fields."""
    kept, place = [], content
    for part in parts:
        if isinstance(place, Mapping) and part not in place and place.get("step") == part:
            continue
        kept.append(part)
        if isinstance(place, Mapping):
            place = place.get(part)
        elif isinstance(place, list | tuple) and isinstance(part, int) and part < len(place):
            place = place[part]
        else:
            place = None
    return kept


def _allowed(detail: Any) -> str:
    context = detail.get("ctx", {})
    signs = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    for key, words in signs.items():
        if key in context:
            return f"{words} {context[key]}"
    for key, words in {"min_length": "at least", "max_length": "at most"}.items():
        if key in context:
            unit = "character" if isinstance(detail["input"], str) else "element"
            return f"{words} {counted(context[key], unit)}"
    if "pattern" in context:
        return PATTERN_WORDS[context["pattern"]]
    # After the comma, pydantic repeats what is wrong with the value.
    message: str = detail["msg"].removeprefix("Input should be ").partition(", ")[0]
    return message[0].lower() + message[1:]


def _show(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def _known_fields(kind: Any, location: tuple[Any, ...]) -> list[str]:
    return sorted(_section(kind, location).get("properties", {}))


def _is_required(kind: Any, location: tuple[Any, ...]) -> bool:
    return bool(location) and location[-1] in _section(kind, location[:-1]).get("required", ())


def _section(kind: Any, location: tuple[Any, ...]) -> dict[str, Any]:
    """The JSON schema at a place of pydantic's."""
    schema = kind.model_json_schema(by_alias=True)
    place = schema
    for part in location:
        place = _resolve(schema, place)
        if tags := place.get("discriminator", {}).get("mapping"):
            place = {"$ref": tags.get(part, "")} if part in tags else {}
        elif isinstance(part, int):
            place = place.get("items", {})
        elif part in place.get("properties", {}):
            place = place["properties"][part]
        else:
            # The latter if the names have to match a pattern.
            by_name = [place.get("additionalProperties"), *place.get("patternProperties", {}).values()]
            place = next((each for each in by_name if isinstance(each, dict)), {})
    return _resolve(schema, place)


def _elsewhere(kind: Any, key: str) -> list[str]:
    """Paths of the fields of this name in other sections."""
    schema = kind.model_json_schema(by_alias=True)
    places: list[str] = []
    sections: list[tuple[str, dict[str, Any]]] = [("", schema)]
    while sections:
        path, section = sections.pop()
        if path.count(".") >= _DEEPEST_SECTION:
            continue
        for name, field in _resolve(schema, section).get("properties", {}).items():
            place = f"{path}.{name}" if path else name
            if name == key:
                places.append(place)
            sections.append((place, field))
    return sorted(places)[:_MOST_SUGGESTED]


def _resolve(schema: dict[str, Any], place: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in place or "anyOf" in place or "allOf" in place:
        if "$ref" in place:
            place = schema["$defs"][place["$ref"].rsplit("/", 1)[1]]
        else:
            options = place.get("anyOf") or place["allOf"]
            place = next((option for option in options if option.get("type") != "null"), {})
    return place
