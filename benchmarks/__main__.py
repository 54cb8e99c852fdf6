"""Runs benchmarks by name: `python -m benchmarks NAME [options]`; `all` runs every one, no name lists them.

`python -m benchmarks NAME --help` describes one with its options.
`--save` stores figures in `benchmarks/results/`; `python -m benchmarks.common.figures_page` writes their page.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

from benchmarks.common.names import benchmarks


def command(file: Path) -> list[str]:
    """The function that runs the benchmark of a module."""
    return [sys.executable, "-m", f"benchmarks.{file.parent.name}.{file.stem}"]


def summary(file: Path) -> str:
    """The first paragraph of a benchmark's docstring, in one line."""
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(docstring.split("\n\n", 1)[0].split())


def run_all(known: dict[str, Path], options: list[str]) -> int:
    """Runs every benchmark, also after one that cannot measure here, for example without TensorFlow or control groups.

    Args:
        options: the common ones of all benchmarks.

    Returns:
        1 if one of them ended with an error, after naming those.
    """
    failed = []
    for name, file in known.items():
        print(f"== {name}", flush=True)
        if subprocess.run([*command(file), *options], check=False).returncode:
            failed.append(name)
    if failed:
        print("without figures:", *failed)
    return 1 if failed else 0


def main(arguments: list[str]) -> int:
    known = benchmarks()
    asks_for_help = arguments[:1] in (["-h"], ["--help"])
    if not arguments or asks_for_help:
        if asks_for_help:
            print(__doc__)
        for name, file in known.items():
            print(textwrap.fill(summary(file), 120, initial_indent=f"{name:24} ", subsequent_indent=" " * 25))
        return 0
    name, *options = arguments
    if name == "all":
        return run_all(known, options)
    if name not in known:
        print(f"{name!r} is no benchmark; allowed: all, {', '.join(known)}", file=sys.stderr)
        return 2
    return subprocess.run([*command(known[name]), *options], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
