"""An agent loop behind the first-generation protocol: an application, or a running server."""

from __future__ import annotations

import logging
import urllib.parse
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
from fastapi import FastAPI

from osmosis_agent_loop.agent_loop import RolloutAgentLoop
from osmosis_agent_loop.config import AgentLoopConfig
from osmosis_agent_loop.debug import timestamped
from osmosis_agent_loop.errors import ServeError
from osmosis_agent_loop.settings import RolloutSettings, get_settings
from osmosis_agent_loop.validator import ValidationResult, validate_agent_loop
from osmosis_agent_loop.workflow import AgentLoopWorkflow
from osmosis_core import ConfigError, LocalBackend
from osmosis_server import ServerSettings, create_rollout_server
from osmosis_server.security import fresh_key
from osmosis_server.serving import listen, origin_of, serve

DEFAULT_HOST = "0.0.0.0"
DEFAULT_PORT = 9000

type Callback = Callable[[], Awaitable[None]]


def create_app(
    agent_loop: RolloutAgentLoop,
    max_concurrent: int | None = None,
    record_ttl_seconds: float | None = None,
    settings: RolloutSettings | None = None,
    credentials: object = None,
    server_host: str | None = None,
    server_port: int | None = None,
    api_key: str | None = None,
    debug_dir: str | None = None,
    on_startup: Callback | None = None,
    on_shutdown: Callback | None = None,
    *,
    journal: Path | str | None = None,
) -> FastAPI:
    """An application that serves an agent loop; any ASGI server runs it, in one process.

    Args:
        agent_loop: the loop.
        max_concurrent: rollouts that run at once, further ones wait; None for no limit, or for
            `settings.server.max_concurrent_rollouts` where that was set.
        record_ttl_seconds: how long a finished rollout is remembered; 3600 by default.
        settings: the process's by default.
        credentials, server_host, server_port: accepted; there is no platform to register with.
        api_key: key of `/v1/rollout/init` and `/platform/health`; None lets everybody in.
        debug_dir: where `ctx.log_event` writes `<rollout id>.jsonl`.
        on_startup: awaited before the first rollout.
        on_shutdown: awaited after the last one has ended and was reported.
        journal: what was accepted and what is owed to trainers outlives the process there;
            `.osmosis/agent_loop/<name>.db` by default, `:memory:` for nowhere.

    Raises:
        ConfigError: a number is out of range, or the key is blank.
    """
    if max_concurrent is not None and max_concurrent < 1:
        raise ConfigError(f"max_concurrent is {max_concurrent}; give 1 or more, or None")
    settings = settings or get_settings()
    server = settings.server
    if record_ttl_seconds is not None:
        if record_ttl_seconds <= 0:
            raise ConfigError(f"record_ttl_seconds is {record_ttl_seconds}; give more than 0")
        server = server.model_copy(update={"record_ttl_seconds": record_ttl_seconds})
        settings = settings.model_copy(update={"server": server})
    config = AgentLoopConfig.model_validate(
        {"loop": agent_loop, "settings": settings, "debug_dir": debug_dir}
    )
    backend = LocalBackend(
        workflow=AgentLoopWorkflow, workflow_config=config, max_concurrent=max_concurrent
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        if on_startup is not None:
            await on_startup()
        try:
            yield
        finally:
            if on_shutdown is not None:
                await on_shutdown()

    return create_rollout_server(
        backend=backend,
        lifespan=lifespan,
        configure_logging=False,
        api_key=api_key,
        settings=_server_settings(config, settings, journal),
    )


def _server_settings(
    config: AgentLoopConfig, settings: RolloutSettings, journal: Path | str | None
) -> ServerSettings:
    name = urllib.parse.quote(config.name, safe=" ")
    given: dict[str, Any] = {
        "journal": journal or Path(".osmosis/agent_loop") / f"{name}.db",
        "result_retention_sec": settings.server.record_ttl_seconds,
        "delivery_timeout_sec": settings.client.timeout_seconds,
        "drain_grace_sec": settings.server.shutdown_grace_seconds,
        "trajectories": False,
    }
    return ServerSettings.model_validate(given)


def serve_agent_loop(
    agent_loop: RolloutAgentLoop,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    validate: bool = True,
    log_level: str = "info",
    reload: bool = False,
    settings: RolloutSettings | None = None,
    skip_register: bool = False,
    api_key: str | None = None,
    local_debug: bool = False,
    debug_dir: str | None = None,
) -> None:
    """Serve an agent loop until SIGTERM or Ctrl-C.

    Without `api_key` a key is made and shown once; with `local_debug` there is none. Debug logs go
    to `<debug_dir>/<unix seconds>/`. `skip_register` is accepted: nothing is registered anywhere.

    Raises:
        AgentLoopValidationError: the loop has errors.
        ServeError: the arguments contradict each other.
        ConfigError: the address or the journal cannot be had.
    """
    if reload:
        raise ServeError("reload needs a module; use `osmosis serve -m module:attr --reload`")
    if local_debug and api_key is not None:
        raise ServeError("local_debug serves without a key; leave api_key out")
    if validate:
        validate_agent_loop(agent_loop).raise_if_invalid()
    logging.basicConfig(level=log_level.upper())
    key = None if local_debug else api_key or fresh_key()
    logs = None if debug_dir is None else str(timestamped(debug_dir))
    app = create_app(agent_loop, settings=settings, api_key=key, debug_dir=logs)
    with listen(host, port, has_key=key is not None, is_insecure=local_debug) as listener:

        def say() -> None:
            click.echo(f"serving {agent_loop.name} on {origin_of(listener)}", err=True)
            if key is not None and api_key is None:
                click.echo(f"key: {key}", err=True)

        code = serve(app, listener, say)
    if code:
        raise SystemExit(code)


def validate_and_report(agent_loop: object, **options: Any) -> ValidationResult:
    """`validate_agent_loop`, with what it found printed on stderr."""
    result = validate_agent_loop(agent_loop, **options)
    for level, issues in (("error", result.errors), ("warning", result.warnings)):
        for issue in issues:
            click.echo(f"{level}: {issue.message} [{issue.code}]", err=True)
    return result
