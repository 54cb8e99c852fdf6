"""An exported model brings the user's own code, or names the installation that contains it."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest
from mlflow.models import Model

from elastrec.platform.specs.job import TrainingJob
from elastrec.trainers.export.logged_model import save
from elastrec.trainers.export.requirements import pinned
from elastrec.trainers.export.users_code import users_code, users_distributions
from tests.trainers.export.conftest import FinishedJob


def with_model(finished: FinishedJob, architecture: str) -> TrainingJob:
    model = finished.job.spec.model.model_copy(update={"architecture": architecture})
    return finished.job.model_copy(update={"spec": finished.job.spec.model_copy(update={"model": model})})


@pytest.mark.parametrize(
    ("file", "architecture", "brought"),
    [
        ("users_file.py", "users_file:M", "users_file.py"),
        ("users_package/__init__.py", "users_package:M", "users_package"),
        ("users_folder/models.py", "users_folder.models:M", "users_folder"),
        ("users_tree/ranking/models.py", "users_tree.ranking.models:M", "users_tree"),
        ("users_nested/ranking/__init__.py", "users_nested.ranking:M", "users_nested"),
    ],
)
def test_a_users_code_is_brought_also_from_folders_without_an_init_file(
    finished: FinishedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, architecture: str, brought: str
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("class M: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    job = with_model(finished, architecture)
    assert users_code(job) == [str(tmp_path / brought)]
    assert users_distributions(job) == []


def test_a_users_code_is_brought_with_all_that_it_imports(
    finished: FinishedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {
        "users_model.py": "import os\nfrom users_layers import cross\nimport elastrec.platform\nclass M: ...\n",
        "users_layers/__init__.py": "",
        "users_layers/cross.py": "from . import gates\nfrom .inner import late\n",
        "users_layers/gates.py": "def gate():\n    import users_late\n    return users_late\n",
        "users_layers/inner.py": "late = 1\nimport pytest\nfrom not_installed import anything\n",
        "users_late.py": "import users_model, users_old\n",
        "users_old.py": "print 'version 2'\n",
        "users_other.py": "import yaml\n",
    }
    for name, text in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    job = with_model(finished, "users_model:M")
    kept = ("users_late.py", "users_layers", "users_model.py", "users_old.py")
    assert users_code(job) == [str(tmp_path / name) for name in kept]
    assert users_distributions(job) == ["pytest"]


def test_an_installed_package_of_the_user_is_required_with_all_that_it_needs(finished: FinishedJob) -> None:
    job = with_model(finished, "pytest:Module")
    assert users_code(job) == [] and users_distributions(job) == ["pytest"]
    required = pinned(users_distributions(job))
    assert required["pytest"] == version("pytest") and "pluggy" in required
    assert "pytest" not in pinned()
    assert users_distributions(finished.job) == []


@pytest.mark.filterwarnings("ignore:.*An input example was not provided:UserWarning")
def test_rows_that_json_cannot_hold_are_no_example(finished: FinishedJob, tmp_path: Path) -> None:
    data = finished.job.spec.data.model_copy(update={"transform": "json:loads"})  # it gets the rows as they are
    job = finished.job.model_copy(update={"spec": finished.job.spec.model_copy(update={"data": data})})
    for name, values in {"plain": [1.5], "decimals": [Decimal("1.5")], "durations": [timedelta(1)]}.items():
        artifact = tmp_path / name / "artifact"
        artifact.mkdir(parents=True)
        (artifact / "array.npy").write_bytes(b"kept")
        saved = tmp_path / name / "saved"
        save(job, artifact, saved, pa.table({"a": pa.array(values)}), ["probability"])
        assert (Model.load(str(saved)).saved_input_example_info is not None) is (name == "plain")
        assert (saved / "data" / "model" / "array.npy").read_bytes() == b"kept"
