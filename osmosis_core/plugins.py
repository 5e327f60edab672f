"""Find plugins, load each in its own `try`, keep what they offer, tell observers."""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

from osmosis_core import hookspecs
from osmosis_core.errors import PluginError, describe, nearest, one_line
from osmosis_core.hookspecs import API_VERSION, BackendFactory, Framework, PolicyFactory
from osmosis_core.offers import DISTRIBUTION, Offers, PluginRecord

if TYPE_CHECKING:
    import click

    from osmosis_core.backend import ExecutionBackend
    from osmosis_core.context import SampleSource
    from osmosis_core.types import ExecutionRequest, ExecutionResult

logger = logging.getLogger(__name__)

_HOOKS = frozenset(name for name in vars(hookspecs) if name.startswith("osmosis_"))
_LISTENING = _HOOKS - {name for name in _HOOKS if name.startswith("osmosis_register_")}


class EntryPoint(Protocol):
    """The part of `importlib.metadata.EntryPoint` that is used here."""

    @property
    def name(self) -> str:
        """The plugin's name."""
        ...

    @property
    def value(self) -> str:
        """The module that it names."""
        ...

    def load(self) -> Any:
        """Import the module."""
        ...


class PluginManager:
    """All plugins of this process; `get_plugins()` returns the one that everything uses."""

    def __init__(
        self, entry_points: Iterable[EntryPoint] | None = None, disabled: str | None = None
    ) -> None:
        """Load everything; by default installed entry points less OSMOSIS_DISABLED_PLUGINS."""
        self.records: list[PluginRecord] = []
        self._offers = Offers(self.records)
        self._modules: dict[str, ModuleType] = {}
        self._listeners: dict[str, list[tuple[str, Callable[..., Any]]]] = {}
        self._logged: set[tuple[str, str]] = set()
        self._command_conflicts: list[str] = []
        self._pm = pluggy.PluginManager("osmosis_core")
        self._pm.add_hookspecs(hookspecs)
        names = os.environ.get("OSMOSIS_DISABLED_PLUGINS", "") if disabled is None else disabled
        self._load_all(entry_points, {name.strip() for name in names.split(",")})

    def _load_all(self, given: Iterable[EntryPoint] | None, disabled: set[str]) -> None:
        from osmosis_core import builtin

        core = PluginRecord("core", builtin.__name__, DISTRIBUTION, _version())
        self._load(core, lambda: builtin)
        group = hookspecs.ENTRY_POINT_GROUP
        found = importlib.metadata.entry_points(group=group) if given is None else given
        for entry_point in sorted(found, key=lambda e: (e.name, e.value)):
            dist: Any = getattr(entry_point, "dist", None)
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
            self._pm.register(module, name=f"{record.name}={record.module}")
            self._declare(record, module)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # one broken plugin must not stop the others
            self._fail(record, error)
        else:
            self._modules[record.owner] = module
            for hook in _LISTENING & vars(module).keys():
                listener = _implementation(module, hook)
                if listener is not None:
                    self._listeners.setdefault(hook, []).append((record.owner, listener))

    def _fail(self, record: PluginRecord, error: BaseException) -> None:
        key = f"{record.name}={record.module}"
        self._pm.unregister(name=key) if self._pm.has_plugin(key) else None
        self._offers.forget(record)
        for listeners in self._listeners.values():
            listeners[:] = [listener for listener in listeners if listener[0] != record.owner]
        record.status = "failed"
        record.error = one_line(f"{type(error).__name__}: {describe(error)}")
        logger.debug("plugin %s failed to load", record.name, exc_info=error)

    def _declare(self, record: PluginRecord, module: ModuleType) -> None:
        register_named = self._offers.register("framework", record)

        def register_framework(framework: Framework) -> None:
            register_named(framework.name, framework)

        offered: dict[str, Callable[..., None]] = {
            "osmosis_register_backends": self._offers.register("backend", record),
            "osmosis_register_policies": self._offers.register("policy", record),
            "osmosis_register_frameworks": register_framework,
        }
        for hook, register in offered.items():
            declare = _implementation(module, hook)
            if declare is not None:
                declare(register=register)

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

    def framework(self, name: str) -> Framework:
        """An integrated agent framework; raises PluginError like `backend`."""
        return self._offers.get("framework", name)

    def add_commands(self, cli: click.Group) -> None:
        """Let each plugin add its commands; one that fails is recorded and leaves nothing."""
        owners = dict.fromkeys(cli.commands, "core")
        for record in self.records:
            module = self._modules.get(record.owner)
            add = _implementation(module, "osmosis_register_commands") if module else None
            if add is not None:
                self._add_commands_of(record, add, cli, owners)

    def _add_commands_of(
        self,
        record: PluginRecord,
        add: Callable[..., Any],
        cli: click.Group,
        owners: dict[str, str],
    ) -> None:
        before = dict(cli.commands)
        try:
            add(cli=cli)
        except (Exception, SystemExit) as error:  # a broken command must not take the others down
            cli.commands = before
            self._fail(record, error)
            return
        for name, command in list(cli.commands.items()):
            if name not in before:
                owners[name] = record.name
                record.offers.setdefault("command", []).append(name)
            elif command is not before[name]:
                cli.commands[name] = before[name]
                both = f"{owners[name]} and {record.owner}"
                self._command_conflicts.append(f"command {name!r} is offered by {both}")

    def missing_command(self, name: str, known: Iterable[str]) -> str:
        """Why there is no such command, in the words of `backend`."""
        return self._offers.missing("command", name, sorted(known))

    def adapt_sample_source(self, source: object) -> SampleSource | None:
        """The first plugin's answer; PluginError names the plugin whose hook raised."""
        for owner, adapt in self._listeners.get("osmosis_adapt_sample_source", ()):
            try:
                adapted = adapt(source=source)
            except Exception as error:
                raise PluginError(f"plugin {owner} cannot read {source!r}: {error}") from error
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

    def notify(self, hook: str, **arguments: Any) -> None:
        """Call every observer of a hook; what they raise is logged once and never felt."""
        for name, observe in self._listeners.get(hook, ()):
            try:
                observe(**arguments)
            except Exception:  # observers are isolated from the rollout
                if (name, hook) not in self._logged:
                    self._logged.add((name, hook))
                    logger.exception(
                        "observer %s of plugin %s raised; further ones are silent", hook, name
                    )


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


def _implementation(module: ModuleType, hook: str) -> Callable[..., Any] | None:
    """A plugin's implementation, taking any of the hook's arguments and using those it names."""
    function: Any = getattr(module, hook, None)
    if not hasattr(function, "osmosis_core_impl"):
        return None
    accepted = inspect.signature(function).parameters.keys()

    def call(**arguments: Any) -> Any:
        return function(**{k: v for k, v in arguments.items() if k in accepted})

    return call


def _version() -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "?"


_plugins: PluginManager | None = None
_lock = threading.Lock()


def get_plugins() -> PluginManager:
    """The process's plugins, loaded when first asked for."""
    global _plugins
    if _plugins is None:
        with _lock:
            _plugins = _plugins or PluginManager()
    return _plugins
