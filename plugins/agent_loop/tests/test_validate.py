"""`validate_agent_loop` and `osmosis validate` find every documented mistake, each in a file."""

import json
import sys
from pathlib import Path

import pytest

from osmosis_agent_loop import AgentLoopValidationError, OpenAIFunctionToolSchema
from osmosis_agent_loop.validator import ValidationError, validate_agent_loop
from osmosis_core.discovery import load_target
from osmosis_core.validation import validate_target

BROKEN = Path(__file__).parent / "broken"
WARNINGS = {"UNKNOWN_TOOL_TYPE", "MISSING_FUNCTION_DESCRIPTION", "PARAMETERS_TYPE_NOT_OBJECT"}
CODES = sorted(file.stem.upper() for file in BROKEN.glob("*.py") if file.stem != "nameless_class")
WORKFLOW = """
from osmosis_core import AgentWorkflow, Grader
class Solve(AgentWorkflow):
    async def run(self, ctx): pass
class Strict(Grader):
    async def grade(self, ctx): pass
"""


def loop_of(code):
    module, _ = load_target(str(BROKEN / f"{code.lower()}.py"))
    return module.agent_loop


def test_there_is_a_file_for_each_documented_code():
    assert len(CODES) == 19 and set(CODES) > WARNINGS


@pytest.mark.parametrize("code", CODES)
def test_each_mistake_is_found_with_its_code_and_nothing_else(code):
    result = validate_agent_loop(loop_of(code))
    found = result.warnings if code in WARNINGS else result.errors
    assert [issue.code for issue in (*result.errors, *result.warnings)] == [code]
    assert found[0].field
    assert bool(result) == result.valid == (code in WARNINGS)


@pytest.mark.parametrize("code", CODES)
def test_osmosis_validate_finds_them_too(code):
    result = validate_target(f"{BROKEN / code.lower()}.py:agent_loop")
    assert code in [issue.code for issue in (*result.errors, *result.warnings)]
    assert result.valid == (code in WARNINGS)


def test_class_without_a_name_is_one_line(osmosis):
    done = osmosis("validate", "--json", f"{BROKEN}/nameless_class.py")
    assert done.returncode == 2
    (error,) = json.loads(done.stdout)["errors"]
    assert "TypeError: agent loop Broken has no name; write" in error["message"]


def test_command_shows_codes_and_exits_as_for_workflows(osmosis, tmp_path):
    done = osmosis("validate", "-m", f"{BROKEN}/run_not_async.py:agent_loop")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: run() is not async; write `async def run(self, ctx)`")
    (tmp_path / "solve.py").write_text(WORKFLOW)
    assert osmosis("validate", "-m", "solve").returncode == 0


def test_sound_loop_needs_no_grader(osmosis, world, tmp_path):
    text = Path(BROKEN / "run_not_async.py").read_text().replace("    def run", "    async def run")
    (tmp_path / "server.py").write_text(text)
    for target in ("server:agent_loop", "server:Broken", "server", "server.py"):
        done = osmosis("validate", "-m", target)
        assert done.stdout == "ok: broken: workflow AgentLoopWorkflow, grader none\n"
        assert (done.returncode, done.stderr) == (0, "")
    result = validate_agent_loop(world.Once())
    assert (result.valid, result.agent_name, result.tool_count) == (True, "once", 1)


def test_all_mistakes_are_collected_and_raised_together():
    class Wrong:
        name = ""
        run = None

        def get_tools(self, request):
            return ["a", {"type": "function"}]

    result = validate_agent_loop(Wrong())
    codes = ["EMPTY_NAME", "INVALID_TOOL_TYPE", "MISSING_FUNCTION", "MISSING_RUN_METHOD"]
    assert [issue.code for issue in result.errors] == codes
    with pytest.raises(AgentLoopValidationError, match=r"\[EMPTY_NAME\].*\[MISSING_RUN_METHOD\]"):
        result.raise_if_invalid()
    assert result.errors[1] == ValidationError(
        "INVALID_TOOL_TYPE",
        "tools[0] is str; give a dict or an OpenAIFunctionToolSchema",
        "tools[0]",
    )


async def test_async_get_tools_and_schema_objects_are_fine_inside_an_event_loop(world):
    class Slow(world.Once):
        async def get_tools(self, request):
            assert request.rollout_id == "validation-test-rollout"
            assert request.metadata == {"_validation": True}
            return [OpenAIFunctionToolSchema.model_validate(world.ADD)]

    assert validate_agent_loop(Slow()).tool_count == 1


def test_several_loops_in_a_module_are_told_apart_by_name(tmp_path, osmosis):
    text = Path(BROKEN / "run_not_async.py").read_text()
    (tmp_path / "two.py").write_text(text + "other = Broken()\n")
    done = osmosis("validate", "two.py")
    assert "several agent loops in 'two': agent_loop, other; name module:attr" in done.stderr
    assert done.returncode == 2


def test_get_tools_that_exits_is_an_error_of_the_loop(world):
    class Exits(world.Once):
        async def get_tools(self, request):
            sys.exit(4)

    (error,) = validate_agent_loop(Exits()).errors
    assert (error.code, error.message) == (
        "GET_TOOLS_EXCEPTION",
        "get_tools() raised SystemExit: called sys.exit(4)",
    )
