from osmosis_core.testing.adapter_conformance import AdapterConformance
from osmosis_langgraph.conformance import LangGraphAdapter


class TestLangGraphConforms(AdapterConformance):
    fixtures = LangGraphAdapter()
