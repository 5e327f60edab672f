"""The tests of a task as a grader: `tests/test.sh` runs in the container and leaves rewards."""

import json
import math
import shlex
from pathlib import Path
from typing import Any, cast

from osmosis_core import BackendError, Grader, GraderContext
from osmosis_harbor.environment import RolloutEnvironment, environment_here

_VERIFIER_DIR = "/logs/verifier"
_REWARD_LIMIT = 64 * 1024
_CLEAN = (
    # Only the container's own processes: with `pid: host` the first one is not ours.
    '[ "$(cat /proc/1/comm)" = sleep ] && kill -9 -1; '
    f"rm -rf /tests; [ -L {_VERIFIER_DIR} ] && rm {_VERIFIER_DIR}; "
    f"mkdir -p /tests {_VERIFIER_DIR} && chmod 777 {_VERIFIER_DIR} && cd {_VERIFIER_DIR} && "
    "rm -rf -- * .[!.]*"  # the directory itself may be a mount
)


def tests_grader(
    tests_dir: Path, env: dict[str, str], user: str | int | None = None
) -> type[Grader]:
    """A grader that uploads the tests once the agent has ended, and runs them.

    `reward.json`, a flat object of finite numbers, goes before `reward.txt`, one number. A key that
    is the id of a sample is its reward, `reward` is that of all others, what is left is a metric of
    each. The exit status of `test.sh` means nothing.
    """

    class TaskTests(Grader):
        async def grade(self, ctx: GraderContext) -> None:
            rewards = await run_tests(environment_here.get(), tests_dir, env, user)
            _give(ctx, rewards)

    return TaskTests


async def run_tests(
    environment: RolloutEnvironment, tests_dir: Path, env: dict[str, str], user: str | int | None
) -> dict[str, float]:
    """Run `test.sh` in a container without the agent's processes and return what it rewards.

    Raises:
        BackendError: the container does not take the tests, or offers no readable reward file.
        ValueError: the file holds no rewards.
    """
    cleaned = await environment.exec(_CLEAN, user="root")
    if cleaned.return_code != 0:
        raise BackendError(f"/tests cannot be prepared in the container: {cleaned.stderr}")
    await environment.upload_dir(tests_dir, "/tests")
    await environment.exec("chmod -R a+rX /tests && chmod a+x /tests/test.sh", user="root")
    output = shlex.quote(f"{_VERIFIER_DIR}/test-stdout.txt")
    await environment.exec(f"/tests/test.sh > {output} 2>&1", env=env or None, user=user)
    for name, parse in (("reward.json", _parse_json), ("reward.txt", _parse_text)):
        path = f"{_VERIFIER_DIR}/{name}"
        there = await environment.exec(f"test -e {path} || test -L {path}", user="root")
        if there.return_code == 0:
            return parse(await environment.read_file(path, _REWARD_LIMIT))
    raise ValueError(f"tests/test.sh left neither reward.json nor reward.txt in {_VERIFIER_DIR}")


def _parse_text(content: bytes) -> dict[str, float]:
    text = content.decode("utf-8", "replace").strip()
    return {"reward": _number("reward.txt", text)}


def _parse_json(content: bytes) -> dict[str, float]:
    try:
        rewards: Any = json.loads(content)
    except ValueError as error:
        raise ValueError(f"reward.json is not JSON: {error}") from error
    if not isinstance(rewards, dict):
        raise ValueError("reward.json is not an object of numbers")  # noqa: TRY004 - it is content
    values = cast(dict[str, Any], rewards)
    if wrong := [key for key, value in values.items() if not isinstance(value, int | float)]:
        raise ValueError(f"reward.json has no number under {', '.join(map(repr, wrong))}")
    return {key: _number(f"{key!r} in reward.json", value) for key, value in values.items()}


def _number(what: str, value: float | str) -> float:
    try:
        number = float(value)
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{what} is {str(value)[:80]!r}, not a finite number")
    return number


def _give(ctx: GraderContext, rewards: dict[str, float]) -> None:
    left = {key: value for key, value in rewards.items() if key not in ctx.samples}
    common = left.pop("reward", None)
    for sample_id, sample in ctx.samples.items():
        reward = rewards.get(sample_id, common)
        if reward is not None:
            ctx.set_sample_reward(sample_id, reward)
        sample.metrics.update(left)
