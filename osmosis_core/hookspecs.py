"""Every hook a plugin may implement; hooks declare or observe, they never await.

A plugin is a module named by an entry point in the group `osmosis_core`. It is imported when the
first rollout or command starts, so it must be light: import the framework inside the factory that
it registers, not at its top. Mark implementations with `@hookimpl` and name only the arguments
you need. Each hook has a heading in `docs/plugins.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import click

    from osmosis_core.backend import ExecutionBackend
    from osmosis_core.context import SampleSource
    from osmosis_core.execution import Program
    from osmosis_core.types import ExecutionRequest, ExecutionResult, PolicyCall

ENTRY_POINT_GROUP = "osmosis_core"
API_VERSION = 1
"""A plugin may set `OSMOSIS_API = <n>`; a number that is not this one is refused at load."""

hookspec = pluggy.HookspecMarker("osmosis_core")
hookimpl = pluggy.HookimplMarker("osmosis_core")


@dataclass(frozen=True, slots=True)
class Framework:
    """An agent framework that a plugin integrates."""

    name: str
    distribution: str
    """The framework's distribution on the package index."""
    versions: str
    """Versions it is tested with, as a version specifier."""
    module: str
    """Import path of the integration, e.g. `osmosis_strands`."""
    conformance: str | None = None
    """`module:class` of the fixtures for `osmosis_core.testing.AdapterConformance`."""
    quiet_env: tuple[tuple[str, str], ...] = ()
    """Environment variables that switch the framework's telemetry off."""


@dataclass(frozen=True, slots=True)
class PolicyEndpoint:
    """Where an OpenAI-compatible policy answers."""

    base_url: str
    """Base URL, without `/chat/completions`."""
    api_key: str | None = None
    model: str | None = None
    """Model name on the wire; None means `osmosis-rollout`."""


type BackendFactory = Callable[..., ExecutionBackend]
"""Builds a backend; keyword arguments are those of LocalBackend plus the backend's own."""

type PolicyFactory = Callable[[], AbstractAsyncContextManager[PolicyEndpoint]]

type ProtocolFactory = Callable[[Any], Any]
"""Makes an `osmosis_server.Protocol` for a RolloutService; the kernel knows neither."""

type Register[T] = Callable[[str, T], None]
"""What a declaring hook is given: call it with a name, once for each thing you offer."""

type RegisterFramework = Callable[[Framework], None]
"""What `osmosis_register_frameworks` is given."""


@hookspec
def osmosis_register_backends(register: Register[BackendFactory]) -> None:
    """Declare backends: `register(name, factory)`; the factory imports what it needs.

    :param register: takes the name users type (`--backend NAME`) and a factory.
    """


@hookspec
def osmosis_register_frameworks(register: RegisterFramework) -> None:
    """Declare the agent frameworks that this plugin integrates.

    :param register: takes one `Framework`.
    """


@hookspec
def osmosis_register_policies(register: Register[PolicyFactory]) -> None:
    """Declare policies that `osmosis eval run --policy NAME` can start.

    :param register: takes a name and a function returning an async context manager that yields
        a `PolicyEndpoint`.
    """


@hookspec
def osmosis_register_protocols(register: Register[ProtocolFactory]) -> None:
    """Declare protocols that rollout servers speak with controllers.

    :param register: takes a name and a function from the server's service to a
        `osmosis_server.Protocol`.
    """


@hookspec
def osmosis_register_commands(cli: click.Group) -> None:
    """Add commands to `osmosis`; import what a command needs inside the command.

    :param cli: an empty group whose commands join the root's; a name that is taken stays with
        its first owner, and `osmosis plugins` lists the conflict.
    """


@hookspec
def osmosis_adapt_sample_source(source: object) -> SampleSource | None:  # pyright: ignore[reportReturnType]
    """Make a foreign object (an agent, a session) readable as a sample; the first answer wins.

    :param source: whatever was given to `RolloutContext.register_agent`.
    :returns: a `SampleSource`, or None when the object is not yours.
    """


@hookspec
def osmosis_adapt_target(obj: object) -> Program | None:  # pyright: ignore[reportReturnType]
    """Make something that is no workflow a TARGET of commands; the first answer wins.

    :param obj: what `module:attr` names, or a module in which there is no workflow.
    :returns: what to run instead, or None when the object is not yours. Raise ConfigError for one
        that is yours and unusable.
    """


@hookspec
def osmosis_rollout_started(request: ExecutionRequest, backend: ExecutionBackend) -> None:
    """Observe that a backend accepted a rollout; return quickly, errors are logged.

    :param request: do not change it.
    :param backend: the backend that runs it.
    """


@hookspec
def osmosis_sample_registered(rollout_id: str, sample_id: str) -> None:
    """Observe that an agent or source registered itself with a rollout.

    :param rollout_id: id of the rollout.
    :param sample_id: the id as it is on the wire (percent-encoded).
    """


@hookspec
def osmosis_policy_call_finished(call: PolicyCall) -> None:
    """Observe a finished policy call, successful or not; may be called from any thread.

    :param call: do not change it.
    """


@hookspec
def osmosis_rollout_finished(request: ExecutionRequest, result: ExecutionResult) -> None:
    """Observe the last result of a rollout, after its callbacks; a cancelled caller has none.

    :param request: the request as given to `osmosis_rollout_started`.
    :param result: the graded result if there is one, else the workflow's.
    """
