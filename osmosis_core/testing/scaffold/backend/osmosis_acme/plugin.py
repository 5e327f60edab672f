"""What this distribution offers to osmosis; what runs rollouts is imported when it is used."""

from typing import Any

from osmosis_core import ExecutionBackend, hookimpl
from osmosis_core.hookspecs import BackendFactory, Register

OSMOSIS_API = 1


@hookimpl
def osmosis_register_backends(register: Register[BackendFactory]) -> None:
    """`--backend acme`."""

    def factory(**options: Any) -> ExecutionBackend:
        from osmosis_acme.backend import AcmeBackend

        return AcmeBackend(**options)

    register("acme", factory)
