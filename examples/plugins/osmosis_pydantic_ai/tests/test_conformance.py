from osmosis_pydantic_ai.conformance import Fixtures

from osmosis_core.testing import AdapterConformance


class TestPydanticAIConforms(AdapterConformance):
    fixtures = Fixtures()
