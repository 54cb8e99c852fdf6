"""The example on the page about features is a valid job file, and its steps do what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elastrec.platform.data.features.fitting import fit
from elastrec.platform.data.features.steps import MISSING_ID
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.features import Standardize
from elastrec.platform.specs.text.loading import load_job

PAGE = Path(__file__).resolve().parents[2] / "docs" / "features.md"


def test_the_example_is_fitted_and_read_as_on_the_page(tmp_path: Path) -> None:
    [text] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    folder = tmp_path / "day=2026-01-01"
    folder.mkdir()
    log = {
        "label": [0, 1, 0, 1],
        "price": [None, 20.0, 50_000.0, 4.5],
        "user": [5, 6, None, 5],
        "town": ["Rome", None, "Ulm", "Turin"],
        "clicked": [[1, 2], [], [3], list(range(30))],
    }
    pq.write_table(pa.table(log), folder / "a.parquet")
    data = load_job(text, {"spec.data.path": str(tmp_path)}).spec.data
    manifest = build_manifest(data)
    data = fit(data, manifest)
    [batch] = ShardReader(data, manifest).read(0, 4, seed=0, shuffle=False, batch_size=4)
    values = np.log1p([20, 10_000, 4.5])
    [figures] = [step for step in data.features["price"] if isinstance(step, Standardize)]
    np.testing.assert_allclose((figures.mean, figures.scale), (values.mean(), values.std()))
    dense = np.asarray(batch["dense"].values).reshape(4, 2)
    np.testing.assert_allclose(dense[1:, 0], (values - values.mean()) / values.std(), rtol=1e-6)
    assert dense[0, 0] == 0 and dense[:, 1].tolist() == [1, 0, 0, 0]
    assert batch["town"].to_pylist() == [2, 0, 0, 3]
    assert batch["price_range"].to_pylist() == [MISSING_ID, 2, 3, 0]
    assert batch["clicked"].to_pylist() == [[1, 2], [], [3], list(range(20))]
    users, crosses = batch["user"].to_pylist(), batch["town_and_range"].to_pylist()
    assert users[0] == users[3] < 1_000_000 and users[2] == MISSING_ID
    assert len(set(crosses)) == 4 and max(crosses) < 100_000
