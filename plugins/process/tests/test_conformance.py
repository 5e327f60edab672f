from osmosis_core.testing import BackendConformance
from osmosis_process import ProcessBackend


class TestConformance(BackendConformance):
    def create_backend(self, **arguments):
        return ProcessBackend(num_workers=1, **arguments)
