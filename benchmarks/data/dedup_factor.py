"""The accuracy of RecD's model of DedupeFactor, on generated logs and on real sessions (RecD §4.2).

Predicted: 1 / (1 − (S−1)/S · d(f)) from the mean session S and the share d(f) of rows whose value is that of the
session's row before. Measured: numbers of batches of clustered rows ÷ numbers of their distinct rows. Generated logs
have session sizes that are all equal, geometric, or of a heavy tail. Real ones are given by file; where the prediction
is off by more than 10 %, the settings say why.

Without (S−1)/S in `dedupe_factor` (`left = 1 - same_share`), the figures are red.

    python -m benchmarks dedup_factor [--clicks FILE] [--ratings FILE] [--output json]

    --clicks    tab separated SessionId, ItemId, Time (Yoochoose): a session's last 20 items, and its first 5
    --ratings   comma separated userId, movieId, rating, timestamp (MovieLens): the last 50 movies that a user liked,
                sessions are a user's days
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv
from numpy.typing import NDArray

from benchmarks.common.figures import Figure, run_benchmark
from elastrec.platform.data.deduplicating.dedupe_factor import FeatureSample, feature_factor
from elastrec.platform.data.deduplicating.deduplication import jagged_parts, row_codes

_BATCH_ROWS, _MEAN_SESSION = 4_096, 16.2
Longs = NDArray[np.int64]


def sizes_of(tail: str, sessions: int, rng: np.random.Generator) -> Longs:
    """Rows of each session, 16.2 on average."""
    if tail == "equal":
        return rng.permutation(np.where(np.arange(sessions) % 5 == 0, 17, 16))
    if tail == "geometric":
        return rng.geometric(1 / _MEAN_SESSION, sessions)
    # Pareto with exponent 1.5: its mean exists, its variance does not.
    return np.ceil((rng.pareto(1.5, sessions) + 1) * _MEAN_SESSION / 3).astype(np.int64)


def generated(tail: str, stays: float, rows: int) -> Figure:
    """Predicted ÷ measured on a log whose lists never return once they changed."""
    rng = np.random.default_rng(0)
    sizes = sizes_of(tail, round(rows / _MEAN_SESSION), rng)
    session_N = np.repeat(np.arange(len(sizes)), sizes)
    first_N = np.diff(session_N, prepend=-1) != 0
    code_N = np.cumsum(first_N | (rng.random(len(session_N)) >= stays)).astype(np.int32)
    length_U = rng.integers(10, 100, int(code_N[-1]) + 1)
    feature = FeatureSample(code_N, length_U[code_N], True)
    found = feature_factor("f", feature, session_N, rng.permutation(len(session_N)), _BATCH_ROWS)
    settings = {
        "rows": len(session_N), "samples_per_session": round(len(session_N) / len(sizes), 2), "batch": _BATCH_ROWS,
        "measured": round(found.measured, 3), "predicted": round(found.predicted, 3), "why": found.why,
    }  # fmt: skip
    name = f"dedup_factor.{tail}_stays_{round(100 * stays)}"
    return Figure(name, found.predicted / found.measured, "predicted ÷ measured", at_least=0.95, at_most=1.05,
                  settings=settings)  # fmt: skip


def real(name: str, session_N: Longs, lists: dict[str, pa.Array]) -> list[Figure]:
    """Predicted ÷ measured per feature of clustered rows; the reason where it is off."""
    figures = []
    for feature, column in lists.items():
        values, offsets = jagged_parts(column, feature)
        sample = FeatureSample(row_codes(values, offsets)[0], np.diff(offsets), True)
        found = feature_factor(feature, sample, session_N, np.arange(len(session_N)), _BATCH_ROWS)
        settings = {
            "rows": len(session_N), "samples_per_session": round(len(session_N) / (int(session_N[-1]) + 1), 2),
            "d": round(found.same_share, 3), "measured": round(found.measured, 3),
            "predicted": round(found.predicted, 3), "why": found.why,
        }  # fmt: skip
        ratio = found.predicted / found.measured
        figures.append(Figure(f"dedup_factor.{name}.{feature}", ratio, "predicted ÷ measured", settings=settings))
    return figures


def clicks(file: str) -> list[Figure]:
    """Sessions as recorded."""
    table = pc_csv.read_csv(file, parse_options=pc_csv.ParseOptions(delimiter="\t"))
    table = table.sort_by([("SessionId", "ascending"), ("Time", "ascending")])
    session_N = _numbered(np.asarray(table["SessionId"]))
    item_N = np.asarray(table["ItemId"])
    begin_N = np.searchsorted(session_N, session_N)
    recent = _lists(item_N, lambda row: range(max(int(begin_N[row]), row - 20), row), len(item_N))
    first = _lists(item_N, lambda row: range(int(begin_N[row]), min(int(begin_N[row]) + 5, row)), len(item_N))
    return real("yoochoose", session_N, {"recent": recent, "first": first})


def ratings(file: str) -> list[Figure]:
    """Sessions are a user's days."""
    table = pc_csv.read_csv(file).sort_by([("userId", "ascending"), ("timestamp", "ascending")])
    user_N, day_N = np.asarray(table["userId"]), np.asarray(table["timestamp"]) // 86_400
    movie_N, liked_N = np.asarray(table["movieId"]), np.asarray(table["rating"]) >= 4
    session_N = _numbered(user_N * 100_000 + day_N)
    liked = np.flatnonzero(liked_N)
    low_N = np.searchsorted(liked, np.searchsorted(user_N, user_N))
    high_N = np.searchsorted(liked, np.arange(len(user_N)))
    column = _lists(
        movie_N, lambda row: liked[max(int(low_N[row]), int(high_N[row]) - 50) : int(high_N[row])], len(user_N)
    )
    return real("movielens", session_N, {"liked": column})


def _numbered(keys: Longs) -> Longs:
    return np.cumsum(np.diff(keys, prepend=keys[0] - 1) != 0) - 1


def _lists(values: Longs, places: Callable[[int], range | Longs], rows: int) -> pa.Array:
    return pa.array([values[list(places(row))] for row in range(rows)], pa.list_(pa.int64()))


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Generated logs, then the files."""
    tails = ("equal", "geometric", "heavy_tail")
    figures = [generated(tail, stays, arguments.rows) for tail in tails for stays in (0.5, 0.9, 1.0)]
    if arguments.clicks:
        figures += clicks(arguments.clicks)
    if arguments.ratings:
        figures += ratings(arguments.ratings)
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=200_000, help="rows of each generated log (default 200,000)")
    parser.add_argument("--clicks", metavar="FILE", help="real sessions: SessionId, ItemId, Time")
    parser.add_argument("--ratings", metavar="FILE", help="real ratings: userId, movieId, rating, timestamp")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
