from osmosis_core.testing.adapter_conformance import AdapterConformance
from osmosis_strands.conformance import StrandsAdapter


class TestStrandsConforms(AdapterConformance):
    fixtures = StrandsAdapter()
