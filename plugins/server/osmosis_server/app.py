"""A rollout server as a FastAPI application: every protocol over one service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from fastapi import FastAPI

from osmosis_core.plugins import get_plugins
from osmosis_server.artifacts import artifacts_root
from osmosis_server.http import Shortcut
from osmosis_server.journal import Journal
from osmosis_server.logs import configure_logs
from osmosis_server.metrics import Metrics
from osmosis_server.observer import Observers
from osmosis_server.operations import Operations
from osmosis_server.protocols.base import Protocol
from osmosis_server.protocols.submitting import SubmittedProtocol, submit_route
from osmosis_server.security import RequireKey, UrlPolicy, check_key, checked_connector
from osmosis_server.service import RolloutService
from osmosis_server.settings import ServerSettings
from osmosis_server.trajectory import RolloutFiles

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp

    from osmosis_core import ExecutionBackend

_FILES_SEC = 5.0

type Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Any]]


def create_rollout_server(
    *,
    backend: ExecutionBackend,
    lifespan: Lifespan | None = None,
    configure_logging: bool = True,
    api_key: str | None = None,
    settings: ServerSettings | None = None,
) -> FastAPI:
    """An application that serves rollouts of `backend` in every published protocol.

    It opens its journal when it starts, then enters `lifespan`; when it stops, it drains within
    `lifespan` and closes the backend. With `api_key` every route needs it.

    Args:
        backend: where rollouts run, such as `LocalBackend`.
        lifespan: as of FastAPI.
        configure_logging: log at INFO when the root logger has no handler.
        api_key: bearer key of every request; None lets everybody in who can connect.
        settings: limits, times and the journal.

    Raises:
        ConfigError: the key is blank, or an allowed host cannot be read; at start, that the
            journal cannot be had.
    """
    settings = settings or ServerSettings()
    UrlPolicy(settings.allow_hosts)
    if configure_logging and not logging.getLogger().handlers:
        configure_logs(secrets=[api_key])
    return _Application(_Server(backend, settings, lifespan), api_key)


class _Application(FastAPI):
    """Asks for the key before anything else; rollouts come and go without FastAPI's middleware."""

    def __init__(self, server: _Server, api_key: str | None) -> None:
        self._server = server
        self._api_key = None if api_key is None else check_key(api_key)
        super().__init__(
            lifespan=server.lifespan,
            title="osmosis rollout server",
            docs_url=None,
            redoc_url=None,
            openapi_url=None,
        )
        self.state.api_key = self._api_key

    def build_middleware_stack(self) -> ASGIApp:
        """FastAPI's, and around it the shortcut, unless the user has middleware of their own."""
        app = super().build_middleware_stack()
        if not self.user_middleware:
            app = Shortcut(self._server.routes, app)
        if self._api_key is not None:
            app = RequireKey(app, self._api_key, self._server.open_paths)
        return app


class _Server:
    """What an app has while it runs: importing a module that makes one must open no journal."""

    def __init__(
        self, backend: ExecutionBackend, settings: ServerSettings, lifespan: Lifespan | None
    ) -> None:
        self.routes: list[BaseRoute] = []
        self.open_paths: set[str] = set()
        self._backend = backend
        self._settings = settings
        self._users: Lifespan = lifespan or nullcontext

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncGenerator[Any]:
        """Open the journal, let the user's lifespan begin, recover; in the end the reverse."""
        where, sync = self._settings.journal, self._settings.survive_power_loss
        journal = await asyncio.to_thread(Journal.open, where, survive_power_loss=sync)
        protocols: dict[str, Protocol] = {}
        files = self._files()
        metrics = Metrics(lambda: service.stats())
        service = RolloutService(
            self._backend,
            journal,
            self._settings,
            protocols,
            observer=Observers(files, metrics),
            connector=checked_connector,
        )
        offered = get_plugins()
        protocols.update({name: offered.protocol(name)(service) for name in offered.protocols})
        app.state.service = service
        self.routes[:] = self._routes(service, protocols, metrics)
        users = app.router.routes.copy()
        app.router.routes[:0] = self.routes
        self.open_paths.update(*(protocol.open_paths for protocol in protocols.values()))
        try:
            async with self._users(app) as state:
                await service.start()
                try:
                    yield state if isinstance(state, Mapping) else {}
                finally:
                    await service.close()
        finally:
            await service.close()
            await files.close(_FILES_SEC)
            app.router.routes[:] = users

    def _files(self) -> RolloutFiles:
        settings = self._settings
        return RolloutFiles(
            artifacts_root(self._backend),
            max_artifact_bytes=settings.max_artifact_bytes,
            max_artifact_files=settings.max_artifact_files,
            has_documents=settings.trajectories,
        )

    def _routes(
        self, service: RolloutService, protocols: Mapping[str, Protocol], metrics: Metrics
    ) -> list[BaseRoute]:
        def choose(body: dict[str, Any]) -> SubmittedProtocol:
            is_polled = body.get("completion_callback_url") is None
            name = "polling" if is_polled else self._settings.callback_protocol
            return cast("SubmittedProtocol", protocols[name])

        routes = [submit_route(choose, self._settings.max_body_bytes)]
        for protocol in protocols.values():
            routes += protocol.routes()
        return [*routes, *Operations(service, metrics).routes()]
