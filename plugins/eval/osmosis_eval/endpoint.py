"""The policy of an evaluation: a registered one that is started, or a URL that is tried first."""

from __future__ import annotations

import importlib
import os
import re
import time
import urllib.parse
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from osmosis_core import ConfigError, OsmosisError, RetryPolicy, RolloutContext, WireOptions
from osmosis_core.errors import describe
from osmosis_core.hookspecs import PolicyEndpoint, PolicyFactory
from osmosis_core.plugins import get_plugins
from osmosis_core.policy import BASE_URL, MODEL, async_client

DEFAULT_KEY_ENV = "OSMOSIS_API_KEY"
_PREFLIGHT_SEC = 30.0
_DEFAULT_WIRE = WireOptions()


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """Which policy was chosen, ready to be started."""

    factory: PolicyFactory
    shown: dict[str, str | None]
    """What `summary.json` says about it; no credentials."""
    is_external: bool
    """True for an endpoint that was given by URL."""


def registered_policy(name: str) -> PolicyChoice:
    """A policy that a plugin offers; raises PluginError when none does."""
    factory = get_plugins().policy(name)
    return PolicyChoice(lambda: _started(name, factory), {"name": name}, is_external=False)


def external_policy(base_url: str, model: str | None, key_env: str | None) -> PolicyChoice:
    """A policy at a URL; its key is in the environment.

    Raises:
        ConfigError: the URL is none, or the variable for the key is not set.
    """
    endpoint = PolicyEndpoint(base_url, _key(key_env), model)
    shown = {"base_url": _without_credentials(base_url), "model": model}
    return PolicyChoice(lambda: _given(endpoint), shown, is_external=True)


async def check_endpoint(endpoint: PolicyEndpoint, wire: WireOptions = _DEFAULT_WIRE) -> None:
    """Ask for one short completion.

    Raises:
        ConfigError: none came; the message says what did, and what to check.
    """
    context = RolloutContext(
        endpoint.base_url,
        endpoint.api_key,
        model=endpoint.model,
        retry=RetryPolicy(max_attempts=1),
        deadline=time.monotonic() + _PREFLIGHT_SEC,
        wire=wire,
    )
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    with context:
        await async_client(_http_library()).post(f"{BASE_URL}/chat/completions", json=body)
    error = context.calls[-1].error
    if error is not None:
        raise ConfigError(
            f"{error}; no rollout was started: check --base-url, --model and {DEFAULT_KEY_ENV} "
            "(or --api-key-env), or skip this check with --no-preflight"
        )


def _http_library() -> ModuleType:
    try:
        return importlib.import_module("httpx2")
    except ImportError:
        return importlib.import_module("httpx")


@asynccontextmanager
async def _started(name: str, factory: PolicyFactory) -> AsyncGenerator[PolicyEndpoint]:
    try:
        policy: AbstractAsyncContextManager[PolicyEndpoint, Any] = factory()
        endpoint = await policy.__aenter__()
    except OsmosisError:
        raise
    except Exception as error:  # boundary: a policy may be anyone's
        raise ConfigError(f"policy {name!r} did not start: {describe(error)}") from error
    try:
        yield endpoint
    finally:
        await policy.__aexit__(None, None, None)


@asynccontextmanager
async def _given(endpoint: PolicyEndpoint) -> AsyncGenerator[PolicyEndpoint]:
    yield endpoint


def _key(name: str | None) -> str | None:
    if name is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ConfigError("--api-key-env takes the name of an environment variable, not a key")
    key = os.environ.get(name or DEFAULT_KEY_ENV)
    if name is not None and not key:
        raise ConfigError("--api-key-env names an environment variable that is not set")
    return key or None


def _without_credentials(base_url: str) -> str:
    try:
        url = urllib.parse.urlsplit(base_url)
        port = f":{url.port}" if url.port else ""
    except ValueError as error:
        raise ConfigError(f"--base-url: {error}") from error
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError("--base-url needs the form http://host:port/v1 (https as well)")
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{url.scheme}://{host}{port}{url.path}"
