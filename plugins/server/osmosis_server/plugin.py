"""What this distribution offers to osmosis: `osmosis serve` and the protocols that it speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from osmosis_core import ExecutionRequest, ExecutionResult
from osmosis_core.hookspecs import ProtocolFactory, Register, hookimpl
from osmosis_server import telemetry

if TYPE_CHECKING:
    import click


@hookimpl
def osmosis_register_commands(cli: click.Group) -> None:
    """Add `osmosis serve`."""
    from osmosis_server.cli import serve

    cli.add_command(serve)


@hookimpl
def osmosis_register_protocols(register: Register[ProtocolFactory]) -> None:
    """The three protocols of the published SDK that share `POST /rollout`."""
    register("multi-sample", _multi_sample)
    register("single-sample", _single_sample)
    register("polling", _polling)


@hookimpl
def osmosis_rollout_started(request: ExecutionRequest) -> None:
    """Begin its trace, where OpenTelemetry is set up."""
    telemetry.started(request)


@hookimpl
def osmosis_rollout_finished(request: ExecutionRequest, result: ExecutionResult) -> None:
    """End its trace."""
    telemetry.finished(request, result)


def _multi_sample(service: Any) -> Any:
    from osmosis_server.protocols.multi_sample import MultiSampleProtocol

    return MultiSampleProtocol(service)


def _single_sample(service: Any) -> Any:
    from osmosis_server.protocols.single_sample import SingleSampleProtocol

    return SingleSampleProtocol(service)


def _polling(service: Any) -> Any:
    from osmosis_server.protocols.polling import PollingProtocol

    return PollingProtocol(service)
