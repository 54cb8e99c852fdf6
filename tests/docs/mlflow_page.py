"""The table of metrics in docs/mlflow.md, from `metric_names`. `python -m tests.docs.mlflow_page` generates it."""

from __future__ import annotations

from pathlib import Path

from elastrec.platform.history.metric_names import DESCRIPTIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mlflow.md"
_BEGIN, _END = "<!-- metrics -->\n", "<!-- end of metrics -->"


def render() -> str:
    """The page with today's table."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    rows = [f"| `{name}` | {meaning} |" for name, meaning in DESCRIPTIONS.items()]
    return before + _BEGIN + "\n".join(["| metric | meaning |", "|---|---|", *rows]) + "\n" + _END + after


if __name__ == "__main__":
    PAGE.write_text(render())
