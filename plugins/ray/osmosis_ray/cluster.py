"""This process's connection to a Ray cluster: made once, shared by backends, left by the last."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Mapping
from typing import Any

from osmosis_core import ConfigError
from osmosis_core.errors import describe, one_line
from osmosis_ray.untyped import ray

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray warns of what it does for clusters without accelerators; this is what it is going to do.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

CONNECT_SEC = 5.0

_lock = threading.Lock()
_backends = 0
"""Backends that use the connection made here; 0 when there is none, or somebody else made it."""
_is_own = False
"""The connection made here is to a cluster that was started for it."""


class Cluster:
    """A backend's hold on the cluster that this process is connected to.

    Raises:
        ConfigError: nothing answers at the address within 5 s, or this process is connected to
            another cluster already.
    """

    def __init__(self, address: str | None, runtime_env: Mapping[str, Any] | None) -> None:
        global _backends, _is_own
        wanted = address or os.environ.get("RAY_ADDRESS") or "local"
        with _lock:
            self._is_held = _backends > 0 or not ray.is_initialized()
            self.actor_env: dict[str, Any] | None = None
            if ray.is_initialized():
                _check_same(address)
                self.actor_env = dict(runtime_env) if runtime_env else None
            else:
                _connect(wanted, runtime_env)
                _is_own = wanted == "local"
            _backends += self._is_held
            self.is_own = self._is_held and _is_own

    def release(self) -> None:
        """Leave the cluster, which stops it if it is this process's own; once."""
        global _backends
        with _lock:
            if self._is_held:
                self._is_held = False
                _backends -= 1
                if _backends == 0:
                    ray.shutdown()


def total_cpus() -> float:
    """CPUs of all nodes that are there now."""
    return float(ray.cluster_resources().get("CPU", 0.0))


def misfit(shape: Mapping[str, float]) -> str | None:
    """Why no node that is there now could ever host a worker of this shape; None if one can."""
    nodes: list[dict[str, Any]] = [node for node in ray.nodes() if node["Alive"]]
    for node in nodes:
        if all(node["Resources"].get(name, 0.0) >= amount for name, amount in shape.items()):
            return None
    most = {
        name: max((node["Resources"].get(name, 0.0) for node in nodes), default=0.0)
        for name in shape
    }
    there = ", ".join(f"{name} {amount:g}" for name, amount in most.items())
    wanted = ", ".join(f"{name} {amount:g}" for name, amount in shape.items())
    return (
        f"no node of the Ray cluster has what a worker reserves ({wanted}); the most that one of "
        f"its {len(nodes)} has is {there}: ask for less with resources={{...}}, or add a node"
    )


def _connect(address: str, runtime_env: Mapping[str, Any] | None) -> None:
    _check_reachable(address)
    options: dict[str, Any] = {
        "log_to_driver": False,
        "configure_logging": False,
        "runtime_env": dict(runtime_env) if runtime_env else None,
    }
    if address == "local":
        options["include_dashboard"] = False
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        ray.init(address=address, **options)
    except Exception as error:  # boundary: Ray raises whatever its parts do
        raise ConfigError(
            f"Ray cannot be used at address={address!r}: {one_line(describe(error), 300)}"
        ) from error


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes, and then ends the process."""
    if address in ("local", "auto"):
        return
    host, separator, port = address.rpartition(":")
    if "://" in address or not (separator and host and port.isdecimal()):
        raise ConfigError(
            f"address={address!r} is none of 'host:port', 'auto' and 'local'; run this on a node "
            "of the cluster and give the address that `ray start` printed there"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SEC).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address!r}: {error}; give the address that `ray start "
            "--head` printed, or none to start a cluster of this process's own"
        ) from error


def _check_same(address: str | None) -> None:
    here = str(ray.get_runtime_context().gcs_address)
    if address in (None, "auto", "local", here):
        return
    with contextlib.suppress(OSError):
        host, _, port = (address or "").rpartition(":")
        if f"{socket.gethostbyname(host)}:{port}" == here:
            return
    raise ConfigError(
        f"this process is connected to the Ray cluster at {here}; shut that down before asking for "
        f"{address!r}"
    )
