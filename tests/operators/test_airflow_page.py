"""The DAGs that docs/airflow.md shows can be read by Airflow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from airflow.sdk import DAG

PAGE = Path(__file__).parents[2] / "docs" / "airflow.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_of_the_page_is_a_dag(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[DAG] = []
    enter = DAG.__enter__
    monkeypatch.setattr(DAG, "__enter__", lambda self: (made.append(self), enter(self))[1])
    names: dict[str, object] = {"__file__": str(tmp_path / "example.py"), "__name__": "example"}
    exec(compile(BLOCKS[number], f"{PAGE}:{number}", "exec"), names)
    (dag,) = made
    dag.validate()


def test_the_page_has_examples() -> None:
    assert len(BLOCKS) >= 3
