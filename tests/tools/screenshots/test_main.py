from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from elastrec.platform.specs.errors import DataError
from tools.screenshots import __main__ as screenshots
from tools.stack import demo


def test_the_click_log_is_that_of_the_demo() -> None:
    options = [*demo.main.params, *screenshots.main.params]
    rows = [option.default for option in options if option.name == "rows_per_day"]
    assert rows == [demo.ROWS_PER_DAY] * 2


def test_another_click_log_in_the_home_is_a_message_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise DataError("clicks: was generated with another spec.rows_per_day 10 (now 20)")

    monkeypatch.setattr(screenshots.shutil, "which", lambda _: "chromium")
    monkeypatch.setattr(screenshots, "make_clicks", refuse)
    monkeypatch.setattr(screenshots.signal, "signal", lambda *_: None)
    found = CliRunner().invoke(screenshots.main, ["--home", str(tmp_path), "--output", str(tmp_path)])
    assert found.exit_code == 1 and isinstance(found.exception, SystemExit)
    assert "no pictures were taken: clicks: was generated with another spec.rows_per_day" in str(found.output)
