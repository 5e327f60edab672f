from osmosis_smolagents.conformance import Fixtures

from osmosis_core.testing import AdapterConformance


class TestSmolagentsConforms(AdapterConformance):
    fixtures = Fixtures()
