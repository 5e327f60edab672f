"""A task's own tests as its grader: the rules of reward files."""

import container_programs as programs
import pytest

from osmosis_core import RolloutErrorCategory, RolloutStatus
from osmosis_core.testing.backend_conformance.kit import request, rewards, run
from osmosis_harbor import HarborBackend

GOOD = {
    "text": ("echo 0.75 > reward.txt", 0.75, {}),
    "json": ("echo '{\"reward\": 0.5}' > reward.json", 0.5, {}),
    "json goes before text": ("echo 1 > reward.txt; echo '{\"reward\": 0}' > reward.json", 0.0, {}),
    "true is one": ("echo '{\"reward\": true}' > reward.json", 1.0, {}),
    "by sample": ('echo \'{"main": 0.1, "reward": 1}\' > reward.json', 0.1, {}),
    "metrics": ('echo \'{"reward": 1, "steps": 4}\' > reward.json', 1.0, {"steps": 4.0}),
    "exit status means nothing": ("echo 1 > reward.txt; exit 3", 1.0, {}),
}
BAD = {
    "nothing": ("true", "neither reward.json nor reward.txt"),
    "empty": ("touch reward.txt", "not a finite number"),
    "words": ("echo good > reward.txt", "'good', not a finite number"),
    "infinite": ("echo inf > reward.txt", "not a finite number"),
    "not json": ("echo { > reward.json", "not JSON"),
    "nan": ("echo '{\"reward\": NaN}' > reward.json", "not a finite number"),
    "huge number": (f"echo '{{\"reward\": 1{'0' * 400}}}' > reward.json", "not a finite number"),
    "string": ('echo \'{"reward": "1"}\' > reward.json', "no number under 'reward'"),
    "nested": ("echo '{\"reward\": {}}' > reward.json", "no number under 'reward'"),
    "list": ("echo '[1]' > reward.json", "not an object of numbers"),
    "no rewards": ("echo '{}' > reward.json", "no reward to main"),
    "link": ("ln -s /etc/passwd reward.txt", "is a link"),
    "pipe": ("mkfifo reward.txt", "named pipe"),
    "large": ("head -c 100000 /dev/zero > reward.json", "more than 65536 bytes"),
}


async def graded(sandbox, task_dir, script, **fields):
    (task_dir / "tests").mkdir()
    (task_dir / "tests/test.sh").write_text(f"cd /logs/verifier\n{script}\n")
    (task_dir / "tests/test.sh").chmod(0o755)
    options = {**sandbox, "task_dir": task_dir}
    backend = HarborBackend(workflow=programs.Commands, grader=programs.Half, **options)
    return (await run(backend, request(metadata={"commands": ["ls /tests"]}, **fields))).grader


@pytest.mark.parametrize("script, reward, metrics", GOOD.values(), ids=GOOD)
async def test_reward_is_what_the_tests_leave(script, reward, metrics, sandbox, task_dir):
    result = await graded(sandbox, task_dir, script)
    assert rewards(result) == [reward], result
    assert result.sample.metrics == metrics
    assert result.sample.messages == programs.said(""), "the agent saw no tests"


@pytest.mark.parametrize("script, why", BAD.values(), ids=BAD)
async def test_no_reward_comes_of_a_bad_file(script, why, sandbox, task_dir):
    result = await graded(sandbox, task_dir, script)
    assert result.status is RolloutStatus.FAILURE
    assert rewards(result) == [None]
    assert why in (result.err_message or "")


async def test_rows_without_label_are_graded_by_tests(sandbox, task_dir):
    result = await graded(sandbox, task_dir, "echo 1 > reward.txt", label=None)
    assert rewards(result) == [1.0]


async def test_tests_have_the_graders_deadline(sandbox, task_dir):
    result = await graded(sandbox, task_dir, "sleep 60", grader_timeout_sec=1.0)
    assert result.err_category is RolloutErrorCategory.TIMEOUT
