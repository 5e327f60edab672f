"""One Ray cluster of one node for a module's tests; ended with the processes that it started."""

import gc
import importlib.util
import secrets
import shutil
import sys
import tempfile
import warnings
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # `patience`
QUIET = {"log_to_driver": False, "configure_logging": False}

if importlib.util.find_spec("ray") is None:  # test_plugin.py says so
    files = HERE.glob("test_*.py")
    collect_ignore = [file.name for file in files if file.name != "test_plugin.py"]


@contextmanager
def unclosed_processes():
    """Ray does not wait for processes that it ends; Python warns of that when it collects them."""
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        yield
        gc.collect()


@pytest.fixture(scope="session")
def ray_folder():
    """A short path: sockets are below it."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def quiet_ray(ray_folder):
    token = Path(ray_folder, "token")
    token.write_text(secrets.token_hex(32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        yield


@pytest.fixture(scope="module")
def cluster(ray_folder, quiet_ray):
    """This process is connected to a cluster with 8 CPUs and 4 seats."""
    import patience  # noqa: F401 - makes Ray wait
    import ray

    memory = 100 * 2**20
    options = {"resources": {"seat": 4}, "object_store_memory": memory, "_temp_dir": ray_folder}
    options |= {"num_cpus": 8, "include_dashboard": False}
    ray.init(address="local", **options, **QUIET)
    yield
    with unclosed_processes():
        ray.shutdown()


@pytest.fixture(scope="module")
def head(ray_folder, quiet_ray):
    """A cluster whose head hosts nothing and is where this process is."""
    import patience  # noqa: F401 - makes Ray wait
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": ray_folder}
    with unclosed_processes():
        cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=cluster.address, **QUIET)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def nodes(head):
    """Add nodes with `add_node(**what_it_has)`; they are gone after the test."""
    yield head
    for node in list(head.worker_nodes):
        head.remove_node(node)


class KeptActor:
    """An actor that `ray.kill` does not know."""

    def __init__(self, actor):
        self.actor = actor
        self.start, self.run, self.cancel, self.close = (
            getattr(actor, name) for name in ("start", "run", "cancel", "close")
        )


@pytest.fixture(scope="module")
def kept_processes(cluster):
    """RayBackend, but its processes serve the next backend with new workers: a start is slow."""
    from osmosis_ray import RayBackend
    from osmosis_ray.actor import RolloutWorker

    idle = defaultdict(list)

    class KeepsProcesses(RayBackend):
        def __init__(self, **options):
            super().__init__(**options)
            self.taken = []

        def _create_actor(self, shape):
            if idle[shape]:
                kept = idle[shape].pop()
                program = self._shipment, self._artifacts_limit
                kept.actor.__ray_call__.remote(RolloutWorker.__init__, *program)
            else:
                kept = KeptActor(super()._create_actor(shape))
            self.taken.append((shape, kept))
            return kept

        async def shutdown(self):
            await super().shutdown()
            while self.taken:
                shape, kept = self.taken.pop()
                idle[shape].append(kept)

    yield KeepsProcesses
    idle.clear()
