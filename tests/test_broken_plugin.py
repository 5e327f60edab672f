"""A plugin that cannot be imported, installed for real, costs only itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "broken_plugin"
CAUSE = "ImportError: libshatter.so.3: cannot open shared object file"
ASK = """
from osmosis_core import PluginError
from osmosis_core.plugins import get_plugins
for name in ("shattered", "broken"):
    try:
        get_plugins().backend(name)
    except PluginError as error:
        print(error)
"""


@pytest.fixture(scope="session")
def broken(tmp_path_factory):
    target = tmp_path_factory.mktemp("broken")
    uv = Path(sys.executable).parent / "uv"
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
    subprocess.run([*command, "--target", target, SOURCE], check=True, timeout=100)
    return {"PYTHONPATH": str(target)}


def records(done):
    return {record["name"]: record for record in json.loads(done.stdout)["plugins"]}


def test_help_works_and_lists_the_commands_of_others(osmosis, broken):
    done = osmosis("--help", **broken)
    assert done.returncode == 0
    assert "eval" in done.stdout and "validate" in done.stdout
    assert done.stderr == ""


def test_list_of_plugins_shows_the_cause(osmosis, broken):
    done = osmosis("plugins", **broken)
    line = next(line for line in done.stdout.splitlines() if line.startswith("broken"))
    assert done.returncode == 0
    assert "osmosis-broken 0.1.0" in line
    assert "failed" in line and CAUSE in line


def test_strict_list_exits_1(osmosis, broken):
    done = osmosis("plugins", "--strict", **broken)
    assert done.returncode == 1
    assert CAUSE in done.stdout


def test_json_holds_the_whole_record(osmosis, broken):
    assert records(osmosis("plugins", "--json", **broken))["broken"] == {
        "name": "broken",
        "module": "osmosis_broken",
        "distribution": "osmosis-broken",
        "version": "0.1.0",
        "status": "failed",
        "offers": {},
        "error": CAUSE,
    }


def test_all_other_plugins_load(osmosis, broken):
    found = records(osmosis("plugins", "--json", **broken))
    assert {name for name, r in found.items() if r["status"] != "loaded"} == {"broken"}
    assert found["strands"]["offers"] == {"framework": ["strands"]}


def test_asking_for_what_it_would_offer_repeats_the_cause(broken):
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=broken, capture_output=True, text=True, timeout=60
    )
    unknown, itself = done.stdout.splitlines()
    assert unknown.startswith("no backend 'shattered'; there is ") and "local" in unknown
    assert unknown.endswith(f"broken: {CAUSE}")
    assert itself.endswith(f"its plugin broken (osmosis-broken 0.1.0) failed to load: {CAUSE}")


def test_asking_for_an_unknown_command_repeats_the_cause(osmosis, broken):
    done = osmosis("shatter", **broken)
    assert done.returncode == 2
    assert CAUSE in done.stderr


@pytest.mark.parametrize("disabled", ["broken", "other, broken", "*"])
def test_disabling_it_recovers(osmosis, broken, disabled):
    strict = osmosis("plugins", "--strict", OSMOSIS_DISABLED_PLUGINS=disabled, **broken)
    assert strict.returncode == 0
    line = next(line for line in strict.stdout.splitlines() if line.startswith("broken"))
    assert "disabled" in line and "ImportError" not in line


def test_disabling_everything_leaves_the_kernel(osmosis, broken):
    found = records(osmosis("plugins", "--json", OSMOSIS_DISABLED_PLUGINS="*", **broken))
    assert found.pop("core")["status"] == "loaded"
    assert {record["status"] for record in found.values()} == {"disabled"}
