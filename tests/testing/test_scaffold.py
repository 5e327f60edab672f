"""`osmosis plugins new`: what it writes passes its own tests, and what it refuses says why."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from osmosis_core.errors import ConfigError
from osmosis_core.testing.scaffold import create_plugin

KINDS = ["framework", "backend"]


def written(name, kind, tmp_path):
    create_plugin(name, tmp_path, **{kind: True})
    return tmp_path / f"osmosis-{name}"


@pytest.mark.parametrize("kind", KINDS)
def test_new_package_passes_its_own_tests(kind, tmp_path):
    folder = written("tide-pool", kind, tmp_path)
    known = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=folder, env=known, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(done.stdout.split(" passed")[0].split()[-1])
    assert passed > 50, done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_name_replaces_the_template_s_everywhere(kind, tmp_path):
    folder = written("tide-pool", kind, tmp_path)
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    entry_points = project["project"]["entry-points"]["osmosis_core"]
    assert project["project"]["name"] == "osmosis-tide-pool"
    assert entry_points == {"tide-pool": "osmosis_tide_pool.plugin"}
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"README.md", "plugin.py", "__init__.py"} <= {path.name for path in files}
    left = [p for p in files if "acme" in (str(p.relative_to(folder)) + p.read_text()).lower()]
    assert left == []


@pytest.mark.parametrize("kind", KINDS)
def test_new_package_is_formatted_and_has_no_lint(kind, tmp_path):
    folder = written("tide", kind, tmp_path)
    ruff = [str(Path(sys.executable).parent / "ruff")]
    for options in (["check", "--select", "E,F,W,UP,B,SIM,RUF"], ["format", "--check"]):
        command = [*ruff, *options, "--line-length", "100", "--no-cache", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "name", ["Tide", "tide_pool", "2tides", "-tide", "tide-", "a--b", "", "ä", "a/b"]
)
def test_bad_name_is_refused(name, tmp_path):
    with pytest.raises(ConfigError, match="is no name for a plugin"):
        create_plugin(name, tmp_path, backend=True)
    assert list(tmp_path.iterdir()) == []


def test_name_of_an_installed_plugin_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="'strands' is taken by osmosis-strands"):
        create_plugin("strands", tmp_path, framework=True)


def test_name_that_a_plugin_offers_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="'local' is taken by osmosis-core"):
        create_plugin("local", tmp_path, backend=True)


def test_name_of_an_installed_package_is_refused(tmp_path, monkeypatch):
    (tmp_path / "osmosis_low_tide").mkdir()
    (tmp_path / "osmosis_low_tide/__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="a package osmosis_low_tide is installed"):
        create_plugin("low-tide", tmp_path, backend=True)


def test_existing_folder_is_left_alone(tmp_path):
    (tmp_path / "osmosis-tide").mkdir()
    with pytest.raises(ConfigError, match="exists; take another name, or --dir PATH"):
        create_plugin("tide", tmp_path, backend=True)
    assert list((tmp_path / "osmosis-tide").iterdir()) == []


def test_command_writes_where_it_is_told(tmp_path):
    osmosis = str(Path(sys.executable).parent / "osmosis")
    command = [osmosis, "plugins", "new", "tide", "--backend", "--dir", "deep/er"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "pytest" in done.stdout
    assert (tmp_path / "deep/er/osmosis-tide/osmosis_tide/backend.py").is_file()


@pytest.mark.parametrize("kinds", [[], ["--framework", "--backend"]])
def test_command_asks_what_the_plugin_offers(kinds, tmp_path):
    osmosis = str(Path(sys.executable).parent / "osmosis")
    command = [osmosis, "plugins", "new", "tide", *kinds]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "error: say what the plugin offers: either --framework or --backend\n"
    assert list(tmp_path.iterdir()) == []


def test_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write .*; name a folder to write in"):
        create_plugin("tide", tmp_path / "file", backend=True)
