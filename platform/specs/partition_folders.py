"""PartitionFolders: the pattern of a click log's folder names, which contain the day and the hour. Does not list
folders."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

DAY_PATTERN = "day=%Y-%m-%d"
HOUR_PATTERN = f"{DAY_PATTERN}/hour=%H"
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""The name that Hive and Spark write for an empty value of a key."""

# Without a leading zero the folder's name would not follow from the day, so `-` allows none.
_DIRECTIVES = {
    "%Y": ("year", r"\d{4}"),
    "%m": ("month", r"\d{2}"), "%-m": ("month", r"[1-9]\d?"),
    "%d": ("day", r"\d{2}"), "%-d": ("day", r"[1-9]\d?"),
    "%H": ("hour", r"\d{2}"), "%-H": ("hour", r"0|[1-9]\d?"),
}  # fmt: skip
_TOKEN = re.compile(r"%-?[A-Za-z%]|%")
_ALLOWED = "%Y, %m, %d, %H, and %-m, %-d, %-H without a leading zero"


@dataclass(frozen=True)
class Level:
    """One level of folders.

    Attributes:
        text: as the pattern has it.
        prefix: how the names of its folders begin.
        names: matches whole names; parts of a date are named groups.
        is_fixed: whether `text` is the only name.
    """

    text: str
    prefix: str
    names: re.Pattern[str]
    is_fixed: bool

    @property
    def is_any(self) -> bool:
        """Whether the level is a key with any value, `country=*`."""
        return self.text.endswith("=*")


class PartitionFolders:
    """Maps folders below the log's root to partitions.

    Args:
        pattern: levels separated by `/`, each of fixed text, text with strftime directives, or `key=*`.
        has_hours: whether a partition is an hour.

    Raises:
        ValueError: the pattern is none, or does not say exactly the parts of a day (and hour).
    """

    def __init__(self, pattern: str, *, has_hours: bool) -> None:
        self.pattern = pattern
        self.levels = tuple(_level(text) for text in pattern.split("/"))
        named = {name for level in self.levels for name in level.names.groupindex}
        expected = {"year", "month", "day"} | ({"hour"} if has_hours else set())
        if named != expected:
            says = " ".join(sorted(named)) or "nothing"
            allowed = "%Y, %m, %d and %H" if has_hours else "%Y, %m and %d"
            unit = "hour" if has_hours else "day"
            raise ValueError(f"a pattern that holds {allowed}, as partitioning: {unit} needs; this one says {says}")
        if not self.levels[-1].names.groupindex:
            raise ValueError("a pattern whose last level says the day or hour: folders below it are found anyway")

    def path(self, day: date, hour: int) -> str:
        """The folder below the root; levels with `*` stay as they are."""
        parts = {"year": day.year, "month": day.month, "day": day.day, "hour": hour}

        def written(found: re.Match[str]) -> str:
            value = parts[_DIRECTIVES[found[0]][0]]
            return str(value) if "-" in found[0] else f"{value:0{4 if found[0] == '%Y' else 2}d}"

        return _TOKEN.sub(written, self.pattern)

    def read(self, names: tuple[str, ...]) -> tuple[date, int]:
        """The day and hour (-1: none) that the names of one folder per level say.

        Raises:
            ValueError: a name does not match, there is no such day or hour, or two names say different ones.
        """
        parts: dict[str, int] = {}
        for level, name in zip(self.levels, names, strict=True):
            match = level.names.fullmatch(name)
            if match is None:
                raise ValueError(f"{name} is not of the form {level.text}")
            for part, text in match.groupdict().items():
                if parts.setdefault(part, int(text)) != int(text):
                    raise ValueError(f"the {part} {text} differs from {parts[part]} above it")
        hour = parts.get("hour", -1)
        if hour > 23:
            raise ValueError(f"there is no hour {hour}")
        return date(parts["year"], parts["month"], parts["day"]), hour

    def keys(self, path: str) -> dict[str, str | None]:
        """The values of Hive keys, `key=value`, in the folders of a path below the root, without days and hours.

        Args:
            path: of a folder, relative to the root.

        Returns:
            Values by key; None for Hive's name of an empty value.
        """
        names = path.split("/")
        timed = {index for index, level in enumerate(self.levels) if level.names.groupindex}
        return hive_keys("/".join(name for index, name in enumerate(names) if index not in timed))

    def __str__(self) -> str:
        return self.pattern


@lru_cache(maxsize=16)
def partition_folders(pattern: str, *, has_hours: bool) -> PartitionFolders:
    """`PartitionFolders`, made once for each pattern."""
    return PartitionFolders(pattern, has_hours=has_hours)


def hive_keys(path: str) -> dict[str, str | None]:
    """The values of all folders `key=value` of a path; Hive writes some characters as `%3A`."""
    from urllib.parse import unquote

    pairs = (name.partition("=") for name in path.split("/"))
    return {key: None if value == HIVE_NULL else unquote(value) for key, sign, value in pairs if sign and key}


def _level(text: str) -> Level:
    if not text or text in (".", ".."):
        raise ValueError(f"folder names separated by single /, none of them empty; found {text!r}")
    if text.endswith("=*") and "*" not in text[:-1] and "%" not in text:
        return Level(text, text[:-1], re.compile(re.escape(text[:-1]) + ".*"), False)
    if "*" in text:
        raise ValueError(f"* as the whole value of a key, as in country=*; found {text!r}")
    pattern, at, keys = "", 0, set[str]()
    for token in _TOKEN.finditer(text):
        if token[0] not in _DIRECTIVES:
            raise ValueError(f"the directives {_ALLOWED}; found {token[0]}")
        name, digits = _DIRECTIVES[token[0]]
        pattern += re.escape(text[at : token.start()])
        pattern += f"(?P={name})" if name in keys else f"(?P<{name}>{digits})"
        keys.add(name)
        at = token.end()
    prefix = text if not keys else text[: text.index("%")]
    return Level(text, prefix, re.compile(pattern + re.escape(text[at:])), not keys)
