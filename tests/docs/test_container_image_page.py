"""The Dockerfile on the page about images runs with what the package has."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from elastrec.platform.clusters.local.processes import pod_environment
from elastrec.platform.master.pods import launch
from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "container_image.md").read_text(encoding="utf-8")
[DOCKERFILE] = re.findall(r"```dockerfile\n(.*?)```", PAGE, re.DOTALL)
INSTRUCTIONS = [line.split(maxsplit=1) for line in DOCKERFILE.replace("\\\n", " ").splitlines() if line]
PROGRAMS = re.findall(r'python -c "(.*?)"', DOCKERFILE)


def test_the_kernels_of_servers_and_workers_are_compiled_by_programs_that_run(tmp_path: Path) -> None:
    assert len(PROGRAMS) == 2
    for program in PROGRAMS:
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [rest for kind, rest in INSTRUCTIONS if kind == "RUN"])
def test_commands_are_shell_that_sh_accepts(command: str) -> None:
    subprocess.run(["sh", "-n", "-c", command], check=True)


def test_the_variables_of_the_image_reach_the_pods_of_a_node_agent_in_it() -> None:
    names = [name for kind, rest in INSTRUCTIONS if kind == "ENV" for name in re.findall(r"(\w+)=", rest)]
    assert "NUMBA_CACHE_DIR" in names
    assert set(names) <= pod_environment._PASSED


def test_what_the_page_names_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(re.findall(r"--extra (\w+)", PAGE)) == {"gcs", "azure"}
    assert {"gcs", "azure"} <= set(project["project"]["optional-dependencies"])
    assert f"python:{sys.version_info.major}.{sys.version_info.minor}-slim" in DOCKERFILE
    assert "fbgemm-gpu ; sys_platform == 'never'" in project["tool"]["uv"]["override-dependencies"]
    assert (ROOT / "requirements.lock").is_file()
    modules = ["elastrec.platform.master", *launch._MODULE.values()]
    assert [module for module in modules if f"{module}`" not in PAGE] == []
