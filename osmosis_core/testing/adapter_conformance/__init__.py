"""Is an integration of an agent framework right? Subclass `AdapterConformance` and run pytest."""

from osmosis_core.testing.adapter_conformance.cancelling import Cancelling
from osmosis_core.testing.adapter_conformance.failures import Failures, Retries
from osmosis_core.testing.adapter_conformance.fixtures import AdapterFixtures
from osmosis_core.testing.adapter_conformance.isolation import Isolation, Threads
from osmosis_core.testing.adapter_conformance.options import (
    Conversations,
    Streaming,
    StructuredOutput,
)
from osmosis_core.testing.adapter_conformance.prompts import Prompts
from osmosis_core.testing.adapter_conformance.quiet import Quiet, Secrets
from osmosis_core.testing.adapter_conformance.recording import Recording, SampleIds
from osmosis_core.testing.adapter_conformance.routing import Outside, Routing
from osmosis_core.testing.adapter_conformance.teams import Teams
from osmosis_core.testing.adapter_conformance.tools import Tools, ToolSchemas


class AdapterConformance(
    Routing,
    Outside,
    SampleIds,
    Recording,
    Tools,
    ToolSchemas,
    Prompts,
    Retries,
    Failures,
    Isolation,
    Threads,
    Cancelling,
    Quiet,
    Secrets,
    Streaming,
    StructuredOutput,
    Teams,
    Conversations,
):
    """Set `fixtures` in a subclass and run it with pytest, or `osmosis plugins check NAME`.

    With pytest it needs pytest-asyncio with `asyncio_mode = "auto"`. What the fixtures do not
    declare is skipped.
    """


__all__ = ["AdapterConformance", "AdapterFixtures"]
