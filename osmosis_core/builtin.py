"""What the kernel itself offers, through the same hooks as every plugin."""

from contextlib import AbstractAsyncContextManager

from osmosis_core.backends.local import LocalBackend
from osmosis_core.hookspecs import BackendFactory, PolicyEndpoint, PolicyFactory, Register, hookimpl


@hookimpl
def osmosis_register_backends(register: Register[BackendFactory]) -> None:
    """The in-process backend."""
    register("local", LocalBackend)


@hookimpl
def osmosis_register_policies(register: Register[PolicyFactory]) -> None:
    """The embedded policy that needs no key."""
    register("demo", _demo)


def _demo() -> AbstractAsyncContextManager[PolicyEndpoint]:
    from osmosis_core.testing.demo import DemoPolicy

    return DemoPolicy()
