"""The adapter suite: a right adapter passes, and each bug is caught by the check named for it."""

import asyncio
import importlib
import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from osmosis_core.testing import AdapterConformance
from osmosis_core.testing.adapter_conformance.kit import CheckFailed

HERE = Path(__file__).parent
HELPERS = """
from contextlib import nullcontext
from osmosis_core.policy import bound_headers
OWN, CURRENT, KEPT, OPEN = httpx2.AsyncClient(), [], [], []
"""
"""What some bugs need; in a right adapter it does no harm."""


def bugs():
    spec = importlib.util.spec_from_file_location("seeded_bugs", HERE / "seeded_bugs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.BUGS


def fixtures_in(folder, monkeypatch):
    """The adapter in a folder, imported anew."""
    for name in [name for name in sys.modules if name.startswith("tiny_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module("tiny_osmosis").TinyAdapter()


def caught(fixtures, check):
    """What the check says is wrong, or None when it passes."""
    suite = AdapterConformance()
    suite.fixtures, suite.crowd, suite.patience_sec = fixtures, 20, 20.0
    try:
        asyncio.run(getattr(suite, check)())
    except CheckFailed as error:
        return str(error)
    return None


@pytest.fixture
def tiny(monkeypatch):
    return fixtures_in(HERE / "tiny", monkeypatch)


class TestReference(AdapterConformance):
    """A right adapter passes everything, and declares everything."""

    @pytest.fixture(autouse=True)
    def _fixtures(self, tiny):
        self.fixtures = tiny


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bug", bugs(), ids=lambda bug: bug.name)
def test_seeded_bug_is_caught(bug, tmp_path, monkeypatch):
    shutil.copytree(HERE / "tiny", tmp_path, dirs_exist_ok=True)
    source = (tmp_path / bug.file).read_text()
    for old, new in bug.edits:
        assert source.count(old) == 1, f"the edit does not fit: {old}"
        source = source.replace(old, new)
    source = source.replace("\nURL = ", f"{HELPERS}\nURL = ")
    (tmp_path / bug.file).write_text(source)
    fixtures = fixtures_in(tmp_path, monkeypatch)
    for check in bug.checks:
        wrong = caught(fixtures, f"test_{check}")
        assert wrong, f"{check} passes"
        assert "\n" not in wrong and ". If this fails, " in wrong
        assert not any(noise in wrong for noise in ("NameError", "SyntaxError", "AttributeError"))
