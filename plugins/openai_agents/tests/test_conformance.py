from osmosis_core.testing.adapter_conformance import AdapterConformance
from osmosis_openai_agents.conformance import OpenAIAgentsAdapter


class TestOpenAIAgentsConforms(AdapterConformance):
    fixtures = OpenAIAgentsAdapter()
