"""The contract of every backend."""

import pytest

from osmosis_core.testing import BackendConformance


class TestConformance(BackendConformance):
    @pytest.fixture(autouse=True)
    def on_cluster(self, kept_processes):
        self.backend_class = kept_processes

    def create_backend(self, **arguments):
        return self.backend_class(num_workers=1, **arguments)
