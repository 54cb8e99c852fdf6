"""Amounts of bytes, cores and seconds as written in a job file; the type of a field determines the unit.

In Python, an amount is a plain number in its base unit (bytes, cores, seconds); suffixes exist only in text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from elastrec.platform.specs.errors import FieldProblem, SpecError

Amount = TypeVar("Amount")

_BYTES = {
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
_BYTES_AS_READ = {**_BYTES, **{f"{unit}B": size for unit, size in _BYTES.items() if unit.endswith("i")}}
"""Includes the units of IEC 80000-13, such as GiB, which are unambiguous. GB is refused, because it is often used for
GiB."""
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_SPELT_BYTES = {spelt.lower(): unit for unit in _BYTES for spelt in (unit, f"{unit}B")}
_SPELT_SECONDS = {
    **dict.fromkeys(("millisecond", "milliseconds", "msec"), "ms"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
}
_SPELT_CORES = {
    **dict.fromkeys(("core", "cores", "cpu", "cpus"), ""),
    **dict.fromkeys(("millicore", "millicores"), "m"),
}

_BYTES_PATTERN = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|(Ki|Mi|Gi|Ti)B?)$"
_SECONDS_PATTERN = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h|d)$"
_CORES_PATTERN = r"^[0-9]+(\.[0-9]+)?m?$"


class AmountError(ValueError):
    """The text is not a valid amount.

    Attributes:
        remedy: the amount that was probably meant; empty where none is near.
    """

    def __init__(self, allowed: str, meant: str | None = None) -> None:
        super().__init__(allowed)
        self.remedy = f"did you mean {meant}?" if meant else ""


def parsed(field: str, text: Any, parse: Callable[[Any], Amount], where: str) -> Amount:
    """Parses an amount that a user has given.

    Args:
        parse: raises a ValueError that says what is allowed.
        where: the text stands, such as "the command line".

    Raises:
        SpecError: it is none; the field is named.
    """
    try:
        return parse(text)
    except ValueError as error:
        problem = FieldProblem(field, repr(text), str(error), getattr(error, "remedy", ""))
        raise SpecError([problem], where) from None


def _meant(value: Any, spellings: dict[str, str]) -> str | None:
    """The amount with the correct spelling of its unit; None if the text is not a number with a known unit."""
    match = re.match(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*$", value) if isinstance(value, str) else None
    unit = spellings.get(match.group(2).lower()) if match else None
    return f"{match.group(1)}{unit}" if match and unit is not None else None


_MOST_BYTES = 2**63 - 1


def parse_bytes(value: Any) -> int:
    """Bytes from `512Mi`, `2Gi`, `2GiB` or `1.5G`, or a whole number of bytes.

    Raises:
        ValueError: another unit (`MB`, `gib`), a negative number, more than messages can contain, or text that is no
            amount.
    """
    if isinstance(value, bool):
        raise ValueError("an amount of memory such as 512Mi or 2Gi")
    amount: float | None = value if isinstance(value, int) else None
    if isinstance(value, str) and re.match(_BYTES_PATTERN, value):
        number, unit = re.match(r"^([0-9.]+)([A-Za-z]+)$", value).groups()  # type: ignore[union-attr]
        amount = float(number) * _BYTES_AS_READ[unit]
    if amount is not None:
        if amount > _MOST_BYTES:
            raise ValueError(f"an amount of memory such as 512Mi or 2Gi, at most {_MOST_BYTES} bytes")
        return int(amount)
    allowed = "an amount of memory such as 512Mi or 2Gi (units k, M, G, T, Ki, Mi, Gi, Ti, KiB, MiB, GiB, TiB)"
    raise AmountError(allowed, _meant(value, _SPELT_BYTES))


def parse_seconds(value: Any) -> float:
    """Seconds from `30s`, `5m`, `1.5h`, `250ms`, `1d`, or a number of seconds.

    Raises:
        ValueError: text without a known unit.
    """
    if isinstance(value, bool):
        raise ValueError("a duration such as 30s or 5m")
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str) and re.match(_SECONDS_PATTERN, value):
        number, unit = re.match(r"^([0-9.]+)([a-z]+)$", value).groups()  # type: ignore[union-attr]
        return float(number) * _SECONDS[unit]
    raise AmountError("a duration such as 30s or 5m (units ms, s, m, h, d)", _meant(value, _SPELT_SECONDS))


def parse_cores(value: Any) -> float:
    """Cores from a number or a Kubernetes CPU quantity (`500m` is half a core).

    Raises:
        ValueError: text that is no CPU quantity.
    """
    if isinstance(value, bool):
        raise ValueError("a number of cores such as 2, 0.5 or 500m")
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str) and re.match(_CORES_PATTERN, value):
        return float(value[:-1]) / 1000 if value.endswith("m") else float(value)
    raise AmountError("a number of cores such as 2, 0.5 or 500m", _meant(value, _SPELT_CORES))


def format_bytes(amount: int) -> str:
    """The shortest exact Kubernetes quantity of a number of bytes."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if amount and amount % _BYTES[unit] == 0:
            return f"{amount // _BYTES[unit]}{unit}"
    return str(amount)


def _written(amount: int) -> str | int:
    """The text of an amount, or the number itself where its text would have no unit, which `parse_bytes` refuses."""
    text = format_bytes(amount)
    return amount if text.isdecimal() else text


def _quantity_schema(kind: str, pattern: str, example: str) -> dict[str, Any]:
    # int-or-string is Kubernetes' own way to type quantities in a CRD.
    return {
        "anyOf": [{"type": kind}, {"type": "string", "pattern": pattern}],
        "x-kubernetes-int-or-string": True,
        "examples": [example],
    }


SMALLEST_MEMORY_BYTES = 16 * 2**20
"""No pod can start with less. Sizes without a unit, such as `2`, are below this limit, too."""


SMALLEST_CORES = 0.01
"""No pod can be limited to less: Linux gives a group of processes at least 1 ms of CPU time in a period of 100 ms
(`Documentation/scheduler/sched-bwc.rst`)."""
SHORTEST_TIMEOUT_SECONDS = 1.0
"""A process that is well may not answer for this long, for example because another one uses its cores."""


def _enough_memory(amount: int) -> int:
    if amount < SMALLEST_MEMORY_BYTES:
        raise ValueError(f"at least {format_bytes(SMALLEST_MEMORY_BYTES)}; write the unit, for example 2Gi")
    return amount


def _enough_cores(amount: float) -> float:
    if amount < SMALLEST_CORES:
        raise ValueError(f"at least {SMALLEST_CORES:g}; write m only for thousandths of a core, for example 500m")
    return amount


def _enough_seconds(amount: float) -> float:
    if amount < SHORTEST_TIMEOUT_SECONDS:
        raise ValueError(f"at least {SHORTEST_TIMEOUT_SECONDS:g}s")
    return amount


Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    Field(ge=0),
    PlainSerializer(_written, return_type=str | int, when_used="json"),
    WithJsonSchema(_quantity_schema("integer", _BYTES_PATTERN, "2Gi")),
]
Memory = Annotated[Bytes, AfterValidator(_enough_memory)]
"""Memory of a pod."""
Cores = Annotated[
    float,
    BeforeValidator(parse_cores),
    AfterValidator(_enough_cores),
    WithJsonSchema(_quantity_schema("number", _CORES_PATTERN, "500m")),
]
"""Cores of a pod."""
CoresOrNone = Annotated[
    float,
    BeforeValidator(parse_cores),
    Field(ge=0, le=10_000),
    WithJsonSchema(_quantity_schema("number", _CORES_PATTERN, "500m")),
]
"""A limit; 0 means no limit."""
Seconds = Annotated[
    float,
    BeforeValidator(parse_seconds),
    Field(ge=0),
    WithJsonSchema(_quantity_schema("number", _SECONDS_PATTERN, "30s")),
]
Timeout = Annotated[Seconds, AfterValidator(_enough_seconds)]
"""Time after which something that did not happen counts as failed."""
