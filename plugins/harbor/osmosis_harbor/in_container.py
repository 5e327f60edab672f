"""One workflow inside a container: what goes in, what is believed of what comes out."""

import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from osmosis_core import (
    AgentWorkflowConfig,
    BackendError,
    ConfigError,
    ExecutionResult,
    PolicyCall,
    RolloutContext,
    RolloutError,
    RolloutSample,
    WorkflowError,
)
from osmosis_core.backends.phase import Phase
from osmosis_core.execution import Cutoff, failed, late_text
from osmosis_core.plugins import get_plugins
from osmosis_harbor import inside
from osmosis_harbor.docker import last_line
from osmosis_harbor.environment import RolloutEnvironment
from osmosis_harbor.relay import Relay

MOUNT = str(Path(inside.SOCKET).parent)
_MAX_SOCKET_PATH = 103
_RESULT = TypeAdapter(ExecutionResult)


@dataclass(frozen=True, slots=True)
class ContainerWorkflow:
    """A workflow by its import path, and its config in a shape that travels.

    Raises:
        ConfigError: no import path leads to it.
    """

    workflow: str
    config: AgentWorkflowConfig | str | None = None

    @classmethod
    def of(cls, workflow: Any, config: AgentWorkflowConfig | str | None) -> "ContainerWorkflow":
        """The workflow, which may be a class, and its config."""
        return cls(workflow if isinstance(workflow, str) else _import_path(workflow), config)

    def job(self, phase: Phase) -> bytes:
        """What the container is given: no key, no label, and a policy that is the relay."""
        policy = {**phase.policy, "chat_completions_url": inside.POLICY_URL, "api_key": None}
        policy |= {"retry": inside.RETRY, "wire": inside.WIRE}
        bare = replace(
            phase,
            policy=policy,  # pyright: ignore[reportArgumentType]
            request=replace(phase.request, label=None),
            artifacts_dir=Path(inside.ARTIFACTS),
        )
        fields: dict[str, Any] = {"phase": bare, "workflow": self.workflow}
        if isinstance(self.config, AgentWorkflowConfig):
            fields["config_class"] = _import_path(type(self.config))
            fields["config_values"] = self.config.model_dump(mode="json")
        else:
            fields["workflow_config"] = self.config
        return inside.Job(**fields).model_dump_json().encode()

    async def run(
        self, phase: Phase, environment: RolloutEnvironment, sockets: Path, cutoff: Cutoff
    ) -> ExecutionResult:
        """Run it in the container; the policy calls are those that the relay saw.

        Raises:
            ConfigError: the config has values that are not JSON.
        """
        started = time.monotonic()
        timeout_sec = phase.request.agent_timeout_sec
        deadline = None if timeout_sec is None else started + timeout_sec - phase.spent_sec
        context = RolloutContext(rollout_id=phase.request.id, deadline=deadline, **phase.policy)
        late = late_text("workflow", timeout_sec, phase.spent_sec)
        try:
            async with cutoff.until(deadline, late):
                async with Relay(sockets / "relay.sock", context, self.job(phase)) as relay:
                    result = await _ran(environment, relay, phase)
        except RolloutError as error:
            result = failed(error, {})
        samples = await _merged(result.samples, context, phase.request.label)
        extra = {"info": info} if (info := result.extra_fields.get("info")) else {}
        times = {
            "queued_sec": round(phase.spent_sec, 6),
            "duration_sec": round(time.monotonic() - started, 6),
        }
        return replace(result, samples=samples, extra_fields={**times, **extra})


async def _ran(environment: RolloutEnvironment, relay: Relay, phase: Phase) -> ExecutionResult:
    done = await environment.exec(
        "exec python3 -m osmosis_harbor.inside", env={"PYTHONPATH": inside.SITE}
    )
    if phase.artifacts_dir is not None:
        await _collect(environment, phase.artifacts_dir, f"{done.stdout or ''}{done.stderr or ''}")
    if relay.result is None:
        said = last_line(done.stderr or done.stdout)
        text = f"the workflow's process ended with status {done.return_code}: {said}"
        raise WorkflowError(text)
    try:
        return _RESULT.validate_json(relay.result)
    except ValidationError as error:
        text = f"the container gave no result: {error.error_count()} fields are wrong"
        raise BackendError(text) from error


async def _collect(environment: RolloutEnvironment, target: Path, output: str) -> None:
    """Artifacts and output of the workflow, where `ctx.artifacts_dir` is on the host."""
    await environment.download_dir(inside.ARTIFACTS, target)
    if output:
        await asyncio.to_thread(_write_log, target, output)


def _write_log(target: Path, output: str) -> None:
    target.mkdir(parents=True, exist_ok=True)
    (target / "container.log").write_text(output)


async def _merged(
    told: dict[str, RolloutSample], context: RolloutContext, label: str | None
) -> dict[str, RolloutSample]:
    """What the container tells of its samples, with the calls that the host has seen."""
    seen = await context.get_samples()
    _adopt_starters(context, told)
    for sample_id, sample in told.items():
        calls = seen[sample_id].calls if sample_id in seen else []
        is_truncated = any(call.finish_reason == "length" for call in calls)
        own = {"id": sample_id, "calls": calls, "reward": None, "truncated": is_truncated}
        seen[sample_id] = sample.model_copy(update=own)
        if "agent_name" in sample.extra_fields:
            rollout = {"rollout_id": context.rollout_id, "sample_id": sample_id}
            get_plugins().notify("osmosis_sample_registered", **rollout)
    for sample in seen.values():
        sample.label = label
    return seen


def _adopt_starters(context: RolloutContext, told: dict[str, RolloutSample]) -> None:
    """Which call started whom is known inside only; the calls are matched by their responses."""
    ours = {call.response_id: call for call in context.calls if call.response_id}
    theirs: dict[int, PolicyCall] = {c.index: c for s in told.values() for c in s.calls}
    for call in theirs.values():
        starter = theirs.get(-1 if call.started_by is None else call.started_by)
        mine = ours.get(call.response_id or "")
        begun_by = starter and ours.get(starter.response_id or "")
        if mine and begun_by and begun_by.index < mine.index:
            mine.started_by = begun_by.index


def check_sockets(directory: Path, code_dir: Path | None, is_prebuilt: bool) -> None:
    """Say what a workflow inside a container lacks.

    Raises:
        ConfigError: no code, no image of ours, or a path too long for a socket.
    """
    if code_dir is None or not is_prebuilt:
        raise ConfigError("runs_in='container' needs user_code_dir and a prebuilt docker image")
    if len(str(directory)) + len("/0123456789abcdef/run/relay.sock") > _MAX_SOCKET_PATH:
        raise ConfigError(
            f"{str(directory)!r} is too long for a socket; set XDG_CACHE_HOME to a shorter place"
        )


def _import_path(thing: type) -> str:
    if thing.__module__ == "__main__" or "<locals>" in thing.__qualname__:
        raise ConfigError(
            f"{thing.__qualname__} of {thing.__module__} cannot be imported in a container; put it "
            "into a module of user_code_dir"
        )
    return f"{thing.__module__}:{thing.__qualname__}"
