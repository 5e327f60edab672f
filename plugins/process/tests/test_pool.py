"""Workers start when they are needed, share the work, are replaced, and leave nothing behind."""

import asyncio
import threading

import pytest
import rude

from osmosis_core import AgentWorkflowConfig
from osmosis_core.testing.backend_conformance.kit import is_empty, request, run, said, until
from osmosis_process import ProcessBackend


async def spread(backend, count, **metadata):
    """The processes of rollouts that ran at once."""
    rows = [request(f"r-{n}", metadata=metadata or None) for n in range(count)]
    done = await asyncio.gather(*(run(backend, row) for row in rows))
    return [int(said(one.workflow)) for one in done]


async def test_workers_start_when_they_are_needed(create):
    backend = create(rude.Rude, num_workers=2)
    assert backend.health()["workers"] == []
    await spread(backend, 1)
    assert len(backend.health()["workers"]) == 1


async def test_work_is_spread_evenly(create):
    backend = create(rude.Rude, num_workers=2)
    processes = await spread(backend, 8, sec=0.1)
    assert sorted(map(processes.count, set(processes))) == [4, 4]


@pytest.mark.parametrize(
    ("given", "cap"),
    [
        ({}, 8),
        ({"max_concurrent": 100}, 100),
        ({"max_concurrent": 100, "max_concurrent_per_worker": 3}, 6),
        ({"max_concurrent_per_worker": 9}, 18),
        ({"workflow_config": AgentWorkflowConfig(name="w")}, 0),
    ],
)
def test_cap_is_that_of_the_config_or_of_the_workers(given, cap):
    assert ProcessBackend(workflow=rude.Rude, num_workers=2, **given).max_concurrency == cap


async def test_worker_is_replaced_after_so_many_rollouts(create, is_alive):
    backend = create(rude.Rude, max_rollouts_per_worker=2)
    processes = [(await spread(backend, 1))[0] for _ in range(5)]
    assert [processes.count(pid) for pid in dict.fromkeys(processes)] == [2, 2, 1]
    await until(lambda: not is_alive(processes[0]))


async def test_worker_that_holds_too_much_memory_is_replaced(create):
    backend = create(rude.Hoards, max_memory_mb=600)
    processes = [(await spread(backend, 1, mb=mb))[0] for mb in (1, 700, 1)]
    assert processes[0] == processes[1] != processes[2]


async def test_shut_down_backend_starts_again_when_it_is_asked(create, is_alive):
    backend = create(rude.Rude)
    (first,) = await spread(backend, 1)
    await backend.shutdown()
    assert not is_alive(first) and (await spread(backend, 1)) != [first]


async def test_nothing_is_left_of_workers_that_printed_nothing(create, tmp_path):
    backend = create(rude.Rude)
    await spread(backend, 2)
    await backend.shutdown()
    assert is_empty(tmp_path)
    assert not any(thread.name[0].isdigit() for thread in threading.enumerate())


def test_backend_serves_one_loop_after_the_other(tmp_path, is_alive):
    backend = ProcessBackend(workflow=rude.Rude, num_workers=1, artifacts_root=tmp_path)
    first, second = (asyncio.run(spread(backend, 1))[0] for _ in range(2))
    assert first != second
    asyncio.run(gone(is_alive, first, second))


async def test_dropped_backend_takes_its_workers_with_it(tmp_path, is_alive):
    backend = ProcessBackend(workflow=rude.Rude, num_workers=1, artifacts_root=tmp_path)
    (process,) = await spread(backend, 1)
    del backend
    await gone(is_alive, process)


async def gone(is_alive, *processes):
    await until(lambda: not any(map(is_alive, processes)))
