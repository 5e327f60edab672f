"""Every code block of the docs runs: Python as a script, `sh` in a shell, in a new folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_core.testing.adapter_conformance.matrix import claimed, matrix, with_matrix

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path.relative_to(ROOT)
    for pattern in ("README.md", "docs/*.md", "plugins/*/README.md", "examples/**/README.md")
    for path in ROOT.glob(pattern)
)
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# file: (\S+)\n")


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_code_blocks_run(page, tmp_path):
    bin_dir = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": f"{bin_dir}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for kind, code in BLOCK.findall((ROOT / page).read_text()):
        named = FILE.match(code)
        if named:
            (tmp_path / named[1]).write_text(code)
        command = ["bash", "-euc", code] if kind == "sh" else [sys.executable, "-c", code]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / page).read_text()):
            assert (ROOT / page.parent / target).exists(), f"{page} links to {target}"


def test_capability_table_is_what_the_frameworks_declare():
    """Their own tests prove it; `make capabilities` writes it."""
    page = (ROOT / "docs/frameworks.md").read_text()
    assert page == with_matrix(page, matrix(claimed())), "run `make capabilities`"
