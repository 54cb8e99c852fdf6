from __future__ import annotations

import gc
import subprocess
import sys
import textwrap

import pytest

from elastrec.trainers.imports import without_collector
from elastrec.trainers.parameter_server import warm_up


def test_the_collector_works_again_after_the_imports() -> None:
    with pytest.raises(ImportError), without_collector():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()


def test_the_collector_works_while_a_server_compiles_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[bool] = []
    slabs = warm_up._warm_slabs
    monkeypatch.setattr(warm_up, "_warm_slabs", lambda *of: (states.append(gc.isenabled()), slabs(*of)))
    warm_up.warm_kernels()
    assert states and all(states)


def run(code: str) -> list[str]:
    """The lines that Python writes when it runs `code` in a process that has imported nothing of torchrec's."""
    process = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def test_the_rest_of_torchrec_is_loaded_when_a_model_asks_for_it_and_not_before() -> None:
    before, shared, unknown, by_name, by_import = run("""
        import os, sys
        from elastrec.trainers import check  # postpones
        from elastrec.trainers.export import embeddings
        from elastrec.trainers.models import dcn_v2, deepfm, dlrm, mmoe
        from elastrec.trainers.worker import process
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        def rest():
            return [name for name in ("torchrec.distributed", "tensordict", "torch._dynamo") if name in sys.modules]

        import torchrec, torchrec.modules
        getattr(torchrec, "__warningregistry__", None)  # as unittest asks every module
        print(rest(), flush=True)
        import tensordict  # which the rest imports, and which imports torch._dynamo: once, not in both processes
        print(rest(), flush=True)
        if os.fork() == 0:
            print(hasattr(torchrec, "no_such_name"), hasattr(torchrec.modules, "no_such_name"))
            from torchrec.modules import embedding_modules
            print(torchrec.EmbeddingBagCollection is embedding_modules.EmbeddingBagCollection, len(rest()))
            sys.exit()
        os.wait()
        # Its modules and those of torchrec.distributed import each other, which only torchrec's own order survives.
        import torchrec.quant
        print(torchrec.KeyedJaggedTensor is KeyedJaggedTensor, len(rest()))
    """)
    assert (before, shared) == ("[]", "['tensordict', 'torch._dynamo']")
    assert (unknown, by_name, by_import) == ("False False", "True 3", "True 3")


@pytest.mark.parametrize(("program", "module"), [("worker", "process"), ("export", "pod")])
def test_the_program_of_a_pod_postpones_torchrec(program: str, module: str) -> None:
    done = run(f"""
        import importlib, sys, types
        process = sys.modules["elastrec.trainers.{program}.{module}"] = types.ModuleType("stands in for the pod's work")
        process.main = process.run_worker = lambda *_: 0
        main = importlib.import_module("elastrec.trainers.{program}.__main__")
        if "{program}" == "worker":
            main.Identity.read = lambda: None
        assert main.main() == 0
        import torchrec
        print("torch" in sys.modules)
    """)
    assert done == ["False"]
