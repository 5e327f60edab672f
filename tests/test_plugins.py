"""Plugins declare and observe; one that is wrong costs only itself, and says why."""

import importlib.metadata
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import click
import pytest

from osmosis_core import (
    AgentWorkflow,
    ConfigError,
    ExecutionRequest,
    ExecutionResult,
    LocalBackend,
    PluginError,
    PolicyCall,
    RolloutSample,
    RolloutStatus,
    SampleSource,
    hookimpl,
    hookspecs,
)
from osmosis_core.execution import Program
from osmosis_core.hookspecs import Framework
from osmosis_core.plugins import PluginManager
from osmosis_core.testing import ScriptedPolicy

ROOT = Path(__file__).parents[1]
HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("osmosis_"))
INSTALLED = sorted(importlib.metadata.entry_points(group="osmosis_core"), key=lambda e: e.name)
REQUEST = ExecutionRequest(id="r", prompt=[])
RESULT = ExecutionResult(RolloutStatus.SUCCESS, {})
FRAMEWORK = Framework("acme", "acme-agents", ">=1,<2", "osmosis_acme")


class Idle(AgentWorkflow):
    async def run(self, ctx):
        raise AssertionError


BACKEND = LocalBackend(workflow=Idle)


class Entry:
    """An entry point of a distribution that is not installed."""

    def __init__(self, name, load):
        self.name, self.value, self.load = name, f"osmosis_{name}", load
        self.dist = SimpleNamespace(name=f"osmosis-{name}", version="1.0")


def plugin(name, *hooks, **members):
    """An entry point whose module holds these functions, marked as hooks, and these members."""
    module = ModuleType(f"osmosis_{name}")
    vars(module).update({hook.__name__: hookimpl(hook) for hook in hooks} | members)
    return Entry(name, lambda: module)


def broken(name, error):
    def load():
        raise error

    return Entry(name, load)


def loaded(*entries, **options):
    return PluginManager(entry_points=entries, **options)


def record_of(manager, name):
    return next(record for record in manager.records if record.name == name)


def backends(*names, factory=LocalBackend):
    def osmosis_register_backends(register):
        for name in names:
            register(name, factory)

    return osmosis_register_backends


def commands(*names, error=None):
    def osmosis_register_commands(cli):
        for name in names:
            cli.add_command(click.Command(name))
        if error:
            raise error

    return osmosis_register_commands


class TestDeclaring:
    def test_backend_is_on_offer_beside_those_of_the_kernel(self):
        manager = loaded(plugin("acme", backends("cloud")))
        assert manager.backend("cloud") is LocalBackend
        assert manager.backends == ["cloud", "local"]

    def test_policy_is_on_offer_beside_those_of_the_kernel(self):
        def osmosis_register_policies(register):
            register("scripted", ScriptedPolicy)

        manager = loaded(plugin("acme", osmosis_register_policies))
        assert manager.policy("scripted") is ScriptedPolicy
        assert manager.policies == ["demo", "scripted"]

    def test_protocol_is_on_offer(self):
        def osmosis_register_protocols(register):
            register("telepathy", str)

        manager = loaded(plugin("acme", osmosis_register_protocols))
        assert (manager.protocols, manager.protocol("telepathy")) == (["telepathy"], str)

    def test_framework_is_listed(self):
        def osmosis_register_frameworks(register):
            register(FRAMEWORK)

        manager = loaded(plugin("acme", osmosis_register_frameworks))
        assert manager.frameworks == [FRAMEWORK]

    def test_record_says_who_offers_what(self):
        manager = loaded(plugin("acme", backends("one", "two")))
        record = record_of(manager, "acme")
        assert record.offers == {"backend": ["one", "two"]}
        assert record.owner == "acme (osmosis-acme 1.0)"
        assert record.status == "loaded"

    def test_hooks_of_a_kind_unknown_here_may_be_optional(self):
        @hookimpl(optionalhook=True)
        def osmosis_register_dreams(register):
            raise AssertionError

        manager = loaded(plugin("acme", osmosis_register_dreams=osmosis_register_dreams))
        assert record_of(manager, "acme").status == "loaded"

    def test_arguments_with_defaults_of_their_own_are_left_alone(self):
        def osmosis_register_backends(register, name="cloud", **later):
            register(name, LocalBackend)

        assert loaded(plugin("acme", osmosis_register_backends)).backends == ["cloud", "local"]

    def test_kernel_offers_a_local_backend_and_a_demo_policy(self):
        manager = loaded()
        assert (manager.backends, manager.policies) == (["local"], ["demo"])
        assert record_of(manager, "core").distribution == "osmosis-core"

    def test_names_in_disabled_are_never_imported(self):
        entry = broken("acme", AssertionError("was imported"))
        manager = loaded(entry, plugin("other", backends("cloud")), disabled="acme, nobody")
        assert record_of(manager, "acme").status == "disabled"
        assert manager.backends == ["cloud", "local"]

    def test_environment_disables(self, monkeypatch):
        monkeypatch.setenv("OSMOSIS_DISABLED_PLUGINS", "*")
        assert loaded(plugin("acme", backends("cloud"))).backends == ["local"]


class TestConflicts:
    def test_name_offered_twice_belongs_to_nobody_and_names_both(self):
        manager = loaded(plugin("acme", backends("cloud")), plugin("zeta", backends("cloud")))
        with pytest.raises(PluginError) as caught:
            manager.backend("cloud")
        assert "acme (osmosis-acme 1.0) and zeta (osmosis-zeta 1.0)" in str(caught.value)
        assert "OSMOSIS_DISABLED_PLUGINS" in str(caught.value)
        assert manager.conflicts == [str(caught.value)]

    def test_disabling_one_of_two_resolves_it(self):
        entries = plugin("acme", backends("cloud")), plugin("zeta", backends("cloud"))
        manager = loaded(*entries, disabled="zeta")
        assert manager.backend("cloud") is LocalBackend
        assert manager.conflicts == []

    def test_kernel_names_cannot_be_taken_over_silently(self):
        with pytest.raises(PluginError, match=r"core \(osmosis-core .*\) and acme"):
            loaded(plugin("acme", backends("local"))).backend("local")

    def test_one_name_may_be_of_two_kinds(self):
        def osmosis_register_policies(register):
            register("cloud", ScriptedPolicy)

        manager = loaded(plugin("acme", backends("cloud"), osmosis_register_policies))
        assert manager.conflicts == []


class Wrong:
    async def osmosis_rollout_started(request):
        raise AssertionError

    async def osmosis_register_backends(register):
        yield register

    def osmosis_register_backend(register):
        raise AssertionError

    def osmosis_register_policies(registry):
        raise AssertionError


class TestRefusals:
    @pytest.mark.parametrize(
        ("entry", "cause"),
        [
            (plugin("acme", Wrong.osmosis_rollout_started), "'osmosis_rollout_started' is async"),
            (
                plugin("acme", Wrong.osmosis_register_backends),
                "'osmosis_register_backends' is async",
            ),
            (
                plugin("acme", Wrong.osmosis_register_backend),
                "unknown hook 'osmosis_register_backend'; did you mean 'osmosis_register_backends'",
            ),
            (plugin("acme", Wrong.osmosis_register_policies), "registry"),
            (Entry("acme", lambda: LocalBackend), "its entry point names <class"),
            (plugin("acme", OSMOSIS_API=2), "API 2, here is 1; upgrade osmosis-core"),
            (plugin("acme", OSMOSIS_API=0), "API 0, here is 1; upgrade the plugin"),
            (plugin("acme", OSMOSIS_API="one"), "TypeError"),
            (broken("acme", SystemExit(3)), "SystemExit: 3"),
            (broken("acme", SyntaxError("what")), "SyntaxError: what"),
            (broken("acme", ImportError()), "ImportError: ImportError"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_plugin_fails_alone_and_says_why(self, entry, cause):
        manager = loaded(entry, plugin("other", backends("cloud")))
        record = record_of(manager, "acme")
        assert record.status == "failed"
        assert cause in record.error
        assert manager.backends == ["cloud", "local"]

    def test_failing_in_the_middle_of_declaring_leaves_nothing_behind(self):
        heard = []

        def osmosis_register_backends(register):
            register("cloud", LocalBackend)
            raise RuntimeError("no region")

        def osmosis_sample_registered(sample_id):
            heard.append(sample_id)

        manager = loaded(plugin("acme", osmosis_register_backends, osmosis_sample_registered))
        manager.notify("osmosis_sample_registered", rollout_id="r", sample_id="main")
        assert (manager.backends, manager.conflicts, heard) == (["local"], [], [])
        with pytest.raises(PluginError, match="failed to load: RuntimeError: no region"):
            manager.backend("cloud")

    def test_interrupting_the_import_is_not_swallowed(self):
        with pytest.raises(KeyboardInterrupt):
            loaded(broken("acme", KeyboardInterrupt()))


class TestAsking:
    def test_near_miss_is_suggested_with_all_that_is_there(self):
        with pytest.raises(PluginError) as caught:
            loaded(plugin("acme", backends("cloud"))).backend("clout")
        text = "no backend 'clout'; there is cloud, local; did you mean 'cloud'?"
        assert str(caught.value) == text

    def test_unknown_policy_is_answered_alike(self):
        with pytest.raises(PluginError, match="no policy 'dmeo'; there is demo; did you mean"):
            loaded().policy("dmeo")

    @pytest.mark.parametrize("extra", ["strands", "eval"])
    def test_name_of_an_extra_says_how_to_install_it(self, extra):
        with pytest.raises(PluginError) as caught:
            loaded().backend(extra)
        assert f"pip install 'osmosis-core[{extra}]'" in str(caught.value)

    def test_name_of_a_disabled_plugin_says_so(self):
        with pytest.raises(PluginError, match=r"osmosis-acme 1\.0\) is disabled"):
            loaded(plugin("acme"), disabled="acme").backend("acme")

    def test_failed_plugins_are_mentioned(self):
        with pytest.raises(PluginError, match="failed to load: acme: OSError: disk on fire"):
            loaded(broken("acme", OSError("disk on fire"))).policy("clever")


class Foreign(SampleSource):
    async def get_sample(self, sample_id):
        return RolloutSample(id=sample_id)


def adapter(answer):
    def osmosis_adapt_sample_source(source):
        return answer if source == "agent" else None

    return osmosis_adapt_sample_source


class TestAdapting:
    def test_first_answer_wins(self):
        first, second = Foreign(), Foreign()
        entries = [plugin("b", adapter(first)), plugin("c", adapter(second))]
        manager = loaded(plugin("a", adapter(None)), *entries)
        assert manager.adapt_sample_source("agent") is first

    def test_nobody_answers_for_what_nobody_knows(self):
        manager = loaded(plugin("a", adapter(Foreign())))
        assert manager.adapt_sample_source(object()) is None


def observe_all(manager, call):
    with manager.observed(REQUEST, BACKEND) as reported:
        manager.notify("osmosis_sample_registered", rollout_id="r", sample_id="main")
        manager.notify("osmosis_policy_call_finished", call=call)
        reported(ExecutionResult(RolloutStatus.FAILURE, {}))
        reported(RESULT)


class TestObserving:
    def test_everything_is_told_in_order(self):
        heard = []

        def osmosis_rollout_started(request, backend):
            heard.append((request, backend))

        def osmosis_sample_registered(rollout_id, sample_id):
            heard.append((rollout_id, sample_id))

        def osmosis_policy_call_finished(call):
            heard.append(call)

        def osmosis_rollout_finished(request, result):
            heard.append((request, result))

        call = PolicyCall("c", "r", "main", 0, {}, 0.0)
        hooks = osmosis_rollout_started, osmosis_sample_registered, osmosis_policy_call_finished
        observe_all(loaded(plugin("acme", *hooks, osmosis_rollout_finished)), call)
        assert heard == [(REQUEST, BACKEND), ("r", "main"), call, (REQUEST, RESULT)]

    def test_observers_get_only_the_arguments_that_they_name(self):
        heard = []

        def osmosis_rollout_started(backend):
            heard.append(backend)

        def osmosis_sample_registered(sample_id):
            heard.append(sample_id)

        def osmosis_rollout_finished(result, request):
            heard.append(result)

        hooks = osmosis_rollout_started, osmosis_sample_registered, osmosis_rollout_finished
        observe_all(loaded(plugin("acme", *hooks)), None)
        assert heard == [BACKEND, "main", RESULT]

    def test_rollout_that_reported_nothing_is_not_finished(self):
        def osmosis_rollout_finished(result):
            raise AssertionError

        with loaded(plugin("acme", osmosis_rollout_finished)).observed(REQUEST, BACKEND):
            pass

    def test_observer_that_raises_is_logged_once_and_stops_nobody(self, caplog):
        heard = []

        def raises(sample_id):
            raise OSError("log is full")

        def hears(sample_id):
            heard.append(sample_id)

        raises.__name__ = hears.__name__ = "osmosis_sample_registered"
        manager = loaded(plugin("a", raises), plugin("b", hears))
        for sample_id in ("one", "two", "three"):
            manager.notify("osmosis_sample_registered", rollout_id="r", sample_id=sample_id)
        assert heard == ["one", "two", "three"]
        assert len(caplog.records) == 1
        assert "osmosis_sample_registered of plugin a" in caplog.text
        assert "OSError: log is full" in caplog.text


class TestCommands:
    def test_commands_are_added_and_recorded(self):
        manager, root = loaded(plugin("acme", commands("ship", "sail"))), click.Group()
        manager.add_commands(root)
        assert sorted(root.commands) == ["sail", "ship"]
        assert record_of(manager, "acme").offers == {"command": ["ship", "sail"]}

    @pytest.mark.parametrize("error", [RuntimeError("no wind"), SystemExit("no wind")])
    def test_plugin_that_fails_while_adding_leaves_nothing(self, error):
        heard = []

        def osmosis_sample_registered(sample_id):
            heard.append(sample_id)

        hooks = commands("ship", "list", error=error), backends("cloud"), osmosis_sample_registered
        manager = loaded(plugin("acme", *hooks), plugin("other", commands("sail")))
        root = click.Group(commands={"list": (own := click.Command("list"))})
        manager.add_commands(root)
        manager.notify("osmosis_sample_registered", rollout_id="r", sample_id="main")
        assert (root.commands["list"], sorted(root.commands)) == (own, ["list", "sail"])
        assert (manager.backends, heard) == (["local"], [])
        assert record_of(manager, "acme").error == f"{type(error).__name__}: no wind"

    def test_taken_name_stays_with_its_owner_and_is_reported(self):
        manager = loaded(plugin("acme", commands("ship")), plugin("zeta", commands("ship", "sail")))
        root = click.Group()
        manager.add_commands(root)
        conflict = "command 'ship' is offered by acme and zeta (osmosis-zeta 1.0)"
        assert manager.conflicts == [conflict]
        assert record_of(manager, "zeta").offers == {"command": ["sail"]}

    def test_missing_command_is_explained_like_a_missing_backend(self):
        manager = loaded(broken("acme", OSError("disk on fire")))
        assert manager.missing_command("sial", ["ship", "sail"]) == (
            "no command 'sial'; there is sail, ship; did you mean 'sail'?"
            "; plugins that failed to load: acme: OSError: disk on fire"
        )


@pytest.mark.parametrize("entry_point", INSTALLED, ids=lambda entry_point: entry_point.name)
def test_installed_plugin_modules_are_light(entry_point):
    check = (
        f"import sys, {entry_point.module}\n"
        "print([m for m in ('strands', 'openai', 'rich', 'aiohttp', 'httpx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_test(hook):
    tests = [
        path
        for root in ("tests", "plugins", "examples")
        for path in ROOT.glob(f"{root}/**/test_*.py")
    ]
    assert any(hook in path.read_text() for path in tests)


def test_every_hook_has_a_heading_with_its_arguments():
    page = (ROOT / "docs" / "plugins.md").read_text()
    headings = re.findall(r"^### `(osmosis_\w+)\((.*)\)`$", page, re.MULTILINE)
    wanted = [(h, ", ".join(inspect.signature(getattr(hookspecs, h)).parameters)) for h in HOOKS]
    assert sorted(headings) == wanted


def test_hook_without_the_marker_is_refused():
    def osmosis_rollout_started(request): ...

    manager = loaded(plugin("acme", osmosis_rollout_started=osmosis_rollout_started))
    assert "put @hookimpl above it" in manager.records[-1].error


def test_wrapper_is_refused():
    @hookimpl(wrapper=True)
    def osmosis_rollout_started(request):
        yield

    manager = loaded(plugin("acme", osmosis_rollout_started=osmosis_rollout_started))
    assert "is a wrapper" in manager.records[-1].error


def test_adapter_that_raises_is_named():
    def osmosis_adapt_sample_source(source):
        raise RuntimeError("boom")

    manager = loaded(plugin("acme", osmosis_adapt_sample_source))
    with pytest.raises(PluginError, match=r"plugin acme .* cannot read 'agent': boom"):
        manager.adapt_sample_source("agent")


class TestTargets:
    def test_first_answer_wins_and_none_is_passed_over(self):
        def osmosis_adapt_target(obj):
            return Program(int) if obj == 1 else None

        acme = plugin("acme", osmosis_adapt_target)

        def osmosis_adapt_target(obj):
            return Program(str)

        manager = loaded(acme, plugin("zeta", osmosis_adapt_target))
        assert [manager.adapt_target(obj).workflow for obj in (1, 2)] == [int, str]

    def test_nobody_adapts_without_plugins(self):
        assert loaded().adapt_target(1) is None

    @pytest.mark.parametrize(
        ("raised", "kind", "text"),
        [
            (RuntimeError("boom"), PluginError, r"plugin acme .* cannot read 1: boom"),
            (ConfigError("two loops"), ConfigError, r"^two loops$"),
        ],
    )
    def test_config_error_is_the_users_and_all_else_the_plugins(self, raised, kind, text):
        def osmosis_adapt_target(obj):
            raise raised

        with pytest.raises(kind, match=text):
            loaded(plugin("acme", osmosis_adapt_target)).adapt_target(1)
