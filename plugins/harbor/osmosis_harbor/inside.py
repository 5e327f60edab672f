"""Inside the container: fetch the rollout, run its workflow, hand the result back.

Started as `python3 -m osmosis_harbor.inside`; imports the kernel, not Harbor.
"""

import asyncio
import os
import urllib.parse
from typing import Any

import aiohttp
from pydantic import BaseModel, TypeAdapter

from osmosis_core import ConfigError, ExecutionResult, RetryPolicy, WireOptions, WorkflowError
from osmosis_core.backends.phase import Phase
from osmosis_core.discovery import load_program, load_target
from osmosis_core.execution import failed
from osmosis_core.plugins import get_plugins

SOCKET = "/run/osmosis/relay.sock"
"""Where the relay's socket is mounted."""

SITE = "/opt/osmosis/site"
"""Where the image has the wheel of the user's code, and what it needs."""

ARTIFACTS = "/logs/artifacts"
"""`ctx.artifacts_dir`; the host collects it when the workflow has ended."""

POLICY_URL = f"http+unix://{urllib.parse.quote(SOCKET, safe='')}/v1"
RETRY = RetryPolicy(max_attempts=1)
"""The relay retries."""

WIRE = WireOptions(stream=False)
"""The relay streams and captures."""


class Job(BaseModel):
    """What a container is told: a phase without key and label, and what to run."""

    phase: Phase
    workflow: str
    """`module:attr`."""
    workflow_config: str | None = None
    """`module:attr` of a config."""
    config_class: str | None = None
    """`module:attr` of a config's class, whose values are `config_values`."""
    config_values: dict[str, Any] | None = None


def main() -> None:
    """Run the rollout of this container."""
    get_plugins().is_silent = True
    asyncio.run(_work())


async def _work() -> None:
    connector = aiohttp.UnixConnector(path=os.environ.get("OSMOSIS_RELAY", SOCKET))
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession("http://relay", connector=connector, timeout=timeout) as relay:
        async with relay.get("/job") as answer:
            job = Job.model_validate_json(await answer.read())
        result = TypeAdapter(ExecutionResult).dump_json(await _run(job))
        async with relay.post("/result", data=result) as answer:
            answer.raise_for_status()


async def _run(job: Job) -> ExecutionResult:
    try:
        program = load_program(job.workflow, _config(job))
    except ConfigError as error:
        return failed(WorkflowError(str(error)), {})
    return await job.phase.run(program)


def _config(job: Job) -> Any:
    if job.config_class is None:
        return job.workflow_config
    module, attribute = load_target(job.config_class)
    return getattr(module, attribute).model_validate(job.config_values)


if __name__ == "__main__":
    main()
