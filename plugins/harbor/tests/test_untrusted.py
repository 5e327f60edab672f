"""Files that a container wrote, read without following or trusting anything."""

import os

import pytest

from osmosis_core import BackendError
from osmosis_harbor.untrusted import Limits, copy_file, copy_tree, read_file

SMALL = Limits(total_bytes=100, files=3)


def test_regular_file_is_read_up_to_the_limit(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x" * 10)
    assert read_file(file, 10) == b"x" * 10
    with pytest.raises(BackendError, match="more than 9 bytes"):
        read_file(file, 9)


def test_link_pipe_and_directory_are_not_read(tmp_path):
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("link", "is a link"), ("pipe", "no regular"), ("", "no regular")):
        with pytest.raises(BackendError, match=why):
            read_file(tmp_path / name, 100)


def test_copy_of_a_file_replaces_a_link_instead_of_following_it(tmp_path):
    (tmp_path / "source").write_text("new")
    (tmp_path / "victim").write_text("old")
    (tmp_path / "target").symlink_to(tmp_path / "victim")
    copy_file(tmp_path / "source", tmp_path / "target", SMALL)
    assert (tmp_path / "victim").read_text() == "old"
    assert (tmp_path / "target").read_text() == "new"


def test_copy_of_a_tree_keeps_only_regular_files(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep").mkdir(parents=True)
    (source / "deep/file").write_text("kept")
    (source / "link").symlink_to("/etc/passwd")
    (source / "way").symlink_to("/etc")
    os.mkfifo(source / "pipe")
    copy_tree(source, target, SMALL)
    assert [path.name for path in sorted(target.rglob("*"))] == ["deep", "file"]


@pytest.mark.parametrize("sizes", [[101], [60, 60], [1, 1, 1, 1]])
def test_copy_of_a_tree_stops_at_the_limits(sizes, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for number, size in enumerate(sizes):
        (source / str(number)).write_bytes(b"x" * size)
    with pytest.raises(BackendError, match="more than 100 bytes or 3 files"):
        copy_tree(source, tmp_path / "target", SMALL)


def test_link_is_no_tree(tmp_path):
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(BackendError, match="no directory"):
        copy_tree(tmp_path / "link", tmp_path / "target", SMALL)
