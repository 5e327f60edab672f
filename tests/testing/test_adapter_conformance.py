"""The adapter suite: a right adapter passes, and each bug is caught by the check named for it."""

import asyncio
import functools
import importlib
import importlib.util
import json
import shutil
import sys
import threading
import unittest
from pathlib import Path

import pytest

from osmosis_core.testing import AdapterConformance, AdapterFixtures
from osmosis_core.testing.adapter_conformance.fixtures import OPTIONAL, REQUIRED
from osmosis_core.testing.adapter_conformance.kit import CHECKS, CheckFailed
from osmosis_core.testing.adapter_conformance.report import run_checks

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


@pytest.fixture(scope="module")
def tiny():
    with pytest.MonkeyPatch.context() as patch:
        yield fixtures_in(HERE / "tiny", patch)


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


class Least(AdapterFixtures):
    """What no adapter does without, in the first shape of `run_agent`."""

    def __init__(self, tiny):
        self.tiny, self.entry_module = tiny, tiny.entry_module

    def create_model(self):
        return self.tiny.create_model()

    async def call_model(self, model):
        await self.tiny.call_model(model)

    async def run_agent(self, name, prompt, *, model=None, add=None):
        return await self.tiny.run_agent(name, prompt, model=model, tools=[add] if add else [])


def statuses(fixtures, *capabilities):
    suite = AdapterConformance()
    suite.fixtures, suite.crowd = fixtures, 10
    found = {}
    for name, check in CHECKS.items():
        if check.capability in capabilities:
            try:
                asyncio.run(getattr(suite, name)())
                found[name] = "passed"
            except unittest.SkipTest as reason:
                found[name] = str(reason)
    return found


def test_what_is_not_declared_is_skipped_and_says_how_to_declare_it(tiny):
    found = statuses(Least(tiny), *OPTIONAL)
    assert len(found) > 30 and "passed" not in found.values()
    wanted = "Least does not declare streaming: implement stream_agent"
    assert found["test_stream_says_what_the_policy_says"] == wanted


def test_run_agent_may_take_the_one_tool_as_add(tiny):
    assert set(statuses(Least(tiny), "tools", "isolation", "recording").values()) == {"passed"}


def test_capability_that_there_is_not_is_named(tiny):
    fixtures = Least(tiny)
    fixtures.capabilities = frozenset({"imagess"})
    with pytest.raises(ValueError, match=r"names \['imagess'\]; there is images, parallel_tools"):
        run_checks(fixtures)


def test_capability_that_is_declared_and_missing_fails(tiny):
    class Sequential(Least):
        capabilities = frozenset({"parallel_tools"})

        async def run_agent(self, name, prompt, *, model=None, tools=()):
            lock = threading.Lock()
            return await self.tiny.run_agent(
                name, prompt, model=model, tools=[one_by_one(tool, lock) for tool in tools]
            )

    wrong = caught(Sequential(tiny), "test_tool_calls_of_one_answer_run_at_once")
    assert wrong.endswith("withdraw `parallel_tools`.")


def one_by_one(tool, lock):
    @functools.wraps(tool)
    def locked(**arguments):
        with lock:
            return tool(**arguments)

    return locked


def test_every_check_gives_one_line_of_advice_and_belongs_to_a_capability():
    assert len(CHECKS) >= 100
    assert {check.capability for check in CHECKS.values()} == {*REQUIRED, *OPTIONAL}
    for check in CHECKS.values():
        assert check.advice.startswith("If this fails, "), check.name
    inherited = {name for name in dir(AdapterConformance) if name.startswith("test_")}
    assert inherited == set(CHECKS)


@pytest.fixture
def tiny_installed(tmp_path, installed):
    """The reference adapter as an installed plugin."""
    shutil.copytree(HERE / "tiny", tmp_path / "site")
    env = installed("tiny", (HERE / "tiny" / "tiny_plugin.py").read_text())
    return env


def test_command_prints_the_table_and_exits_0(osmosis, tiny_installed):
    done = osmosis("plugins", "check", "tiny", **tiny_installed)
    assert done.returncode == 0, done.stderr
    first, *rows = done.stdout.splitlines()
    assert first == f"tiny (tiny-agents ?): {len(CHECKS)} passed, 0 failed, 0 skipped"
    assert [row.split()[0] for row in rows] == [*REQUIRED, *OPTIONAL]
    assert done.stderr == ""


def test_command_names_what_fails_and_exits_1(osmosis, tiny_installed, tmp_path):
    adapter = tmp_path / "site" / "tiny_osmosis.py"
    source = adapter.read_text().replace("copy.deepcopy(self.agent.messages)", "[{'a': 1}]")
    adapter.write_text(source.replace("async def stream_agent", "async def other"))
    done = osmosis("plugins", "check", "tiny", "--json", **tiny_installed)
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert report["capabilities"]["recording"] == "failed"
    assert report["capabilities"]["streaming"] == "no"
    assert report["capabilities"]["routing"] == "yes"
    failed = {
        check["name"]: check["message"] for check in report["checks"] if check["status"] == "failed"
    }
    assert "read the history" in failed["test_every_message_is_there_once"]


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("tinny", "", "no framework 'tinny'; there is"),
        ("bare", "", "framework 'bare' names no conformance fixtures"),
        ("lost", "conformance='nowhere:Adapter'", "the fixtures 'nowhere:Adapter' of 'lost'"),
        ("wrong", "conformance='builtins:dict'", "'builtins:dict' is a dict"),
    ],
)
def test_command_that_cannot_check_is_one_line_and_exits_2(
    osmosis, installed, name, source, message
):
    framework = f"Framework({name!r}, 'tiny-agents', '>=1', 'tiny', {source})"
    offered = "from osmosis_core import hookimpl\nfrom osmosis_core.hookspecs import Framework\n"
    offered += f"@hookimpl\ndef osmosis_register_frameworks(register): register({framework})\n"
    env = installed("tiny", offered if name != "tinny" else "")
    done = osmosis("plugins", "check", name, **env)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and len(done.stderr.splitlines()) == 1
