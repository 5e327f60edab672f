"""Which loop a workflow runs: a reference that travels, and the config that holds it."""

from __future__ import annotations

import sys
from typing import Any, cast

from pydantic import Field, model_validator

from osmosis_agent_loop.agent_loop import RolloutAgentLoop
from osmosis_agent_loop.schemas import SamplingParamsDict
from osmosis_agent_loop.settings import RolloutSettings, get_settings
from osmosis_core import AgentWorkflowConfig, ConcurrencyConfig, ConfigError
from osmosis_core.discovery import load_target


class LoopReference:
    """A loop that is shared instead of copied, and pickled by the name of its global if it has one.

    Args:
        loop: the loop, a class of loops (made without arguments), or `"module:attr"` of one.

    Raises:
        ConfigError: there is no agent loop.
    """

    def __init__(self, loop: RolloutAgentLoop | type[RolloutAgentLoop] | str) -> None:
        self.loop = as_agent_loop(loop)

    def __deepcopy__(self, memo: object) -> LoopReference:
        return self

    def __reduce__(self) -> tuple[type[LoopReference], tuple[Any]]:
        return LoopReference, (self._name() or self.loop,)

    def _name(self) -> str | None:
        module = type(self.loop).__module__
        values = vars(sys.modules[module]).items() if module in sys.modules else ()
        return next((f"{module}:{name}" for name, value in values if value is self.loop), None)


def as_agent_loop(given: object) -> RolloutAgentLoop:
    """The agent loop that an object, a class or `"module:attr"` is.

    Raises:
        ConfigError: it is none, or its class cannot be made without arguments.
    """
    if isinstance(given, str):
        module, attribute = load_target(given)
        given = getattr(module, attribute, None) if attribute else None
    if isinstance(given, type) and issubclass(given, RolloutAgentLoop):
        try:
            given = given()
        except Exception as error:  # boundary: user code raises anything
            text = f"agent loop {given.__name__} cannot be made without arguments: {error}"
            raise ConfigError(f"{text}; name an instance of it") from error
    if not isinstance(given, RolloutAgentLoop):
        raise ConfigError(f"{given!r} is no agent loop; give a RolloutAgentLoop")
    return given


class AgentLoopConfig(AgentWorkflowConfig):
    """Which loop a workflow runs, and what its requests say where no trainer does."""

    loop: Any
    """A `RolloutAgentLoop`, its class, or `"module:attr"`; read it as `agent_loop`."""
    max_turns: int = 10
    max_tokens_total: int = 8192
    completion_params: SamplingParamsDict = Field(default_factory=dict[str, Any])
    settings: RolloutSettings | None = None
    """The process's where None."""
    debug_dir: str | None = None
    """Where `ctx.log_event` writes; None for nowhere."""

    @model_validator(mode="before")
    @classmethod
    def _named_like_the_loop(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "loop" not in values:
            return values  # pyright: ignore[reportUnknownVariableType]
        given = cast("dict[str, Any]", values)
        loop = given["loop"]
        loop = loop if isinstance(loop, LoopReference) else LoopReference(loop)
        name: object = getattr(loop.loop, "name", None)
        name = name if isinstance(name, str) else type(loop.loop).__name__
        cap = {"concurrency": _cap(given.get("settings") or get_settings())}
        return {"name": name, **cap, **given, "loop": loop}

    @property
    def agent_loop(self) -> RolloutAgentLoop:
        """The loop itself."""
        return self.loop.loop


def _cap(settings: RolloutSettings) -> ConcurrencyConfig:
    """No limit, unless somebody set one."""
    is_set = "max_concurrent_rollouts" in settings.server.model_fields_set
    limit = settings.server.max_concurrent_rollouts if is_set else None
    return ConcurrencyConfig(max_concurrent=limit)
