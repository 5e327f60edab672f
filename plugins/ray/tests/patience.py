"""Ray gives a node 30 s to start, which a machine with much to do may need several times over."""

import time

from ray._private import services

_PATIENCE_SEC = 150.0
_get_node = services.get_node


def get_node(*arguments):
    """What Ray asks for until a new node has registered, or 30 s are over."""
    until = time.monotonic() + _PATIENCE_SEC
    while True:
        try:
            return _get_node(*arguments)
        except RuntimeError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


services.get_node = get_node
