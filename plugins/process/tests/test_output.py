"""What is printed is found where it belongs."""

import asyncio

import rude

from osmosis_core import RolloutContext
from osmosis_core.testing.backend_conformance.kit import request, run, until


async def test_prints_of_rollouts_that_share_a_worker_are_kept_apart(create, tmp_path):
    backend = create(rude.Prints)
    rows = [request(name) for name in ("a", "b", "c")]
    with RolloutContext("http://127.0.0.1:9/v1", "secret-key"):
        await asyncio.gather(*(run(backend, row) for row in rows))
    for name in ("a", "b", "c"):
        folder = tmp_path / name / "artifacts"
        expected = [f"{name} {turn}" for turn in range(3)] + ["***", "bytes", f"{name} thread"]
        assert (folder / "stdout.log").read_text().splitlines() == expected
        assert (folder / "stderr.log").read_text().splitlines() == [f"{name} err"] * 3


async def test_what_belongs_to_no_rollout_is_in_the_log_of_the_worker(create, tmp_path):
    backend = create(rude.Prints)
    await run(backend, request())
    (log,) = (tmp_path / "workers").iterdir()
    await until(lambda: sorted(log.read_text().splitlines()) == ["child", "stray"])
    await backend.shutdown()
    assert log.exists()
