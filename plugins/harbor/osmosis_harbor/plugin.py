"""What this distribution offers to osmosis; Harbor itself is imported only when it is in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from osmosis_core import hookimpl
from osmosis_core.hookspecs import BackendFactory, Register

if TYPE_CHECKING:
    from osmosis_harbor.backend import HarborBackend


@hookimpl
def osmosis_register_backends(register: Register[BackendFactory]) -> None:
    """A container per rollout."""

    def factory(**options: Any) -> HarborBackend:
        from osmosis_harbor.backend import HarborBackend

        return HarborBackend(**options)

    register("harbor", factory)
