"""What the entry point names."""

import sys

from osmosis_core import hookimpl
from osmosis_core.hookspecs import Framework


@hookimpl
def osmosis_register_frameworks(register):
    adapter = "tiny_osmosis:TinyAdapter"
    register(Framework("tiny", "tiny-agents", ">=1", "tiny_osmosis", adapter))


@hookimpl
def osmosis_adapt_sample_source(source):
    if "tiny_agents" not in sys.modules:
        return None
    from tiny_osmosis import TinyAgent, TinySource

    return TinySource(source) if isinstance(source, TinyAgent) else None
