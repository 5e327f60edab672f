"""The `osmosis gateway` command; whatever costs time to import is imported inside it."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from osmosis_core.errors import ConfigError
from osmosis_core.hookspecs import PolicyEndpoint

if TYPE_CHECKING:
    import socket

_KEY_ENV = "OSMOSIS_GATEWAY_KEY"
_UPSTREAM_KEY_ENV = "OSMOSIS_API_KEY"


@click.command()
@click.option("--upstream", metavar="URL", help="An OpenAI-compatible endpoint, often with /v1.")
@click.option("--policy", metavar="NAME", help="Start a registered policy, such as demo.")
@click.option("--litellm", metavar="MODEL", help="A model of LiteLLM (osmosis-gateway[litellm]).")
@click.option("--model", help="Ask the upstream for this model; by default the caller's.")
@click.option(
    "--api-key-env",
    metavar="NAME",
    default=_UPSTREAM_KEY_ENV,
    help=f"Variable with the upstream's key ({_UPSTREAM_KEY_ENV}).",
)
@click.option(
    "--key-env",
    metavar="NAME",
    default=_KEY_ENV,
    help=f"Variable with the key that callers need ({_KEY_ENV}); a fresh one if it is not set.",
)
@click.option("--host", default="127.0.0.1", help="Address to listen on (127.0.0.1).")
@click.option("--port", type=click.IntRange(0, 65535), default=8811, help="Port (8811); 0 is any.")
@click.option("--allow-remote", is_flag=True, help="Listen on an address that is not loopback.")
@click.option(
    "--record", type=click.Path(path_type=Path, dir_okay=False), help="Append calls to this .jsonl."
)
def gateway(
    upstream: str | None,
    policy: str | None,
    litellm: str | None,
    model: str | None,
    api_key_env: str,
    key_env: str,
    host: str,
    port: int,
    allow_remote: bool,
    record: Path | None,
) -> None:
    """Serve OpenAI's and Anthropic's APIs in front of one policy, and record its calls.

    Prints the environment variables that lead clients here, ready for a shell.
    """
    if sum(choice is not None for choice in (upstream, policy, litellm)) != 1:
        raise click.UsageError("give one of --upstream URL, --policy NAME and --litellm MODEL")
    if model is not None and upstream is None:
        raise click.UsageError("--model goes with --upstream")
    from osmosis_gateway.serving import listen

    given = os.environ.get(_name(key_env, "--key-env"))
    with listen(host, port, allow_remote=allow_remote) as listener:
        key = given or _fresh_key()
        chosen = _policy(upstream, policy, litellm, model, api_key_env)
        asyncio.run(_serve(chosen, listener, key, record, is_fresh=not given))


def _name(variable: str, option: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise ConfigError(f"{option} takes the name of an environment variable, not a key")
    return variable


def _fresh_key() -> str:
    import secrets

    return f"sk-osmosis-{secrets.token_urlsafe(32)}"


def _policy(
    upstream: str | None,
    policy: str | None,
    litellm: str | None,
    model: str | None,
    api_key_env: str,
) -> AbstractAsyncContextManager[PolicyEndpoint]:
    if upstream is not None:
        _check_url(upstream)
        key = os.environ.get(_name(api_key_env, "--api-key-env")) or None
        return nullcontext(PolicyEndpoint(upstream, key, model))
    if policy is not None:
        from osmosis_core.plugins import get_plugins

        return get_plugins().policy(policy)()
    from osmosis_gateway.litellm import litellm_policy

    return litellm_policy(str(litellm))


def _check_url(url: str) -> None:
    if not re.match(r"(https?|http\+unix)://[^/@]+(/|$)", url):
        raise ConfigError("--upstream needs the form http://host:port/v1, without a password")


def _say(origin: str, fresh_key: str | None) -> None:
    click.echo(f"OPENAI_BASE_URL={origin}/v1")
    click.echo(f"ANTHROPIC_BASE_URL={origin}")
    if fresh_key is not None:
        click.echo(f"OPENAI_API_KEY={fresh_key}")
        click.echo(f"ANTHROPIC_API_KEY={fresh_key}")


async def _serve(
    policy: AbstractAsyncContextManager[PolicyEndpoint],
    listener: socket.socket,
    key: str,
    record: Path | None,
    *,
    is_fresh: bool,
) -> None:
    from osmosis_gateway.serving import origin_of, serve
    from osmosis_gateway.standalone import Recorder, standalone_app

    async with AsyncExitStack() as stack:
        recorder = None if record is None else stack.enter_context(Recorder(record))
        endpoint = await stack.enter_async_context(policy)
        _say(origin_of(listener), key if is_fresh else None)
        await serve(standalone_app(endpoint, key, recorder), listener)
