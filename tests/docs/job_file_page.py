"""docs/job_file.md: all fields, from the pydantic models. `python -m tests.docs.job_file_page` generates it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from elastrec.platform.specs.text.crd import job_json_schema

PAGE = Path(__file__).resolve().parents[2] / "docs" / "job_file.md"
INTRODUCTION = """# The job file

This page lists every field of a `TrainingJob` with its default and its allowed values. Unknown fields are refused,
and all problems are shown at once ([examples](bad_input.md)). `elastrec schema` prints a JSON schema, with which
editors can check the file while you type. To change a field for one run: `elastrec run job.yaml --set
spec.training.batch_size=256`.

Amounts have units: memory `512Mi`, `2Gi`, `2GiB` or `1.5G`; cores `2`, `0.5` or `500m`; durations `250ms`, `30s`, `5m`,
`1.5h` or `1d`. A number without a unit is in bytes, cores or seconds.

`python -m tests.docs.job_file_page` generates this page from the models in `platform/specs`.
"""
_MEMORY = (("Gi", 2**30), ("Mi", 2**20))
_QUANTITIES = {"30s": "duration", "500m": "cores", "2Gi": "memory"}
_BOUNDS = (
    ("minimum", "≥ {}"), ("exclusiveMinimum", "> {}"), ("maximum", "≤ {}"), ("exclusiveMaximum", "< {}"),
    ("maxLength", "at most {} characters"), ("pattern", "matches `{}`"),
)  # fmt: skip
Schema = dict[str, Any]


def render() -> str:
    """The page."""
    schema = job_json_schema()
    definitions: dict[str, Schema] = schema["$defs"]
    places = _places(schema, definitions)
    writer = _Writer(definitions, {name: anchor(paths[0]) for name, paths in places.items()})
    lines = [INTRODUCTION, *writer.section("The whole", schema, [])]
    for name, paths in places.items():
        lines += writer.section(f"`{paths[0]}`", definitions[name], paths[1:])
    return "\n".join(lines).rstrip() + "\n"


def anchor(heading: str) -> str:
    """How a link on the same page names a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _places(schema: Schema, definitions: dict[str, Schema]) -> dict[str, list[str]]:
    """Where each section stands, by name of its model; a section is followed by its own sections."""
    found: dict[str, list[str]] = {}

    def visit(prefix: str, node: Schema) -> None:
        for field, part in node["properties"].items():
            for name, suffix in _models(part):
                model, path = definitions[name], f"{prefix}{field}{suffix}"
                if "step" in model.get("properties", {}):
                    path = f"{path}: {model['properties']['step']['const']}"
                if "properties" not in model:
                    continue
                known = name in found
                found.setdefault(name, []).append(path)
                if not known:
                    visit(f"{path}.", model)

    visit("", schema)
    return found


def _models(part: Schema) -> list[tuple[str, str]]:
    """(model, what to write behind the field's name) of the models that a field holds."""
    if "$ref" in part:
        return [(part["$ref"].rpartition("/")[2], "")]
    if isinstance(part.get("additionalProperties"), dict):
        return [(name, ".NAME" + suffix) for name, suffix in _models(part["additionalProperties"])]
    if "items" in part:
        return [(name, "[]" + suffix) for name, suffix in _models(part["items"])]
    return [found for option in (*part.get("anyOf", []), *part.get("oneOf", [])) for found in _models(option)]


@dataclass
class _Writer:
    """Tables of fields.

    Attributes:
        definitions: models of the schema, by name.
        anchors: anchors of the sections, by model.
    """

    definitions: dict[str, Schema]
    anchors: dict[str, str]

    def section(self, title: str, node: Schema, others: list[str]) -> list[str]:
        """The lines of one section; `others`: further places with the same fields."""
        lines = [f"## {title}", "", _one_line(node.get("description", "")), ""]
        if others:
            lines += ["The same fields: " + ", ".join(f"`{path}`" for path in others) + ".", ""]
        lines += ["| field | default | allowed | meaning |", "|---|---|---|---|"]
        required = node.get("required", [])
        for field, part in node["properties"].items():
            default = "**needed**" if field in required else self._default(part)
            cells = (f"`{field}`", default, self._allowed(part), _one_line(self.meaning(part)))
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        return [*lines, ""]

    def meaning(self, part: Schema) -> str:
        """What a field means: its own words, else those of its model."""
        if "description" in part:
            return str(part["description"])
        found = _models(part)
        return str(self.definitions[found[0][0]].get("description", "")) if found else ""

    def _default(self, part: Schema) -> str:
        if "default" not in part or part["default"] in ([], ""):
            return "empty"
        value = part["default"]
        if value is None:
            return "absent"
        names = _models(part)
        if isinstance(value, dict) and names:
            value = self._differences(value, names[0][0])
            return f"`{_flow(value)}`" if value else "as there"
        return f"`{_flow(_plain(value, _kind(part)))}`"

    def _differences(self, value: Schema, model: str) -> Schema:
        """What of a section's default is not the default of its fields anyway."""
        found = {}
        for field, content in value.items():
            part = self.definitions[model]["properties"][field]
            names = _models(part)
            if isinstance(content, dict) and names:
                if inner := self._differences(content, names[0][0]):
                    found[field] = inner
            elif _plain(content, _kind(part)) != _plain(part.get("default"), _kind(part)):
                found[field] = _plain(content, _kind(part))
        return found

    def _allowed(self, part: Schema) -> str:
        if "const" in part:
            return f"`{part['const']}`"
        if "enum" in part:
            values = [str(value).lower() if isinstance(value, bool) else value for value in part["enum"]]
            return ", ".join(f"`{value}`" for value in values)
        if _kind(part):
            return _kind(part)
        if "$ref" in part:
            name = part["$ref"].rpartition("/")[2]
            return (
                f"[section](#{self.anchors[name]})" if name in self.anchors else self._allowed(self.definitions[name])
            )
        if "oneOf" in part:
            names = (option["$ref"].rpartition("/")[2] for option in part["oneOf"])
            return "steps: " + ", ".join(f"[{_step(self.definitions[name])}](#{self.anchors[name]})" for name in names)
        if "anyOf" in part:
            options = [self._allowed(option) for option in part["anyOf"] if option.get("type") != "null"]
            return " or ".join(dict.fromkeys(options))
        if "items" in part:
            return f"list of {self._allowed(part['items'])}".replace("[section]", "[sections]")
        if isinstance(part.get("additionalProperties"), dict):
            return f"{self._allowed(part['additionalProperties'])} by name"
        kind = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true`, `false`"}
        words = [kind.get(part.get("type", ""), "mapping of any values")]
        lengths = (part.get("minLength"), part.get("maxLength"))
        if lengths == (1, 1):
            return "one character"
        words += ["not empty"] if lengths[0] == 1 else []
        words += [form.format(part[name]) for name, form in _BOUNDS if name in part]
        return ", ".join(words)


def _step(model: Schema) -> str:
    """The word by which a section of several kinds says which one it is."""
    return f"`{model['properties']['step']['const']}`"


def _plain(value: Any, kind: str) -> Any:
    """An amount as people write it."""
    if isinstance(value, str) or not isinstance(value, int | float):
        return value
    if kind == "memory":
        return next((f"{value // size}{unit}" for unit, size in _MEMORY if value % size == 0), value)
    return f"{value:g}s" if kind == "duration" else value


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).strip()
    return text.removesuffix("...").strip()


def _kind(part: Schema) -> str:
    """The quantity that a field is, empty for others."""
    if part.get("x-kubernetes-int-or-string"):
        return _QUANTITIES[part["examples"][0]]
    return next((kind for option in part.get("anyOf", []) if (kind := _kind(option))), "")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def main() -> None:
    PAGE.write_text(render())


if __name__ == "__main__":
    main()
