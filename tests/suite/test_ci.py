"""`.ci/run` fails if a browser or Java is missing and cannot be installed; otherwise it runs the tests with both."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# `apt-get install` puts a program with the name of the package's command there.
_APT = '#!/bin/bash\necho "apt-get $*"\nfor name in chromium java; do [[ "$*" == *$name* || "$*" == *jre* ]] && '
_APT += 'printf "#!/bin/bash" > "$PROGRAMS/$name" && chmod +x "$PROGRAMS/$name"; done; true\n'


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """All that is installed: a shell, and a `make` that prints its target; with a copy of `.ci/run` beside it."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("bash", "dirname", "chmod"):
        (folder / name).symlink_to(str(shutil.which(name)))
    script(folder / "make", 'echo "make $*"')
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    script(tmp_path / ".ci" / "wheel", "echo wheel")
    return folder


def script(file: Path, body: str) -> None:
    file.write_text(body if body.startswith("#!") else f"#!{shutil.which('bash')}\n{body}\n")
    file.chmod(0o755)


def run(programs: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": str(programs), "PROGRAMS": str(programs)}
    command = [str(programs / "bash"), str(programs.parent / ".ci" / "run")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("missing", ["chromium", "java"])
def test_without_a_browser_or_java_and_the_right_to_install_it_nothing_is_tested(missing: str, programs: Path) -> None:
    for name in {"chromium", "java"} - {missing}:
        script(programs / name, "")
    script(programs / "apt-get", _APT)
    script(programs / "id", "echo 1000")
    done = run(programs)
    assert done.returncode == 1 and f"no {missing}, and no rights to install it" in done.stderr
    assert "make" not in done.stdout


def test_missing_packages_are_installed_and_all_tests_run(programs: Path) -> None:
    script(programs / "apt-get", _APT)
    script(programs / "id", "echo 0")
    done = run(programs)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (programs / "chromium").exists() and (programs / "java").exists()
    targets = [line.removeprefix("make ") for line in done.stdout.splitlines() if line.startswith("make ")]
    assert targets == ["setup", "lint", "test", "spark"]


def test_present_packages_are_not_installed_again(programs: Path) -> None:
    for name in ("chromium", "java"):
        script(programs / name, "")
    done = run(programs)
    assert done.returncode == 0, "apt-get, which is not there, was called: " + done.stderr
