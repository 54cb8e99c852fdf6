"""The order of changes to a folder: after a power loss at any time, a record is complete or does not exist."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastrec.checkpoints.answers import answer
from elastrec.checkpoints.catalog import prune
from elastrec.checkpoints.commit import commit_record, new_record_uri
from elastrec.checkpoints.manifest import MANIFEST
from elastrec.checkpoints.parts import PartWriter
from elastrec.checkpoints.stores.store import open_store
from elastrec.platform.specs.job import TrainingJob


class Effects:
    """What is done to files and folders of a place, in order: (verb, name), names relative to the place."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.done: list[tuple[str, str]] = []
        originals = {name: getattr(os, name) for name in ("fsync", "replace", "rename", "link", "unlink")}

        def fsync(descriptor: int) -> None:
            originals["fsync"](descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            self._note("synchronise folder" if is_folder else "synchronise", path)

        def moving(verb: str) -> Callable[..., None]:
            def move(source: Any, target: Any, **arguments: Any) -> None:
                originals[verb](source, target, **arguments)
                self._note("move", Path(source), Path(target))

            return move

        def unlink(path: Any, **arguments: Any) -> None:
            originals["unlink"](path, **arguments)
            if "dir_fd" not in arguments:
                self._note("delete", Path(path))

        def rmtree(path: Any, **arguments: Any) -> None:
            self._note("delete tree", Path(path))
            removed(path, **arguments)

        removed = shutil.rmtree
        monkeypatch.setattr(os, "fsync", fsync)
        for verb in ("replace", "rename", "link"):
            monkeypatch.setattr(os, verb, moving(verb))
        monkeypatch.setattr(os, "unlink", unlink)
        monkeypatch.setattr(shutil, "rmtree", rmtree)

    def _note(self, verb: str, *paths: Path) -> None:
        if all(path.is_relative_to(self.root) for path in paths):
            self.done.append((verb, " -> ".join(str(path.relative_to(self.root)) for path in paths)))

    def check_created(self, name: str) -> int:
        """The bytes of a file, then its name, then its folder are on disk. Returns when it was whole."""
        (moved,) = [at for at, (verb, what) in enumerate(self.done) if verb == "move" and what.endswith(f" -> {name}")]
        temporary = self.done[moved][1].split(" -> ")[0]
        assert ("synchronise", temporary) in self.done[:moved], f"{name} has its name before its bytes are on disk"
        folder = ("synchronise folder", str(Path(name).parent))
        assert folder in self.done[moved:], f"the name of {name} is not on disk"
        return moved + self.done[moved:].index(folder)


@pytest.fixture
def effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Effects:
    return Effects(tmp_path, monkeypatch)


def save(root: Path, job: TrainingJob, step: int) -> str:
    uri = new_record_uri(str(root), job.metadata.name, "clicks-1", step)
    open_store(root).create()
    groups = [answer(job.spec.data.tables, range(256))]
    writer = PartWriter(uri, "ps-0", groups=groups, dense_ranges=[(0, 4)], generation=1)
    writer.write_dense("w", (4,), 0, {"value": np.zeros(4, np.float32)})
    commit_record(
        uri, [writer.finish()], b"{}", job=job, job_id="clicks-1", kind="periodic", step=step, generation=1
    )  # fmt: skip
    return uri


def test_every_file_of_a_record_is_on_disk_before_its_manifest_is_there(
    tmp_path: Path, effects: Effects, make_job: Callable[..., TrainingJob]
) -> None:
    folder = Path(save(tmp_path, make_job(), 1).removeprefix("file://")).relative_to(tmp_path)
    names = [str(path.relative_to(tmp_path / folder)) for path in (tmp_path / folder).rglob("*") if path.is_file()]
    assert len(names) == 3 and MANIFEST in names
    whole = {name: effects.check_created(str(folder / name)) for name in names}
    manifest_moved = next(at for at, (_, what) in enumerate(effects.done) if what.endswith(f"/{MANIFEST}"))
    assert all(at < manifest_moved for name, at in whole.items() if name != MANIFEST)


def test_the_folders_of_a_first_record_are_on_disk(
    tmp_path: Path, effects: Effects, make_job: Callable[..., TrainingJob]
) -> None:
    folder = Path(save(tmp_path / "new" / "store", make_job(), 1).removeprefix("file://"))
    while folder != tmp_path:
        folder = folder.parent
        assert ("synchronise folder", str(folder.relative_to(tmp_path))) in effects.done


def test_a_record_that_is_pruned_loses_its_manifest_first_and_durably(
    tmp_path: Path, effects: Effects, make_job: Callable[..., TrainingJob]
) -> None:
    old, _ = (save(tmp_path, make_job(), step) for step in (1, 2))
    folder = Path(old.removeprefix("file://")).relative_to(tmp_path)
    effects.done.clear()
    assert prune(str(tmp_path), "clicks", "clicks-1", keep=1) == [old]
    assert effects.done[:3] == [
        ("delete", str(folder / MANIFEST)),
        ("synchronise folder", str(folder)),
        ("delete tree", str(folder)),
    ]
    assert ("synchronise folder", str(folder.parent)) in effects.done[3:]
