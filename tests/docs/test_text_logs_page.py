"""The job file on the page about text logs reads the example lines as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.text.loading import load_job

PAGE = Path(__file__).resolve().parents[2] / "docs" / "text_logs.md"


def test_the_example_of_libsvm_reads_its_lines(tmp_path: Path) -> None:
    [lines] = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [job] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    folder = tmp_path / "day=2026-01-01"
    folder.mkdir()
    (folder / "a.txt").write_text(lines)
    data = load_job(job, {"spec.data.path": str(tmp_path)}).spec.data
    [batch] = ShardReader(data, build_manifest(data)).read(0, 2, seed=0, shuffle=False, batch_size=2)
    click, other = batch.to_pylist()
    assert (click["label"], other["label"]) == (1, 0)
    assert click["dense"] == [float(np.float32(np.log1p(19.5)))] and other["dense"] == [0]
    assert (click["words"], other["words"]) == ([3, 102, 2004], [102])
    assert (click["query"], other["query"]) == (7, 7)
    assert (click["shop"], other["shop"]) == (1, 1)
