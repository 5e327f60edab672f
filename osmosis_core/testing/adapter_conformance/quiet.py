"""The process stays as it was: no network but the policy, no leaked state, no secret anywhere."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import logging
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import SkipTest

from osmosis_core.errors import describe
from osmosis_core.hookspecs import ENTRY_POINT_GROUP
from osmosis_core.plugins import get_plugins
from osmosis_core.testing.adapter_conformance import probe
from osmosis_core.testing.adapter_conformance.fixtures import AdapterFixtures
from osmosis_core.testing.adapter_conformance.kit import (
    AdapterSuite,
    add,
    causes,
    check,
    expect,
    native,
    only,
    tool_then,
)
from osmosis_core.testing.scripted import ScriptedPolicy, Status

_KEY = "sk-canary-7f3a9c51d2e84b60"
_VENDOR_KEYS = {
    name: "sk-vendor-5b1e0c77"
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "LANGSMITH_API_KEY")
}
_LIGHT = """
import sys
import osmosis_core.plugins, osmosis_core.policy
import click, pluggy, pydantic
before = {name.partition(".")[0] for name in sys.modules} | set(sys.stdlib_module_names)
import importlib
module = importlib.import_module(sys.argv[1])
adapt = getattr(module, "osmosis_adapt_sample_source", None)
if len(sys.argv) > 2 and adapt is not None and adapt(source=object()) is not None:
    raise SystemExit("osmosis_adapt_sample_source adapts an object that is not the plugin's")
own = sys.argv[1].partition(".")[0]
print(sorted({name.partition(".")[0] for name in sys.modules} - before - {own}))
"""


@dataclass(frozen=True, slots=True)
class _Probed:
    report: dict[str, Any]
    hosts: frozenset[str]


def fixtures_path(fixtures: AdapterFixtures) -> str:
    """The fixtures as `module:Class`."""
    return f"{type(fixtures).__module__}:{type(fixtures).__qualname__}"


async def _python(*arguments: str, **env: str) -> tuple[str, str]:
    """Stdout and stderr of a Python that finds what this one finds."""
    known = {**os.environ, **env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        env=known,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate()
    said = stderr.decode("utf-8", "replace")
    expect(process.returncode == 0, f"a fresh process ends with {said.strip().splitlines()[-1:]}")
    return stdout.decode("utf-8", "replace"), said


_probes: dict[type[AdapterFixtures], _Probed] = {}


async def _probed(fixtures: AdapterFixtures) -> _Probed:
    """What one process said of these fixtures; it is asked once."""
    kind, path = type(fixtures), fixtures_path(fixtures)
    if kind not in _probes:
        with tempfile.TemporaryDirectory() as folder, ScriptedPolicy("hi", api_key=_KEY) as policy:
            hosts = Path(folder) / "hosts"
            env = {**_VENDOR_KEYS, probe.HOSTS_FILE: str(hosts)}
            stdout, _ = await _python("-m", probe.__name__, path, policy.base_url, _KEY, **env)
            report = json.loads(stdout.splitlines()[-1])
            _probes[kind] = _Probed(report, frozenset(hosts.read_text().split()))
    return _probes[kind]


class Quiet(AdapterSuite):
    """What one run in a fresh process leaves behind."""

    @check("quiet")
    async def test_nothing_but_the_policy_is_contacted(self) -> None:
        """If this fails, the framework phones home; switch its telemetry off in your package."""
        others = sorted((await _probed(self.fixtures)).hosts - {"127.0.0.1"})
        expect(not others, f"importing and running contacts {others}")

    @check("quiet")
    async def test_importing_changes_nothing_of_the_process(self) -> None:
        """If this fails, importing has side effects; undo or prevent them in your package."""
        changed: dict[str, str] = (await _probed(self.fixtures)).report["import"]
        expect(not changed, f"importing the adapter changes {changed}")

    @check("quiet")
    async def test_running_changes_nothing_of_the_process(self) -> None:
        """If this fails, a run sets what is the process's own; keep it in the run."""
        changed: dict[str, str] = (await _probed(self.fixtures)).report["run"]
        expect(not changed, f"a run changes {changed}")

    @check("quiet")
    async def test_run_prints_nothing(self) -> None:
        """If this fails, a callback prints; switch it off, stdout belongs to the command."""
        printed: str = (await _probed(self.fixtures)).report["printed"]
        expect(not printed, f"a run prints {printed[:60]!r}")

    @check("quiet")
    async def test_run_leaves_no_task(self) -> None:
        """If this fails, something goes on after the run; await it, or cancel and await it."""
        tasks: list[str] = (await _probed(self.fixtures)).report["tasks"]
        expect(not tasks, f"these tasks are left: {tasks}")

    @check("quiet")
    async def test_run_leaves_no_thread(self) -> None:
        """If this fails, a thread keeps the process alive; end it, or make it a daemon."""
        threads: list[str] = (await _probed(self.fixtures)).report["threads"]
        expect(not threads, f"these threads are left: {threads}")

    @check("quiet")
    async def test_run_leaves_no_socket(self) -> None:
        """If this fails, an own client is never closed; use `osmosis_core.policy.async_client`."""
        sockets: int = (await _probed(self.fixtures)).report["sockets"]
        expect(sockets <= 0, f"{sockets} sockets are open after the loop has ended")

    @check("quiet")
    async def test_entry_module_is_light(self) -> None:
        """If this fails, every `osmosis` command imports it too; import inside the hooks."""
        stdout, _ = await _python("-c", _LIGHT, self._entry_module())
        expect(stdout.strip() == "[]", f"finding the plugin imports {stdout.strip()}")

    @check("quiet")
    async def test_asking_for_a_sample_source_is_light(self) -> None:
        """If this fails, objects of others load your framework; look into sys.modules first."""
        stdout, _ = await _python("-c", _LIGHT, self._entry_module(), "adapt")
        expect(stdout.strip() == "[]", f"asking about a foreign object imports {stdout.strip()}")

    def _entry_module(self) -> str:
        if self.fixtures.entry_module:
            return self.fixtures.entry_module
        path = fixtures_path(self.fixtures)
        for framework in get_plugins().frameworks:
            if framework.conformance == path:
                roots = framework.module.partition(".")[0]
                for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
                    if entry.value.partition(".")[0] == roots:
                        return entry.value
        raise SkipTest(f"no installed plugin names {path}; set entry_module to check its imports")


class Secrets(AdapterSuite):
    """The rollout's key goes to the policy and nowhere else."""

    @check("secrets")
    async def test_key_is_in_no_sample(self) -> None:
        """If this fails, the key is stored with messages or calls; keep it out of both."""
        with ScriptedPolicy(tool_then("done"), api_key=_KEY) as policy:
            with policy.rollout() as rollout:
                await self.agent(tools=[add])
            sample = await only(rollout)
        expect(_KEY not in native(sample), "the key is in the sample's messages")
        kept = repr(sample.calls) + repr(sample.extra_fields) + repr(sample.metrics)
        expect(_KEY not in kept, "the key is in the sample's calls or fields")

    @check("secrets")
    async def test_key_is_in_no_repr(self) -> None:
        """If this fails, the model shows or holds the key; let the transport add it."""
        model = self.fixtures.create_model()
        with ScriptedPolicy("hi", api_key=_KEY) as policy, policy.rollout() as rollout:
            await self.agent(model=model)
            texts = {"model": repr(model), "vars(model)": repr(getattr(model, "__dict__", ""))}
            texts["rollout"] = repr(rollout)
        shown = [what for what, text in texts.items() if _KEY in text]
        expect(not shown, f"the key is in the repr of {shown}")

    @check("secrets")
    async def test_key_is_in_no_error(self) -> None:
        """If this fails, an error repeats what the endpoint echoed; raise the transport's own."""
        with ScriptedPolicy(Status(401, f"the key {_KEY} is wrong"), api_key=_KEY) as policy:
            error, rollout = await self.failure(policy)
        texts = [f"{describe(link)} {link!r} {link}" for link in causes(error) if link is error]
        expect(_KEY not in "".join(texts), "the key is in the error")
        expect(_KEY not in repr(rollout.calls), "the key is in the failed call")

    @check("secrets")
    async def test_key_is_in_no_log(self) -> None:
        """If this fails, requests are logged with their headers; log neither."""
        lines: list[str] = []

        class Keep(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                lines.append(f"{record.getMessage()} {record.args!r}")

        root, handler = logging.getLogger(), Keep()
        level = root.level
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
        try:
            with ScriptedPolicy("hi", Status(400), api_key=_KEY) as policy:
                for _ in range(2):
                    await self.failure(policy)
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
        expect(not any(_KEY in line for line in lines), "the key is in the log")
        in_process = (await _probed(self.fixtures)).report["logged the key"]
        expect(not in_process, "the key is on stderr or in the log of a fresh process")

    @check("secrets")
    async def test_key_outlives_no_rollout(self) -> None:
        """If this fails, the key is in a global or in the environment; let the transport add it."""
        holders: list[str] = (await _probed(self.fixtures)).report["key in"]
        expect(not holders, f"after the rollouts the key is in {holders}")

    @check("secrets")
    async def test_keys_of_the_environment_are_not_used(self) -> None:
        """If this fails, the SDK takes its key from the environment; give it any other."""
        kept = {name: os.environ.get(name) for name in _VENDOR_KEYS}
        os.environ.update(_VENDOR_KEYS)
        try:
            with ScriptedPolicy("hi") as policy:
                await self.run(policy, model=self.fixtures.create_model())
        finally:
            for name, value in kept.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        vendor = next(iter(_VENDOR_KEYS.values()))
        leaked = [n for n, value in policy.requests[0].headers.items() if vendor in value]
        expect(not leaked, f"the policy is sent a vendor's key in {leaked}")
