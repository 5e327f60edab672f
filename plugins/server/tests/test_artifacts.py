"""Limits on what rollouts leave in their artifacts directory."""

import os
import socket

import pytest

from osmosis_core import AgentWorkflow, ExecutionRequest, LocalBackend
from osmosis_server.artifacts import artifacts_root, enforce_limits, rollout_dir


@pytest.fixture
def directory(tmp_path):
    directory = tmp_path / "artifacts"
    (directory / "deep/er").mkdir(parents=True)
    return directory


def write(directory, **sizes):
    for name, size in sizes.items():
        (directory / name.replace("__", "/")).write_bytes(b"x" * size)


def left(directory):
    files = (path for path in directory.rglob("*") if path.is_file() or path.is_symlink())
    return sorted(str(path.relative_to(directory)) for path in files)


def test_within_the_limits_nothing_is_touched(directory):
    write(directory, a=5, deep__b=5)
    (directory / "empty").mkdir()
    found = enforce_limits(directory, 10, 2)
    assert found.is_whole and (found.files, found.bytes) == (2, 10)
    assert (directory / "empty").is_dir()


def test_the_largest_files_go_first(directory):
    write(directory, a=6, deep__b=1, deep__er__c=9, d=2)
    found = enforce_limits(directory, 10, 100)
    assert left(directory) == ["a", "d", "deep/b"]
    assert (found.removed_files, found.removed_bytes) == (1, 9)
    assert not (directory / "deep/er").exists()


@pytest.mark.parametrize(("files", "expected"), [(2, 2), (1, 1), (0, 0)])
def test_of_equal_files_as_many_stay_as_may(directory, files, expected):
    write(directory, a=3, b=3, deep__c=3, deep__er__d=7)
    enforce_limits(directory, 100, files)
    assert len(left(directory)) == expected


def test_links_and_devices_are_removed_and_not_followed(directory, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x" * 100)
    (directory / "deep/link").symlink_to(precious)
    (directory / "file").symlink_to(precious / "file")
    os.mkfifo(directory / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "socket"))
    write(directory, a=1)
    found = enforce_limits(directory, 10, 10)
    assert left(directory) == ["a"] and found.removed_others == 4
    assert (precious / "file").stat().st_size == 100


def test_a_link_in_the_place_of_the_directory_is_removed(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    (tmp_path / "artifacts").symlink_to(precious)
    assert not enforce_limits(tmp_path / "artifacts", 0, 0).is_whole
    assert left(precious) == ["file"] and not (tmp_path / "artifacts").exists()


def test_a_rollout_without_artifacts_has_nothing_to_trim(tmp_path):
    assert enforce_limits(tmp_path / "never", 0, 0).is_whole


@pytest.mark.parametrize("rollout_id", ["a b", "ü%", "x" * 250, "ü" * 250, "..."])
async def test_the_directory_is_the_one_that_the_workflow_was_given(tmp_path, rollout_id):
    given = []

    class Keeps(AgentWorkflow):
        async def run(self, ctx):
            given.append(ctx.artifacts_dir)

    async def ignore(result):
        pass

    backend = LocalBackend(workflow=Keeps, artifacts_root=tmp_path)
    await backend.execute(ExecutionRequest(rollout_id, []), ignore)
    assert given == [rollout_dir(artifacts_root(backend), rollout_id) / "artifacts"]
    assert given[0].parents[1] == tmp_path
