"""RowEncoder: every notation of a value, compared with plain Python."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data.features.plan import Reading
from elastrec.platform.data.features.steps import MISSING_ID
from elastrec.platform.data.reading.encode import RowEncoder
from elastrec.platform.specs.errors import DataError
from tests.platform.data.rows import data


def _encode(values: pa.Array, feature: dict[str, object], **more: object) -> tuple[list[object], list[bool]]:
    of = data(Path(), dense=(), sparse=({"name": "f", **feature},))
    encoded = RowEncoder(of, **more).encode(pa.table({"f": values}), with_label=False)  # type: ignore[arg-type]
    assert encoded.batch.schema.names == ["f"]
    return encoded.batch.column("f").to_pylist(), encoded.bad_B.tolist()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(["0x1F", "0X5", "x", "5", " 5", "5.0", "+5", "-05", "", "1e3", str(2**63)]), max_size=5),
    st.integers(0, 3),
)
def test_text_is_an_integer_or_not_whatever_the_other_rows_hold(texts: list[str], skip: int) -> None:
    ids, bad = _encode(pa.array(texts, pa.string()).slice(skip), {})
    alone = [_encode(pa.array([text]), {}) for text in texts[skip:]]
    assert (ids, bad) == ([id_ for (id_,), _ in alone], [is_bad for _, (is_bad,) in alone])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
@pytest.mark.parametrize("encoding", ["integer", "hexadecimal"])
def test_text_that_is_not_utf8_is_a_bad_row(kind: pa.DataType, encoding: str) -> None:
    wide = pa.array([b"\xff5", b"6", None], pa.large_binary() if kind == pa.large_string() else pa.binary())
    values = pa.Array.from_buffers(kind, 3, wide.buffers())
    rows = pa.table({"f": values, "x": values})
    of = data(Path(), dense=({"name": "x", "transform": "none"},), sparse=({"name": "f", "encoding": encoding},))
    encoded = RowEncoder(of).encode(rows, with_label=False)
    assert encoded.bad_B.tolist() == [True, False, False]
    assert [mark.column for mark in encoded.marks] == ["x", "f"]
    assert "xff5" in encoded.bad_rows()[0].found
    assert encoded.batch.to_pylist()[1:] == [{"dense": [6.0], "f": 6}, {"dense": [0.0], "f": MISSING_ID}]


@pytest.mark.parametrize("others", [[], ["5"], [" 5"], ["5.0"]])
def test_hexadecimal_digits_are_no_integers(others: list[str]) -> None:
    assert _encode(pa.array(["0x1F", *others]), {})[1] == [True, *(False for _ in others)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.none(), st.text("0123456789abcdefABCDEFgx", max_size=18)), max_size=12), st.integers(0, 3))
def test_hexadecimal_ids_are_those_of_python(texts: list[str | None], skip: int) -> None:
    ids, bad = _encode(pa.array(texts, pa.string()).slice(skip), {"encoding": "hexadecimal"})
    for text, found, wrong in zip(texts[skip:], ids, bad, strict=True):
        fits = text is None or (len(text) <= 16 and "g" not in text and "x" not in text)
        assert wrong is not fits
        if not text:
            assert found == MISSING_ID
        elif fits:
            assert found == np.uint64(int(text, 16)).astype(np.int64)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.integers(0, 2**64 - 1)), min_size=1, max_size=20),
    st.integers(1, 16),
    st.integers(0, 5),
)
def test_texts_of_one_length_give_the_same_ids_in_the_fast_path(
    numbers: list[int | None], length: int, at: int
) -> None:
    texts = [None if n is None else f"{n % 16**length:0{length}x}" for n in numbers]
    expected = [MISSING_ID if t is None else int(np.uint64(int(t, 16)).astype(np.int64)) for t in texts]
    assert _encode(pa.array(texts, pa.string()), {"encoding": "hexadecimal"}) == (expected, [False] * len(numbers))
    texts[at % len(texts)] = "x" * length
    _, bad = _encode(pa.array(texts), {"encoding": "hexadecimal"})
    assert bad == [i == at % len(texts) for i in range(len(texts))]


def test_hidden_bytes_below_empty_fields_do_not_shift_the_others() -> None:
    whole = pa.array(["0000000a", "zzz", "0000000b"])
    masked = pa.StringArray.from_buffers(3, *whole.buffers()[1:], null_bitmap=pa.py_buffer(b"\x05"))
    assert _encode(masked, {"encoding": "hexadecimal"}) == ([10, MISSING_ID, 11], [False] * 3)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([5, None, -7], pa.int32()),
        pa.array([5.0, None, -7.0]),
        pa.array(["5.0", "", "-7"]),
        pa.array([" +5", None, "-7.00 "]),
        pa.array([b"5", None, b"-7"]),
        pa.array(["5", None, "-7"]).dictionary_encode(),
    ],
)
def test_integers_are_read_in_every_form(values: pa.Array) -> None:
    assert _encode(values, {}) == ([5, MISSING_ID, -7], [False] * 3)


def test_all_64_bits_of_unsigned_ids_count() -> None:
    top = 2**64 - 1
    assert _encode(pa.array([top, 1], pa.uint64()), {})[0] == [-1, 1]
    assert _encode(pa.array([str(top), None, "1.0", str(2**64)]), {}) == (
        [-1, MISSING_ID, 1, 0],
        [False, False, False, True],
    )


@pytest.mark.parametrize("value", [5.5, float("nan"), float("inf"), 1e300])
def test_a_float_that_is_not_an_exact_integer_is_bad(value: float) -> None:
    assert _encode(pa.array([1.0, value]), {})[1] == [False, True]


@pytest.mark.parametrize("as_dictionary", [False, True])
def test_text_ids_are_xxh3_of_their_utf8_bytes(as_dictionary: bool) -> None:
    values = pa.array(["Zürich", None, "a", "Zürich"])
    zurich, a = (np.uint64(xxhash.xxh3_64_intdigest(t.encode())).astype(np.int64) for t in ("Zürich", "a"))
    ids, bad = _encode(values.dictionary_encode() if as_dictionary else values, {"encoding": "string"})
    assert ids == [zurich, MISSING_ID, a, zurich] and not any(bad)


@pytest.mark.parametrize("as_dictionary", [False, True])
@pytest.mark.parametrize("encoding", ["integer", "hexadecimal", "string"])
def test_empty_text_is_missing_in_every_encoding(encoding: str, as_dictionary: bool) -> None:
    values = pa.array(["", "5", None])
    values = values.dictionary_encode() if as_dictionary else values
    ids, bad = _encode(values, {"encoding": encoding})
    assert (ids[0], ids[2], bad) == (MISSING_ID, MISSING_ID, [False] * 3) and ids[1] != MISSING_ID
    # As in a text file, where an empty field of a list is an empty list.
    lists, _ = _encode(pa.array(["", "5||5", None]), {"encoding": encoding, "is_list": True})
    assert lists == [[], [ids[1], ids[1]], []]


@pytest.mark.parametrize("encoding", ["integer", "hexadecimal", "string"])
@pytest.mark.parametrize("rows", [[None], [[]], [None, []], [[None]]])
def test_lists_that_are_all_empty_are_empty_in_every_encoding(encoding: str, rows: list[object]) -> None:
    # Their type is unknown, as in a request of one row.
    feature: dict[str, object] = {"encoding": encoding, "is_list": True}
    assert _encode(pa.array(rows), feature) == ([[]] * len(rows), [False] * len(rows))


def test_numbers_are_refused_where_the_encoding_needs_text() -> None:
    for encoding in ("hexadecimal", "string"):
        with pytest.raises(DataError, match=f"'f': found int64, expected text for the encoding {encoding}"):
            _encode(pa.array([1]), {"encoding": encoding})


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 99)), max_size=6)), max_size=8),
    st.integers(1, 4),
)
def test_lists_keep_their_last_ids_and_drop_empty_ones(lists: list[list[int | None] | None], most: int) -> None:
    expected = [[v % 10 for v in row or [] if v is not None][-most:] for row in lists]
    feature = {"is_list": True, "max_length": most}
    for kind in (pa.list_(pa.int64()), pa.large_list(pa.int32())):
        assert _encode(pa.array(lists, kind), feature, hash_sizes={"f": 10})[0] == expected
    texts = ["|".join("" if v is None else str(v) for v in row or []) for row in lists]
    assert _encode(pa.array(texts, pa.string()), feature, hash_sizes={"f": 10})[0] == expected


def test_a_hash_size_bounds_missing_and_negative_ids_too() -> None:
    ids, _ = _encode(pa.array([-1, None, 12]), {}, hash_sizes={"f": 10})
    assert ids == [9, MISSING_ID % 10, 2]


def test_dense_values_are_filled_then_transformed() -> None:
    of = data(
        Path(),
        dense=(
            {"name": "a"},
            {"name": "b", "transform": "none", "missing": -1.5},
            {"name": "c", "transform": "standardize", "mean": 10, "scale": 4},
        ),
        sparse=({"name": "f"},),
    )
    rows = pa.table(
        {"a": pa.array([3, -3, None]), "b": ["2.5", "", "1e2"], "c": pa.array([12.0, 10.0, 2.0]), "f": [1, 2, 3]}
    )
    encoded = RowEncoder(of).encode(rows, with_label=False)
    dense = np.array(encoded.batch.column("dense").to_pylist())
    expected = [[math.log1p(3), 2.5, 0.5], [-math.log1p(3), -1.5, 0.0], [0.0, 100.0, -2.0]]
    assert dense == pytest.approx(np.array(expected, np.float32))


_NUMBERS = (
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.float32(), pa.float64(),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(_NUMBERS),
    st.lists(st.one_of(st.none(), st.integers(0, 127)), max_size=40),
    st.integers(0, 11),
    st.sampled_from(["none", "log1p"]),
)
def test_numbers_of_every_width_are_read_in_place_with_their_empty_fields(
    kind: pa.DataType, numbers: list[int | None], skip: int, transform: str
) -> None:
    values = pa.array(numbers, kind).slice(skip)
    ids, bad = _encode(values, {})
    assert ids == [MISSING_ID if number is None else number for number in numbers[skip:]]
    assert not any(bad)
    dense = ({"name": "f", "missing": 3.0, "transform": transform},)
    of = data(Path(), dense=dense, sparse=({"name": "g"},))
    rows = pa.table({"f": values, "g": pa.nulls(len(values), pa.int64())})
    encoded = RowEncoder(of).encode(rows, with_label=False)
    filled = [3.0 if number is None else float(number) for number in numbers[skip:]]
    wanted = np.array([math.log1p(value) if transform == "log1p" else value for value in filled])
    np.testing.assert_allclose(np.asarray(encoded.batch.column("dense").flatten()), wanted, rtol=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_bad_in_every_reader(value: float) -> None:
    of = data(Path(), dense=({"name": "f"},), sparse=({"name": "g"},))
    rows = pa.table({"f": pa.array([1.0, None, value], pa.float64()), "g": [1, 2, 3]})
    encoded = RowEncoder(of).encode(rows, with_label=False)
    assert encoded.bad_B.tolist() == [False, False, True]
    assert encoded.first_bad is not None and encoded.first_bad.column == "f"


@pytest.mark.parametrize(
    ("feature", "largest", "too_large"),
    [
        ({"transform": "none"}, 3.4e38, 3.5e38),
        ({"transform": "none"}, -3.4e38, -1e300),
        ({"transform": "standardize", "scale": 1e-30}, 3e8, 1e9),
        ({"transform": "standardize", "scale": 1e-300}, 0.0, 1e300),
    ],
)
@pytest.mark.parametrize("written", [float, str])
@pytest.mark.filterwarnings("error")
def test_a_value_that_float32_cannot_hold_after_its_transform_is_bad(
    feature: dict[str, object], largest: float, too_large: float, written: type
) -> None:
    of = data(Path(), dense=({"name": "f", **feature},), sparse=({"name": "g"},))
    rows = pa.table({"f": [written(largest), written(too_large), None], "g": [1, 2, 3]})
    encoded = RowEncoder(of).encode(rows, with_label=False)
    assert encoded.bad_B.tolist() == [False, True, False]
    assert encoded.first_bad is not None and encoded.first_bad.column == "f"
    assert f"found {written(too_large)!r}, expected a number that fits into float32" in encoded.first_bad.reason
    assert np.isfinite(encoded.batch.column("dense").flatten()).all()


@pytest.mark.filterwarnings("error")
def test_the_logarithm_of_any_finite_number_fits_into_float32() -> None:
    of = data(Path(), dense=({"name": "f"},), sparse=({"name": "g"},))
    encoded = RowEncoder(of).encode(pa.table({"f": [1e308, -1e308], "g": [1, 2]}), with_label=False)
    assert encoded.first_bad is None
    assert encoded.batch.column("dense").to_pylist() == [[pytest.approx(709.196)], [pytest.approx(-709.196)]]


def test_a_missing_column_is_named_beside_those_found() -> None:
    with pytest.raises(DataError, match="column 'f' is missing; found: g"):
        RowEncoder(data(Path(), dense=(), sparse=({"name": "f"},))).encode(pa.table({"g": [1]}), with_label=False)


def test_twice_the_features_are_planned_with_twice_the_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, equal = 0, Reading.__eq__

    def counting(self: Reading, other: object) -> bool:
        nonlocal compared
        compared += 1
        return equal(self, other)

    monkeypatch.setattr(Reading, "__eq__", counting)
    for features in (100, 200):
        compared = 0
        RowEncoder(data(Path(), dense=(), sparse=tuple({"name": f"f{i}"} for i in range(features))))
        assert compared <= 10 * features
