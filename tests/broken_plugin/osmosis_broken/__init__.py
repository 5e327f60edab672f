"""Would offer the backend `shattered`, but what it needs is not there."""

from osmosis_core import LocalBackend, hookimpl

raise ImportError("libshatter.so.3: cannot open shared object file")


@hookimpl
def osmosis_register_backends(register):
    register("shattered", LocalBackend)
