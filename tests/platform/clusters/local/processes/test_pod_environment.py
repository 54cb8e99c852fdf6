"""What a local pod inherits from the node agent's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastrec.platform.clusters.local.processes.pod_environment import pod_environment
from elastrec.platform.clusters.pods import PodSize, PodSpec
from elastrec.platform.specs.metrics import Role

KERNELS = {
    "NUMBA_CACHE_DIR": "/opt/elastrec/kernels",
    "NUMBA_CPU_NAME": "x86-64-v3",
    "NUMBA_CPU_FEATURES": "",
    "XDG_CACHE_HOME": "/var/cache/user",
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_pod_gets_what_decides_where_its_compiled_kernels_are_and_for_which_processor(name: str) -> None:
    spec = PodSpec(name="pod", job="job", role=Role.WORKER, command=("python",), size=PodSize(1.0, 1 << 30))
    inherited = {**KERNELS, "SOMETHING_ELSE": "of the agent"}
    variables = pod_environment(
        spec, size=spec.size, node="node", port=0, files=Path("/f"), work=Path("/w"), ready=None, inherited=inherited
    )
    assert variables[name] == KERNELS[name]
    assert "SOMETHING_ELSE" not in variables
