"""Find plugins, load each in its own `try`, keep what they offer, tell observers."""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import partial
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from osmosis_core import hookspecs
from osmosis_core.errors import ConfigError, PluginError, describe, nearest, one_line
from osmosis_core.hookspecs import (
    API_VERSION,
    BackendFactory,
    Framework,
    PolicyFactory,
    ProtocolFactory,
)
from osmosis_core.offers import DISTRIBUTION, Offers, PluginRecord, kernel_metadata

if TYPE_CHECKING:
    import click

    from osmosis_core.backend import ExecutionBackend
    from osmosis_core.context import SampleSource
    from osmosis_core.execution import Program
    from osmosis_core.types import ExecutionRequest, ExecutionResult

logger = logging.getLogger(__name__)

_HOOKS = frozenset(name for name in vars(hookspecs) if name.startswith("osmosis_"))


class PluginManager:
    """All plugins of this process; `get_plugins()` returns the one that everything uses."""

    def __init__(
        self, entry_points: Iterable[EntryPoint] | None = None, disabled: str | None = None
    ) -> None:
        """Load everything; by default installed entry points less OSMOSIS_DISABLED_PLUGINS."""
        self.records: list[PluginRecord] = []
        self._offers = Offers(self.records)
        self._logged: set[tuple[str, str]] = set()
        self._command_conflicts: list[str] = []
        self.is_silent = False
        """True where a backend runs rollouts elsewhere: their host tells observers, once."""
        self._resolved: dict[str, list[tuple[PluginRecord, Callable[..., Any]]]] = {}
        self._pm = pluggy.PluginManager("osmosis_core")
        self._pm.add_hookspecs(hookspecs)
        names = os.environ.get("OSMOSIS_DISABLED_PLUGINS", "") if disabled is None else disabled
        self._load_all(entry_points, {name.strip() for name in names.split(",")})

    def _load_all(self, given: Iterable[EntryPoint] | None, disabled: set[str]) -> None:
        from osmosis_core import builtin

        version = kernel_metadata()["Version"] or "?"
        self._load(PluginRecord("core", builtin.__name__, DISTRIBUTION, version), lambda: builtin)
        group = hookspecs.ENTRY_POINT_GROUP
        found = importlib.metadata.entry_points(group=group) if given is None else given
        for entry_point in sorted(found, key=lambda e: (e.name, e.value)):
            dist = entry_point.dist
            origin = (dist.name, dist.version) if dist is not None else ("?", "?")
            record = PluginRecord(entry_point.name, entry_point.value, *origin)
            if disabled & {entry_point.name, "*"}:
                record.status = "disabled"
                self.records.append(record)
            else:
                self._load(record, entry_point.load)

    def _load(self, record: PluginRecord, load: Callable[[], Any]) -> None:
        self.records.append(record)
        try:
            module = _checked(load())
            self._pm.register(module, name=record.key)
            self._resolved.clear()
            self._declare(record)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # one broken plugin must not stop the others
            self._fail(record, error)

    def _fail(self, record: PluginRecord, error: BaseException) -> None:
        if self._pm.has_plugin(record.key):
            self._pm.unregister(name=record.key)
            self._resolved.clear()
        self._offers.forget(record)
        record.status = "failed"
        record.error = one_line(f"{type(error).__name__}: {describe(error)}")
        logger.debug("plugin %s failed to load", record.name, exc_info=error)

    def _declare(self, record: PluginRecord) -> None:
        register_named = self._offers.register("framework", record)

        def register_framework(framework: Framework) -> None:
            register_named(framework.name, framework)

        registers: dict[str, Callable[..., None]] = {
            "osmosis_register_backends": self._offers.register("backend", record),
            "osmosis_register_policies": self._offers.register("policy", record),
            "osmosis_register_protocols": self._offers.register("protocol", record),
            "osmosis_register_frameworks": register_framework,
        }
        for hook, register in registers.items():
            for owner, declare in self._implementations(hook):
                if owner is record:
                    declare(register=register)

    def _implementations(self, hook: str) -> list[tuple[PluginRecord, Callable[..., Any]]]:
        """Who implements a hook, in loading order; each is called with all of its arguments."""
        if hook not in self._resolved:
            caller: pluggy.HookCaller = getattr(self._pm.hook, hook)
            owners = {record.key: record for record in self.records}
            self._resolved[hook] = [
                (owners[i.plugin_name], partial(_call, i.function, i.argnames))
                for i in caller.get_hookimpls()
            ]
        return self._resolved[hook]

    @property
    def conflicts(self) -> list[str]:
        """One line for each name that several plugins offer."""
        return self._offers.conflicts + self._command_conflicts

    @property
    def backends(self) -> list[str]:
        """Sorted names of the backends on offer."""
        return self._offers.names("backend")

    @property
    def policies(self) -> list[str]:
        """Sorted names of the policies on offer."""
        return self._offers.names("policy")

    @property
    def protocols(self) -> list[str]:
        """Sorted names of the protocols on offer."""
        return self._offers.names("protocol")

    @property
    def frameworks(self) -> list[Framework]:
        """The integrated agent frameworks."""
        return [self._offers.get("framework", name) for name in self._offers.names("framework")]

    def backend(self, name: str) -> BackendFactory:
        """The factory of a backend.

        Raises:
            PluginError: nobody offers it (with the nearest name), its plugin failed (with the
                cause) or is disabled, or two plugins offer it.
        """
        return self._offers.get("backend", name)

    def policy(self, name: str) -> PolicyFactory:
        """The factory of a policy; raises PluginError like `backend`."""
        return self._offers.get("policy", name)

    def protocol(self, name: str) -> ProtocolFactory:
        """The factory of a protocol; raises PluginError like `backend`."""
        return self._offers.get("protocol", name)

    def framework(self, name: str) -> Framework:
        """An integrated agent framework; raises PluginError like `backend`."""
        return self._offers.get("framework", name)

    def add_commands(self, cli: click.Group) -> None:
        """Let each plugin add its commands; one that fails is recorded and leaves nothing."""
        from click import Group

        owners = dict.fromkeys(cli.commands, "core")
        for record, add in self._implementations("osmosis_register_commands"):
            offered = Group()
            try:
                add(cli=offered)
            except (Exception, SystemExit) as error:  # it must not take the others' down
                self._fail(record, error)
                continue
            for name, command in offered.commands.items():
                if name in owners:
                    both = f"{owners[name]} and {record.owner}"
                    self._command_conflicts.append(f"command {name!r} is offered by {both}")
                else:
                    cli.add_command(command, name)
                    owners[name] = record.name
                    record.offers.setdefault("command", []).append(name)

    def missing_command(self, name: str, known: Iterable[str]) -> str:
        """Why there is no such command, in the words of `backend`."""
        return self._offers.missing("command", name, sorted(known))

    def adapt_sample_source(self, source: object) -> SampleSource | None:
        """The first plugin's answer; PluginError names the plugin whose hook raised."""
        return self._adapted("osmosis_adapt_sample_source", source, source=source)

    def adapt_target(self, obj: object) -> Program | None:
        """As `adapt_sample_source`; a ConfigError of the plugin's is raised as it is."""
        return self._adapted("osmosis_adapt_target", obj, obj=obj)

    def _adapted(self, hook: str, given: object, **arguments: Any) -> Any:
        for record, adapt in self._implementations(hook):
            try:
                adapted = adapt(**arguments)
            except ConfigError:
                raise
            except Exception as error:
                text = f"plugin {record.owner} cannot read {given!r}: {error}"
                raise PluginError(text) from error
            if adapted is not None:
                return adapted
        return None

    @contextmanager
    def observed(
        self, request: ExecutionRequest, backend: ExecutionBackend
    ) -> Generator[Callable[[ExecutionResult], None]]:
        """Tell observers that a rollout started and, at the end, its last result.

        A backend runs `execute` inside it, on the host, and calls what it yields with each
        result that it reports.
        """
        results: list[ExecutionResult] = []
        self.notify("osmosis_rollout_started", request=request, backend=backend)
        try:
            yield results.append
        finally:
            if results:
                self.notify("osmosis_rollout_finished", request=request, result=results[-1])

    def tell(self, rollout_id: str, result: ExecutionResult) -> None:
        """Tell observers of the agents and policy calls of a rollout that ran elsewhere."""
        for sample_id, sample in result.samples.items():
            if "agent_name" in sample.extra_fields:
                self.notify("osmosis_sample_registered", rollout_id=rollout_id, sample_id=sample_id)
        calls = [call for sample in result.samples.values() for call in sample.calls]
        for call in sorted(calls, key=lambda call: call.index):
            self.notify("osmosis_policy_call_finished", call=call)

    def notify(self, hook: str, **arguments: Any) -> None:
        """Call every observer of a hook; what they raise is logged once and never felt."""
        for record, observe in () if self.is_silent else self._implementations(hook):
            try:
                observe(**arguments)
            except Exception:  # observers are isolated from the rollout
                if (record.key, hook) not in self._logged:
                    self._logged.add((record.key, hook))
                    text = "observer %s of plugin %s raised; further ones are silent"
                    logger.exception(text, hook, record.owner)


def _checked(module: Any) -> ModuleType:
    if not isinstance(module, ModuleType):
        raise PluginError(f"its entry point names {module!r}; name a module")
    wanted: int = getattr(module, "OSMOSIS_API", API_VERSION)
    if wanted != API_VERSION:
        which = DISTRIBUTION if wanted > API_VERSION else "the plugin"
        raise PluginError(f"made for plugin API {wanted}, here is {API_VERSION}; upgrade {which}")
    for name, value in vars(module).items():
        options: dict[str, Any] | None = getattr(value, "osmosis_core_impl", None)
        if isinstance(options, dict) or (name in _HOOKS and inspect.isfunction(value)):
            _check_hook(name, value, options)
    return module


def _check_hook(name: str, function: Any, options: dict[str, Any] | None) -> None:
    if options is None:
        raise PluginError(f"{name!r} is not marked; put @hookimpl above it")
    if name not in _HOOKS and not options.get("optionalhook"):
        raise PluginError(f"unknown hook {name!r}{nearest(name, _HOOKS)}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise PluginError(f"hook {name!r} is async; hooks declare or observe, use a plain def")
    if options.get("wrapper") or options.get("hookwrapper"):
        raise PluginError(f"hook {name!r} is a wrapper; nothing is wrapped here, use a plain def")


def _call(function: Callable[..., Any], names: tuple[str, ...], **arguments: Any) -> Any:
    return function(*[arguments[name] for name in names])


_plugins: PluginManager | None = None
_lock = threading.Lock()


def get_plugins() -> PluginManager:
    """The process's plugins, loaded when first asked for."""
    global _plugins
    if _plugins is None:
        with _lock:
            _plugins = _plugins or PluginManager()
    return _plugins
