"""The contract of stores, on a folder, an S3 server, and the available servers of `tools.stores`."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from fsspec.implementations.webhdfs import WebHDFile

from elastrec.checkpoints import DamagedRecordError, StoreError, expect_existing_stores, open_record
from elastrec.checkpoints.stores import local_store, s3_store
from elastrec.checkpoints.stores import store as store_module
from elastrec.checkpoints.stores.s3_store import UPLOAD_PART_BYTES, UPLOADS_SIDE_BY_SIDE, S3Store
from elastrec.checkpoints.stores.store import Store, open_store
from elastrec.platform.specs.errors import CheckpointError


def test_an_object_is_read_back_whole_and_by_range(store: Store) -> None:
    store.put("a/b.bin", b"0123456789")
    assert store.get("a/b.bin") == b"0123456789"
    assert store.get_range("a/b.bin", 3, 4) == b"3456"
    assert store.get_range("a/b.bin", 3, 0) == b""
    assert store.size("a/b.bin") == 10
    assert store.exists("a/b.bin") and not store.exists("a/c.bin")


def test_a_missing_object_is_an_error_that_names_it(store: Store) -> None:
    with pytest.raises(CheckpointError, match=r"a/nothing\.bin"):
        store.get("a/nothing.bin")
    with pytest.raises(CheckpointError, match=r"a/nothing\.bin"):
        store.get_range("a/nothing.bin", 0, 1)
    assert store.size("a/nothing.bin") is None
    assert store.get_if_exists("a/nothing.bin") is None


@pytest.mark.parametrize("start", [1, 3, 100])
def test_a_range_beyond_the_end_is_an_error_of_the_object_and_not_of_the_store(store: Store, start: int) -> None:
    store.put("short", b"abc")
    with pytest.raises(CheckpointError, match="short") as caught:
        store.get_range("short", start, 10)
    assert not isinstance(caught.value, StoreError)


def test_a_stream_of_several_upload_parts_arrives_in_order(store: Store) -> None:
    pieces = [bytes([number]) * (UPLOAD_PART_BYTES // 3 + number) for number in range(7)]
    with store.open_write("large") as writer:
        for piece in pieces:
            writer.write(piece)
    assert store.get("large") == b"".join(pieces)


def test_the_unfinished_object_of_a_killed_writer_is_no_key_and_can_be_dropped(store: Store) -> None:
    with store.open_write("folder/whole") as writer:
        writer.write(b"1")
    store.open_write("folder/killed").write(bytes(UPLOAD_PART_BYTES))
    assert store.keys() == ["folder/whole"]
    unfinished = store.unfinished("folder")
    assert all(key.startswith("folder/") for key in unfinished)
    if store.uri.startswith(("file:", "s3:", "webhdfs:")):
        assert len(unfinished) == 1
    store.delete_unfinished("folder")
    assert store.unfinished("folder") == [] and store.keys() == ["folder/whole"]


def test_the_next_writer_of_an_object_deletes_what_a_killed_one_has_left_of_it_and_of_no_other(store: Store) -> None:
    for key in ("folder/put", "folder/put-more", "folder/created"):
        store.open_write(key).write(bytes(UPLOAD_PART_BYTES))
    store.put("folder/put", b"1")
    assert store.put_if_absent("folder/created", b"2")
    left = store.unfinished("folder")
    if store.uri.startswith(("file:", "webhdfs:")):
        assert len(left) == 1 and "put-more" in left[0]
    # One that was killed after it had created the object.
    store.open_write("folder/created").write(bytes(UPLOAD_PART_BYTES))
    assert not store.put_if_absent("folder/created", b"3")
    assert store.unfinished("folder") == left
    assert store.keys() == ["folder/created", "folder/put"]
    assert store.get("folder/created") == b"2"


def test_of_two_that_put_an_object_at_once_neither_fails_and_the_later_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, synchronise = open_store(tmp_path), local_store._LocalWriter.synchronise

    def meets_another(writer: local_store._LocalWriter) -> Path:
        monkeypatch.setattr(local_store._LocalWriter, "synchronise", synchronise)
        store.put("result", b"earlier")  # and drops the file of this one
        return synchronise(writer)

    monkeypatch.setattr(local_store._LocalWriter, "synchronise", meets_another)
    store.put("result", b"later")
    assert store.get("result") == b"later"

    def creates_meanwhile(writer: local_store._LocalWriter) -> Path:
        monkeypatch.setattr(local_store._LocalWriter, "synchronise", synchronise)
        assert store.put_if_absent("term", b"first")
        return synchronise(writer)

    monkeypatch.setattr(local_store._LocalWriter, "synchronise", creates_meanwhile)
    assert not store.put_if_absent("term", b"second")
    assert store.get("term") == b"first" and not store.unfinished()


@pytest.mark.services
@pytest.mark.parametrize("moment", ["_initiate_upload", "_upload_chunk"], ids=["made", "written"])
def test_of_two_that_put_an_object_into_hdfs_at_once_neither_fails_and_the_later_one_stays(
    webhdfs_uri: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    store, done = open_store(webhdfs_uri), getattr(WebHDFile, moment)

    def after_it(act: Callable[[], object]) -> None:
        """Once, when the file of a writer is made, or is written and has another name still."""

        def do_and_act(file: WebHDFile, *arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(WebHDFile, moment, done)
            answer = done(file, *arguments, **options)
            act()
            return answer

        monkeypatch.setattr(WebHDFile, moment, do_and_act)

    after_it(lambda: store.put("result", b"earlier"))
    store.put("result", b"later")
    assert store.get("result") == b"later"
    won: list[bool] = []
    after_it(lambda: won.append(store.put_if_absent("term", b"first")))
    assert not store.put_if_absent("term", b"second")
    assert won == [True] and store.get("term") == b"first" and not store.unfinished()


def test_parts_of_an_object_are_sent_concurrently_and_none_starts_after_a_failure(
    s3_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(s3_uri)
    assert isinstance(store, S3Store)
    upload, meeting, begun = store._client.upload_part, threading.Barrier(UPLOADS_SIDE_BY_SIDE, timeout=30.0), []
    # They would wait for each other for ever if one was sent after the other.
    monkeypatch.setattr(store._client, "upload_part", lambda **part: (meeting.wait(), upload(**part))[1])
    pieces = [bytes([number]) * UPLOAD_PART_BYTES for number in range(UPLOADS_SIDE_BY_SIDE)]
    with store.open_write("large") as writer:
        for piece in pieces:
            writer.write(piece)
    assert store.get("large") == b"".join(pieces)

    def refuse(**part: Any) -> None:
        begun.append(part["PartNumber"])
        raise ClientError({"Error": {"Code": "SlowDown"}}, "UploadPart")

    monkeypatch.setattr(store._client, "upload_part", refuse)
    with pytest.raises(StoreError, match="SlowDown"), store.open_write("torn") as writer:
        for _ in range(10 * UPLOADS_SIDE_BY_SIDE):
            writer.write(pieces[0])
    assert len(begun) <= UPLOADS_SIDE_BY_SIDE and not store.exists("torn") and not store.unfinished()


def test_the_largest_object_of_s3_has_fewer_parts_than_s3_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()
    scale = 2**20  # so many times smaller, in units of 1 MiB for a byte
    monkeypatch.setattr(s3_store, "UPLOAD_PART_BYTES", UPLOAD_PART_BYTES // scale)
    client = SimpleNamespace(
        create_multipart_upload=lambda **_: {"UploadId": "x"},
        upload_part=lambda **part: (sizes.append(len(part["Body"])), {"ETag": "e"})[1],
        complete_multipart_upload=lambda **_: None,
    )
    with s3_store._S3Writer(client, "bucket", "key") as writer:  # type: ignore[arg-type]
        for _ in range(5 * 2**10):
            writer.write(bytes(2**10))
    assert sum(sizes) == 5 * 2**20 and len(sizes) < 10_000 and max(sizes) * scale <= 5 * 2**30 + scale


def test_an_address_of_hdfs_is_refused_with_the_one_to_write() -> None:
    with pytest.raises(CheckpointError, match="write webhdfs://ann@nodes:9870/records, or swebhdfs:// with TLS"):
        open_store("hdfs://ann@nodes:8020/records")


def test_a_bucket_with_credentials_is_refused_without_showing_them() -> None:
    with pytest.raises(CheckpointError, match=r"'s3://key:\*\*\*@bucket/x' holds credentials.*AWS_ACCESS_KEY_ID"):
        open_store("s3://key:secret@bucket/x")


def test_an_object_is_visible_only_after_its_stream_was_closed_without_error(store: Store) -> None:
    with pytest.raises(RuntimeError), store.open_write("folder/torn") as writer:
        writer.write(bytes(UPLOAD_PART_BYTES + 1))
        assert not store.exists("folder/torn")
        raise RuntimeError("power loss")
    assert store.keys() == []


def test_keys_and_folders_are_listed_sorted_and_inside_the_root_only(store: Store) -> None:
    open_store(store.uri + "-neighbour").put("x", b"")
    for key in ("b/2", "b/1", "a/deep/er", "top"):
        store.put(key, b"x")
    assert store.keys() == ["a/deep/er", "b/1", "b/2", "top"]
    assert store.keys("b") == ["b/1", "b/2"]
    assert store.folders() == ["a", "b"]
    assert store.folders("a") == ["deep"]
    assert store.keys("nothing") == [] and store.folders("nothing") == []


def test_deleting_a_tree_leaves_the_rest_and_can_be_repeated(store: Store) -> None:
    for key in ("a/1", "a/2/3", "ab/1"):
        store.put(key, b"x")
    store.delete_tree("a")
    store.delete_tree("a")
    store.delete("nothing")
    assert store.keys() == ["ab/1"]


def test_of_sixteen_writers_that_create_an_object_one_wins(store: Store) -> None:
    assert store.conditional_writes()
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda number: store.put_if_absent("race", str(number).encode()), range(16)))
    assert sum(won) == 1
    assert store.get("race") == str(won.index(True)).encode()


def test_a_child_store_sees_the_same_objects(store: Store) -> None:
    store.put("records/one two/part", b"x")
    child = open_store(store.child_uri("records/one two"))
    assert child.get("part") == b"x"
    child.put("other", b"y")
    assert store.get("records/one two/other") == b"y"


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../outside", "a//b", "a/./b", "a/"])
def test_a_key_outside_the_root_is_refused(store: Store, key: str) -> None:
    with pytest.raises(CheckpointError, match="relative path"):
        store.put(key, b"x")


@pytest.mark.parametrize("uri", ["", "hdfs://name/path", "file://relative/path", "s3://", "gs://"])
def test_an_unsupported_uri_is_refused_with_the_allowed_schemes(uri: str) -> None:
    with pytest.raises(CheckpointError, match="allowed"):
        open_store(uri)


def test_relative_path_absolute_path_and_file_uri_are_the_same_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("a/../b c").uri == open_store(tmp_path / "b c").uri == open_store(f"file://{tmp_path}/b%20c").uri


def test_a_crash_between_write_and_rename_leaves_nothing_that_a_listing_shows(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    writer = store.open_write("part")
    writer.write(b"half")
    assert len(list(tmp_path.iterdir())) == 1
    assert store.keys() == []
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def _refusing_headers(store: S3Store, answer: str) -> None:
    """Makes the client behave like a store without conditional puts."""
    client, put = store._client, store._client.put_object

    def put_object(**arguments: object) -> object:
        conditional = {"IfMatch", "IfNoneMatch"} & set(arguments)
        if answer == "ignores":
            for name in conditional:
                arguments.pop(name)
        elif conditional:
            raise ClientError({"Error": {"Code": "NotImplemented", "Message": "a header is not implemented"}}, "Put")
        return put(**arguments)  # type: ignore[arg-type]

    client.put_object = put_object  # type: ignore[method-assign]


@pytest.mark.parametrize("answer", ["ignores", "answers 501"])
def test_a_store_without_conditional_puts_is_detected_and_refused(s3_uri: str, answer: str) -> None:
    store = open_store(s3_uri)
    assert isinstance(store, S3Store)
    _refusing_headers(store, answer)
    assert not store.conditional_writes()
    with pytest.raises(CheckpointError, match="conditional puts"):
        store.put_if_absent("x", b"1")
    assert store.keys() == []


def test_a_store_without_conditional_creation_is_detected(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def overwrite(key: str, data: bytes) -> bool:
        store.put(key, data)
        return True

    monkeypatch.setattr(store, "_create", overwrite)
    monkeypatch.setattr(store_module, "_probed", {})
    assert not Store.conditional_writes(store)
    assert store.keys() == []


def test_a_probe_whose_first_answer_was_lost_detects_conditional_creation(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = store._create
    # The client repeats the request by itself, and the answer says that the object exists.
    monkeypatch.setattr(store, "_create", lambda key, data: create(key, data) and create(key, data))
    monkeypatch.setattr(store_module, "_probed", {})
    assert Store.conditional_writes(store)
    assert store.keys() == []


def test_probes_that_are_killed_leave_one_object_in_all(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    create, created = store._create, list[str]()

    def killed(key: str, data: bytes) -> bool:
        created.append(key)
        create(key, data)
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(store, "_create", killed)
            patch.setattr(store_module, "_probed", {})
            Store.conditional_writes(store)
    # One that was killed while it wrote.
    store.open_write(store_module.PROBE).write(b"1")
    monkeypatch.setattr(store_module, "_probed", {})
    assert Store.conditional_writes(store)
    assert created == [store_module.PROBE] * 2 and store.keys() == store.unfinished() == []


def test_a_put_that_meets_another_under_way_is_made_again(s3_uri: str) -> None:
    store = open_store(s3_uri)
    assert isinstance(store, S3Store) and store.conditional_writes()
    put, conflicts = store._client.put_object, [1, 2]

    def put_object(**arguments: object) -> object:
        if conflicts:
            conflicts.pop()
            raise ClientError({"Error": {"Code": "ConditionalRequestConflict", "Message": "conflict"}}, "Put")
        return put(**arguments)  # type: ignore[arg-type]

    store._client.put_object = put_object  # type: ignore[method-assign]
    assert store.put_if_absent("x", b"1")
    assert not conflicts and store.get("x") == b"1"


def test_the_probe_is_made_once_per_bucket(s3_uri: str) -> None:
    store = open_store(s3_uri)
    assert store.conditional_writes()
    assert isinstance(store, S3Store)
    _refusing_headers(store, "answers 501")
    assert store.conditional_writes()
    assert len(store_module._probed) == 1


def test_stores_of_a_process_share_a_client_until_its_environment_changes(
    s3_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, session = [], s3_store.boto3.session.Session
    monkeypatch.setattr(s3_store.boto3.session, "Session", lambda: made.append(1) or session())
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda number: open_store(f"{s3_uri}/{number}"), range(16)))
        list(pool.map(lambda store: store.put("a", b"1"), stores))
    assert len(made) == 1 and [store.get("a") for store in stores] == [b"1"] * 16
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    other = open_store(s3_uri)
    assert isinstance(other, S3Store) and len(made) == 2
    assert other._client._request_signer._credentials.access_key == "another"


def test_a_store_that_is_opened_after_a_file_of_credentials_was_written_again_uses_these(
    s3_uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    for key in ("first", "second"):
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")
        opened, again = open_store(s3_uri), open_store(s3_uri)
        assert isinstance(opened, S3Store) and isinstance(again, S3Store) and opened._client is again._client
        assert opened._client._request_signer._credentials.access_key == key


def test_a_missing_bucket_is_reported_with_a_remedy(s3_uri: str) -> None:
    store = open_store("s3://no-such-bucket/x")
    with pytest.raises(CheckpointError, match=r"no-such-bucket.*AWS_ENDPOINT_URL_S3"):
        store.put("a", b"x")


def test_a_service_that_does_not_answer_is_reported_with_a_remedy() -> None:
    store = open_store("webhdfs://tester@127.0.0.1:1/records")
    for ask in (
        lambda: store.get("a"),
        lambda: store.size("a"),
        lambda: store.keys(),
        lambda: store.put("a", b"x"),
        lambda: store.put_if_absent("a", b"x"),
    ):
        with pytest.raises(StoreError, match=r"127\.0\.0\.1:1/records.*check that the name node answers"):
            ask()
    # A probe that could not be made is no answer: it is made again.
    assert not [place for place in store_module._probed if "127.0.0.1:1" in place]


@pytest.mark.parametrize("uri", ["webhdfs://me:hush@127.0.0.1:1/records", "ftp://me:hush@127.0.0.1/records"])
def test_the_password_of_a_store_is_in_no_message(uri: str) -> None:
    with pytest.raises(CheckpointError, match=r"//me:\*\*\*@127\.0\.0\.1") as caught:
        open_store(uri).get("a")
    assert "hush" not in str(caught.value)


def test_a_missing_library_of_a_service_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    # fsspec keeps the classes that it has loaded.
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "gs", raising=False)
    with pytest.raises(CheckpointError, match=r"gs://bucket/x.*pip install 'elastrec\[gcs\]'"):
        open_store("gs://bucket/x")


# A folder whose file system is not mounted


@pytest.fixture
def pod_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a pod: stores are found, never made."""
    monkeypatch.setattr(local_store, "_must_exist", False)
    expect_existing_stores()


def made(folder: Path) -> Store:
    store = open_store(folder)
    store.create()
    return store


def test_a_new_store_is_marked_in_its_root_alone_and_listings_do_not_show_it(tmp_path: Path) -> None:
    store = made(tmp_path / "deep" / "store")
    store.put("a/b", b"x")
    store.create()
    assert [path.name for path in tmp_path.rglob(".*")] == [local_store.MARKER]
    assert store.keys() == ["a/b"] and store.folders() == ["a"]


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_store_whose_folder_is_a_file_says_so(tmp_path: Path, below: str) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(StoreError, match="a folder is needed where there is a file"):
        made(tmp_path / "store" / below)
    assert (tmp_path / "store").read_text() == "a file"


@pytest.mark.usefixtures("pod_process")
@pytest.mark.parametrize("leaves_a_folder", [True, False])
def test_a_pod_never_creates_a_store_under_a_missing_mount(tmp_path: Path, leaves_a_folder: bool) -> None:
    root = tmp_path / "store"
    made(root).put("job/records/1/manifest.json", b"x")
    root.rename(tmp_path / "away")
    if leaves_a_folder:
        root.mkdir()
    record = open_store(root / "job/records/2")
    for write in (
        lambda: open_store(root).put("job/ledger/a.json", b"x"),
        lambda: open_store(root).put("top.json", b"x"),
        lambda: record.open_write("parts/0.bin"),
        lambda: record.put_if_absent("manifest.json", b"x"),
    ):
        with pytest.raises(StoreError, match=r"no checkpoint store is there: the file \.elastrec-store is missing"):
            write()
    assert not root.exists() or not list(root.iterdir())
    assert root.exists() is leaves_a_folder


@pytest.mark.usefixtures("pod_process")
def test_an_unreachable_store_does_not_count_as_a_missing_object(tmp_path: Path) -> None:
    root = tmp_path / "store"
    made(root).put("job/records/1/manifest.json", b"x")
    there = open_store(root / "job/records/2")
    asked = (
        lambda: there.size("a"),
        lambda: there.get("a"),
        lambda: there.get_range("a", 0, 1),
        lambda: there.get_if_exists("a"),
        lambda: there.keys("a"),
        lambda: there.folders("a"),
    )
    assert asked[0]() is None and asked[3]() is None and asked[4]() == [] and asked[5]() == []
    for ask in (asked[1], asked[2]):
        with pytest.raises(CheckpointError, match="there is no such file") as caught:
            ask()
        assert not isinstance(caught.value, StoreError)
    with pytest.raises(DamagedRecordError):
        open_record(there.uri)
    root.rename(tmp_path / "away")
    root.mkdir()
    for ask in (*asked, lambda: open_record(there.uri)):
        with pytest.raises(StoreError, match="mount the store's file system again"):
            ask()
    root.rmdir()
    (tmp_path / "away").rename(root)
    assert there.size("a") is None


def test_an_error_of_the_file_system_does_not_count_as_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(tmp_path)
    store.put("a", b"x")

    def stale(*_: object, **__: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, "open", stale)
    with pytest.raises(StoreError, match="Stale file handle"):
        store.get_range("a", 0, 1)
    monkeypatch.setattr(Path, "stat", stale)
    with pytest.raises(StoreError, match="Stale file handle"):
        store.size("a")


def test_a_folder_that_cannot_be_listed_does_not_count_as_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made(tmp_path)
    store.put("folder/below/a", b"x")
    scan = os.scandir

    def stale(folder: Path | str) -> object:
        if Path(folder).name == "below":
            raise OSError(errno.ESTALE, "Stale file handle")
        return scan(folder)

    monkeypatch.setattr(os, "scandir", stale)
    for prefix in ("", "folder", "folder/below"):
        with pytest.raises(StoreError, match=r"could not list .*Stale file handle"):
            store.keys(prefix)


def test_a_tree_that_two_processes_delete_is_deleted_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(tmp_path)
    for number in range(4):
        store.put(f"folder/{number}", b"x")
    unlink, unlinked = os.unlink, list[object]()

    def unlink_after_another(path: str, **options: Any) -> None:
        unlinked.append(path)
        if len(unlinked) == 2:
            unlink(path, **options)
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", unlink_after_another)
    store.delete_tree("folder")
    assert not (tmp_path / "folder").exists() and len(unlinked) >= 4
