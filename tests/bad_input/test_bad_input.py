"""Every wrong input is refused before anything starts, with a remedy in the message; the docs show all messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.platform.cli.app import EXIT_BAD_INPUT
from elastrec.platform.clusters.local import LocalCluster
from elastrec.platform.jobs.starting.model_check import ModelCheck
from elastrec.platform.specs.errors import SpecError
from elastrec.platform.specs.text.loading import load_job
from tests.bad_input.caller import platform_at, refuse
from tests.bad_input.case import Case, Place
from tests.bad_input.page import CASES, PAGE, key, normalised, render

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[LocalCluster]:
    with platform_at(home) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def messages() -> dict[str, str]:
    """Filled case by case, compared with the page at the end."""
    return {}


@pytest.mark.parametrize("case", CASES, ids=key)
def test_a_wrong_input_is_refused_with_a_message_that_helps(
    case: Case, tmp_path: Path, home: Path, cluster: LocalCluster, messages: dict[str, str]
) -> None:
    refusal = refuse(case, tmp_path, home)
    messages[key(case)] = normalised(refusal.message, tmp_path, home)
    assert refusal.exit_code == EXIT_BAD_INPUT, refusal.message
    assert refusal.output == ""
    assert [text for text in case.says if text not in refusal.message] == [], refusal.message
    assert refusal.changed == []
    assert cluster.list() == []
    if "user_code" not in refusal.message:
        assert "Traceback" not in refusal.message


def test_the_titles_are_different() -> None:
    assert len({key(case) for case in CASES}) == len(CASES) >= 60


def test_the_docs_show_every_message(messages: dict[str, str]) -> None:
    if len(messages) < len(CASES):
        pytest.skip("needs the messages of all cases")
    assert PAGE.read_text() == render(messages), "write it anew: python -m tests.bad_input.page"


def test_a_model_is_also_refused_by_the_check_in_its_own_process(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.set("spec.model.architecture", "not_installed.models:MyModel")
    with pytest.raises(SpecError, match="importing not_installed"), ModelCheck(load_job(place.content)) as model:
        model.wait()
