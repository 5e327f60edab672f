"""What these tests share: backends that are shut down, and looking at processes."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # `rude`, which workers import too


@pytest.fixture
async def create(tmp_path):
    from osmosis_process import ProcessBackend

    backends = []

    def create(workflow, **options):
        given = {"num_workers": 1, "grace_sec": 0.5, "artifacts_root": tmp_path, **options}
        backends.append(ProcessBackend(workflow=workflow, **given))
        return backends[-1]

    yield create
    for backend in backends:
        await backend.shutdown()


@pytest.fixture
def is_alive():
    def is_alive(pid):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    return is_alive
