"""Job files: accepted contents, and refusals of all others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from elastrec.platform.cli.options import parse_overrides
from elastrec.platform.jobs.what_if.simulation_file import SimulationFile
from elastrec.platform.specs.errors import SpecError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.scaling import ScalingSettings
from elastrec.platform.specs.text.loading import dump_job, job_from_json, job_to_json, load_job, parse_mapping
from elastrec.platform.specs.text.patterns import CURRENCY_PATTERN, JOB_NAME_PATTERN, PATTERN_WORDS
from elastrec.platform.specs.text.quantities import Memory, format_bytes, parse_bytes, parse_cores, parse_seconds


def job(**spec: Any) -> dict[str, Any]:
    body = {"model": {"architecture": "dlrm"}, "data": {"path": "clicks", "sparse": [{"name": "C1"}]}, **spec}
    return {"apiVersion": "elastrec.io/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "click"}, "spec": body}


def problems(content: Any) -> dict[str, str]:
    with pytest.raises(SpecError) as error:
        load_job(content)
    return {problem.path: str(problem) for problem in error.value.problems}


@pytest.mark.parametrize("name", ["ads/clicks", "ads:clicks", ".", "c" * 251])
def test_a_name_that_mlflow_refuses_is_refused_before_anything_is_trained(name: str) -> None:
    assert set(problems(job(history={"registered_model": name}))) == {"spec.history.registered_model"}
    assert load_job(job(history={"registered_model": "Clicks ü of ads-v1.2"})).registered_model[-4:] == "v1.2"


def test_a_label_or_an_experiment_that_is_too_long_for_mlflow_is_refused() -> None:
    assert set(problems(job(history={"experiment": "e" * 501}))) == {"spec.history.experiment"}
    ((path, words),) = problems(job() | {"metadata": {"name": "click", "labels": {"k" * 201: "v"}}}).items()
    assert path == "metadata.labels" and "the name 'kkk" in words


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"training": None}, "spec.training", "null is not allowed; allowed: a section with fields; fill it in or"),
        ({"tables": {"C1": 3}}, "spec.tables.C1", "3 is not allowed; allowed: a section with fields"),
        ({"model": {"architecture": "dlrm", "options": [1]}}, "spec.model.options", "a mapping of names to values"),
        ({"data": {"path": "x", "sparse": {"name": "C1"}}}, "spec.data.sparse", "allowed: a list"),
        ({"data": {"path": 3, "sparse": [{"name": "C1"}]}}, "spec.data.path", "3 is not allowed; allowed: text"),
    ],
)
def test_the_kind_of_a_value_is_said_in_the_words_of_a_job_file(change: dict[str, Any], path: str, words: str) -> None:
    assert words in problems(job(**change))[path]


def test_a_minimal_job_gets_documented_defaults() -> None:
    loaded = load_job(job())
    assert loaded.spec.training.batch_size == 512
    assert loaded.spec.training.consistency.mode == "async"
    assert loaded.spec.resources.worker.memory == 2 * 2**30
    assert loaded.registered_model == "click"


def test_a_job_survives_yaml_and_json(tmp_path: Path) -> None:
    loaded = load_job(job(resources={"worker": {"count": 3, "cores": "500m", "memory": "1.5Gi"}}))
    assert loaded.spec.resources.worker.cores == 0.5
    assert load_job(dump_job(loaded)) == loaded
    assert job_from_json(job_to_json(loaded)) == loaded
    file = tmp_path / "job.yaml"
    file.write_text(dump_job(loaded))
    assert load_job(file) == loaded == load_job(str(file))


def test_all_problems_are_reported_together_with_path_value_and_allowed_values() -> None:
    content = job(
        model={"architecture": "dlmr", "embeding_dimension": 4},
        data={"path": "x", "sparse": [{"name": "C1", "pooling": "max"}], "dense": [{"name": "I1", "scale": 0}]},
        resources={"worker": {"memory": "2GB", "cores": -1}, "master": {"count": 2}, "virtual_buckets": 3},
        checkpoint={"interval": "5 minutes"},
    )
    content["metadata"]["name"] = "A_b"
    found = problems(content)
    assert set(found) == {
        "metadata.name",
        "spec.model.architecture",
        "spec.model.embeding_dimension",
        "spec.data.dense.0.scale",
        "spec.data.sparse.0.pooling",
        "spec.resources.master",
        "spec.resources.worker.cores",
        "spec.resources.worker.memory",
        "spec.resources.virtual_buckets",
        "spec.checkpoint.interval",
    }
    assert "did you mean 'embedding_dimension'" in found["spec.model.embeding_dimension"]
    assert "'2GB'" in found["spec.resources.worker.memory"] and "2Gi" in found["spec.resources.worker.memory"]
    assert "dlrm" in found["spec.model.architecture"]


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"training": {"consistency": {"mode": "async", "staleness": 2}}}, "spec.training.consistency", "ssp"),
        ({"tables": {"C9": {}}}, "spec", "C9"),
        ({"faults": {"heartbeat_interval": "10s", "heartbeat_timeout": "15s"}}, "spec.faults", "heartbeat_timeout 15s"),
        ({"faults": {"heartbeat_interval": "90s", "heartbeat_timeout": "5m"}}, "spec.faults", "lease 120s"),
        ({"faults": {"master_timeout": "1s"}}, "spec.faults", "master_timeout 1s"),
        ({"data": {"path": "x", "sparse": []}}, "spec.data.sparse", "at least one"),
        ({"data": {"path": "x", "sparse": [{"name": "a"}, {"name": "a"}]}}, "spec.data", "more than once"),
        ({"data": {"path": "x", "sparse": [{"name": "a"}], "format": "csv", "csv": {"has_header": False}}},
         "spec.data", "column_names"),
        ({"data": {"path": "x", "sparse": [{"name": "a", "table": "b", "is_list": True},
                                           {"name": "b", "is_list": True, "pooling": "mean"}]}},
         "spec.data", "pooling"),
        ({"resources": {"virtual_buckets": 64, "parameter_server": {"count": 65}}}, "spec.resources", "bucket"),
        ({"data": {"path": "x", "sparse": [{"name": "a"}], "transform": "nonsense"}},
         "spec.data.transform", "import path"),
    ],
)  # fmt: skip
def test_impossible_combinations_are_refused(change: dict[str, Any], path: str, words: str) -> None:
    found = problems(job(**change))
    assert path in found
    assert words in found[path]


@pytest.mark.parametrize(("given", "cores"), [(0, 0.0), ("500m", 0.5), (2, 2.0)])
def test_cores_at_start_may_be_none(given: object, cores: float) -> None:
    assert load_job(job(resources={"startup_cores": given})).spec.resources.startup_cores == cores


@pytest.mark.parametrize(("given", "words"), [(-1, "at least 0"), (float("inf"), "finite"), ("1 core", "500m")])
def test_cores_at_start_that_no_limit_can_have_are_refused(given: object, words: str) -> None:
    assert words in problems(job(resources={"startup_cores": given}))["spec.resources.startup_cores"]


@pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2", "just text\nmore"])
def test_text_that_is_not_a_mapping_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="file"):
        load_job(text if "\n" in text else text + "\n")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SpecError, match=r"nowhere\.yaml"):
        load_job("nowhere.yaml")


def test_a_missing_file_is_named_once() -> None:
    with pytest.raises(SpecError) as error:
        load_job("nosuch.yaml")
    assert str(error.value).count("nosuch.yaml") == 1


def test_only_a_field_that_may_be_absent_is_to_be_removed() -> None:
    said = problems({**job(), "spec": None, "metadata": {"name": None, "team": None}})
    assert said["spec"].endswith("; fill it in")
    assert said["metadata.name"].endswith("; fill it in")
    assert said["metadata.team"].endswith("; fill it in or remove it")


def test_every_pattern_of_a_text_is_explained_in_words() -> None:
    def patterns(node: Any) -> set[str]:
        if isinstance(node, dict):
            # Amounts have patterns, too, and words of their own.
            own = {node["pattern"]} if node.get("type") == "string" and "pattern" in node else set()
            return own.union(*(patterns(part) for part in node.values() if "x-kubernetes-int-or-string" not in node))
        return set().union(*map(patterns, node)) if isinstance(node, list) else set()

    found = patterns([kind.model_json_schema() for kind in (TrainingJob, ScalingSettings, SimulationFile)])
    assert {JOB_NAME_PATTERN, CURRENCY_PATTERN} < found <= set(PATTERN_WORDS)


def test_a_field_in_the_wrong_section_is_suggested_where_it_belongs() -> None:
    message = problems({**job(), "batch_size": 3})["batch_size"]
    assert message.endswith("did you mean 'spec.training.batch_size'?")
    assert problems(job(training={"batch_sizes": 3}))["spec.training.batch_sizes"].endswith(
        "did you mean 'batch_size'?"
    )
    assert problems({**job(), "weather": 3})["weather"].endswith("remove the field")


@pytest.mark.parametrize(
    ("path", "written", "meant"),
    [
        ("resources.worker.memory", "2GB", "2G"),
        ("resources.worker.memory", "512 mib", "512Mi"),
        ("resources.worker.cores", "2 cores", "2"),
        ("checkpoint.interval", "5 minutes", "5m"),
        ("checkpoint.interval", "90sec", "90s"),
    ],
)
def test_an_amount_in_a_usual_spelling_is_suggested_in_ours(path: str, written: str, meant: str) -> None:
    with pytest.raises(SpecError) as error:
        load_job(job(), {f"spec.{path}": written})
    (problem,) = error.value.problems
    assert str(problem).endswith(f"did you mean {meant}?")
    assert load_job(job(), {f"spec.{path}": meant})


def test_an_amount_that_is_near_nothing_suggests_nothing() -> None:
    assert problems(job(resources={"worker": {"memory": "much"}}))["spec.resources.worker.memory"].endswith("GiB, TiB)")


def test_a_missing_field_is_reported_as_missing() -> None:
    message = problems({"apiVersion": "elastrec.io/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "click"}})
    assert message["spec"] == "spec is missing; needed: a value; add the field"


def test_overrides_reach_into_mappings_and_lists_and_leave_the_source_alone() -> None:
    content = job()
    before = yaml.safe_dump(content)
    loaded = load_job(content, {"spec.training.batch_size": 64, "spec.data.sparse.0.name": "C7"})
    assert loaded.spec.training.batch_size == 64
    assert loaded.spec.data.sparse[0].name == "C7"
    assert yaml.safe_dump(content) == before


@pytest.mark.parametrize("path", ["spec.data.sparse.3.name", "metadata.name.first"])
def test_an_override_that_leads_nowhere_is_refused(path: str) -> None:
    with pytest.raises(SpecError, match="override"):
        load_job(job(), {path: "x"})


@given(st.integers(0, 2**50))
def test_bytes_survive_their_text_form(amount: int) -> None:
    text = format_bytes(amount)
    assert parse_bytes(text if not text.isdigit() else int(text)) == amount


@pytest.mark.parametrize(
    ("text", "amount"), [("4KiB", 2**12), ("3MiB", 3 * 2**20), ("1.5GiB", 3 * 2**29), ("2TiB", 2**41)]
)
def test_memory_may_have_the_units_of_iec(text: str, amount: int) -> None:
    assert parse_bytes(text) == amount


@pytest.mark.parametrize("memory", ["1.5G", "1G", "500M", "0.1Gi", 1_500_000_001, "2Gi"])
def test_memory_that_is_no_multiple_of_a_binary_unit_survives_yaml_and_json(memory: str | int) -> None:
    size = {"count": 2, "memory": memory}
    loaded = load_job(job(resources={"worker": size}, scaling={"maximum_worker_memory": memory}))
    assert job_from_json(job_to_json(loaded)) == loaded
    assert load_job(dump_job(loaded)) == loaded


def test_memory_is_written_in_one_spelling_and_the_schema_knows_both() -> None:
    loaded = load_job(job(resources={"worker": {"count": 3, "memory": "2GiB"}}))
    assert "memory: 2Gi\n" in dump_job(loaded) and "GiB" not in dump_job(loaded)
    memory = next(part for part in TypeAdapter(Memory).json_schema()["anyOf"] if part["type"] == "string")
    assert all(re.search(memory["pattern"], text) for text in ("2Gi", "2GiB", "2G"))
    assert not any(re.search(memory["pattern"], text) for text in ("2GB", "2gib", "2GiBB"))


@pytest.mark.parametrize("value", ["2GB", "2gib", "1 Gi", "", "Gi", "GiB", True, 1.5, None])
def test_wrong_units_of_memory_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="512Mi"):
        parse_bytes(value)


@pytest.mark.parametrize("value", ["99999999999Ti", "9" * 400 + "Gi", 2**63])
def test_more_memory_than_messages_can_contain_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="at most 9223372036854775807 bytes"):
        parse_bytes(value)
    assert parse_bytes(2**63 - 1) == 2**63 - 1


def test_durations_and_cores_have_units() -> None:
    assert parse_seconds("1.5h") == 5400
    assert parse_seconds("250ms") == 0.25
    assert parse_cores("250m") == 0.25
    for wrong in ("5 minutes", "5x", True):
        with pytest.raises(ValueError):
            parse_seconds(wrong)


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [xxxxxxxxxx]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


def merging_bomb(levels: int) -> str:
    lines = ["a0: &a0 {x: xxxxxxxxxx}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("text", [bomb(10), merging_bomb(10)])
def test_aliases_that_expand_to_gigabytes_are_refused_with_their_line(text: str) -> None:
    with pytest.raises(
        SpecError, match=r"file: the value in line 8 of .* written out .* at most 10,000,000 characters; remove"
    ):
        load_job(text)


def test_every_loader_refuses_texts_that_aliases_expand_too_much(tmp_path: Path) -> None:
    inline: Any = "x" * 100
    for _ in range(10):
        inline = [inline] * 9
    for refused in (
        lambda: load_job(job(model={"architecture": "dlrm", "options": {"a": inline}})),
        lambda: load_job(job(), {"spec.model.options": {"a": inline}}),
        lambda: parse_overrides((f"spec.model.options={{{bomb(10)[:-1].replace(chr(10), ', ')}}}",)),
        lambda: parse_mapping(bomb(10), "scaling.yaml"),
    ):
        with pytest.raises(SpecError, match="at most 10,000,000 characters"):
            refused()


def test_a_value_that_holds_itself_is_refused(tmp_path: Path) -> None:
    endless: dict[str, Any] = {}
    endless["a"] = [endless]
    with pytest.raises(SpecError, match="a value that holds itself"):
        load_job(job(model={"architecture": "dlrm", "options": endless}))
    with pytest.raises(SpecError, match="the value in line 2 that holds itself"):
        load_job("kind: x\nspec: &a {b: *a}\n")


def test_aliases_of_a_usual_file_are_written_out() -> None:
    features = "".join(f"      - {{<<: *base, name: C{i}}}\n" for i in range(3000))
    text = "base: &base {is_list: true, max_length: 50}\nfeatures:\n" + features
    content = parse_mapping(text, "file")
    assert len(content["features"]) == 3000
    assert content["features"][-1] == {"is_list": True, "max_length": 50, "name": "C2999"}


@pytest.mark.parametrize(
    "value", ["2026-02-30", "2026-01-01 25:00:00", "!!int x", "!!bool x", "!!timestamp x", "9" * 5000]
)
def test_a_date_or_number_that_does_not_exist_is_named_with_its_line(value: str) -> None:
    with pytest.raises(SpecError, match=r"in line 2 .*put it in quotes"):
        load_job(f"kind: TrainingJob\nmetadata: {value}\n")
    with pytest.raises(SpecError, match="PATH=VALUE"):
        parse_overrides((f"metadata.team={value}",))


def test_text_nested_too_deeply_and_keys_that_are_lists_are_refused() -> None:
    with pytest.raises(SpecError, match="nested that deeply"):
        parse_mapping("a: " + "[" * 10_000 + "]" * 10_000, "file")
    with pytest.raises(SpecError, match="unhashable key"):
        parse_mapping("? [a]\n: 1\n", "file")
