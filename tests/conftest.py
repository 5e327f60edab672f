"""What tests of the whole command line share: `osmosis` as a process, and plugins made in place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

OSMOSIS = Path(sys.executable).parent / "osmosis"


@pytest.fixture
def osmosis(tmp_path):
    """Run `osmosis` in `tmp_path`; keywords are environment variables."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OSMOSIS_", "PYTHON"))}

    def run(*arguments, **env):
        return subprocess.run(
            [OSMOSIS, *arguments],
            cwd=tmp_path,
            env={**kept, **env},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.fixture
def installed(tmp_path):
    """Lay out a plugin as an installer would; answers the environment in which it is found."""

    def install(name, source):
        site = tmp_path / "site"
        info = site / f"osmosis_{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: osmosis-{name}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(f"[osmosis_core]\n{name} = osmosis_{name}\n")
        (site / f"osmosis_{name}.py").write_text(source)
        return {"PYTHONPATH": str(site)}

    return install
