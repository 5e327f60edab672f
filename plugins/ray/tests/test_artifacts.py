"""Files that come from a machine which ran anybody's code."""

import io
import os
import tarfile

import pytest

from osmosis_ray.artifacts import pack, snapshot, unpack


@pytest.fixture
def here(tmp_path):
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def archive(*members):
    """A tar of (name, type, link target) with `evil` in its files."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            member.size = 4 if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(b"evil"))
    return file.getvalue()


def test_files_arrive_with_their_folders_and_modes(here, tmp_path):
    (here / "a" / "b").mkdir(parents=True)
    (here / "a" / "b" / "run.sh").write_text("echo")
    (here / "a" / "b" / "run.sh").chmod(0o700)
    packed, left_out = pack(here, 100)
    unpack(packed, tmp_path / "there")
    arrived = tmp_path / "there" / "a" / "b" / "run.sh"
    assert (arrived.read_text(), arrived.stat().st_mode & 0o777, left_out) == ("echo", 0o700, [])


def test_only_what_is_new_is_packed_again(here, tmp_path):
    (here / "old").write_text("old")
    (here / "changed").write_text("before")
    known = snapshot(here)
    (here / "changed").write_text("after it")
    unpack(pack(here, 100, known)[0], tmp_path / "there")
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["changed"]
    assert pack(here, 100, snapshot(here)) == (b"", [])


def test_limit_holds_for_all_files_together(here):
    for name in "abc":
        (here / name).write_text("x" * 40)
    packed, left_out = pack(here, 100)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert tar.getnames() == ["a", "b"]
    assert left_out == ["c (over the size limit)"]


def test_links_pipes_and_what_is_behind_them_are_left_out(here, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (here / "link").symlink_to(tmp_path / "secret")
    (here / "folder").symlink_to(tmp_path)
    os.mkfifo(here / "pipe")
    packed, left_out = pack(here, 100)
    assert packed == b"" and [entry.split()[0] for entry in left_out] == ["folder", "link", "pipe"]


def test_nothing_is_written_outside(here, tmp_path):
    (here / "there").mkdir()
    for name in ("../evil", "a/../../evil"):
        with pytest.raises(tarfile.FilterError):
            unpack(archive((name, tarfile.REGTYPE, "")), here / "there")
    out = ("out", tarfile.SYMTYPE, str(tmp_path))
    unpack(archive(out, ("out/evil", tarfile.REGTYPE, "")), here / "there")
    assert not (tmp_path / "evil").exists() and not (here / "evil").exists()
    assert not (here / "there" / "out").is_symlink()
