"""What a submit would check is collected, each problem with its code."""

import pytest

from osmosis_core import AgentWorkflow, AgentWorkflowConfig, Grader, GraderConfig
from osmosis_core.execution import Program
from osmosis_core.validation import Issue, validate_program


class Deep(AgentWorkflowConfig):
    depth: int = 3


class Solve(AgentWorkflow):
    async def run(self, ctx):
        raise AssertionError("validation must not run anything")


class Strict(Grader):
    async def grade(self, ctx):
        raise AssertionError("validation must not run anything")


class Blocking(AgentWorkflow):
    def run(self, ctx):
        raise AssertionError


class BlockingGrader(Grader):
    def grade(self, ctx):
        raise AssertionError


class Fails(Solve):
    def __init__(self, config=None):
        raise RuntimeError("no key")


class Exits(Solve):
    def __init__(self, config=None):
        raise SystemExit(3)


class FailingGrader(Strict):
    def __init__(self, config=None):
        raise RuntimeError("no rubric")


class WantsConfig(AgentWorkflow[Deep]):
    async def run(self, ctx):
        raise AssertionError


class WantsAnyConfig(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx):
        raise AssertionError


def validated(workflow=Solve, grader=Strict, name="solve", **configs):
    return validate_program(Program(workflow, grader=grader, **configs), name)


def codes(result):
    return [issue.code for issue in result.errors], [issue.code for issue in result.warnings]


def test_sound_program_is_valid_and_described():
    result = validated()
    assert result.valid and codes(result) == ([], [])
    assert (result.name, result.workflow, result.grader) == ("solve", "Solve", "Strict")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ({"workflow": Blocking}, "WORKFLOW_RUN_NOT_ASYNC", "write `async def run(self, ctx)`"),
        ({"workflow": Fails}, "WORKFLOW_INIT_FAILED", "raised RuntimeError: no key"),
        ({"workflow": Exits}, "WORKFLOW_INIT_FAILED", "raised SystemExit: 3"),
        ({"grader": None}, "MISSING_GRADER", "no concrete Grader subclass"),
        ({"grader": BlockingGrader}, "GRADER_GRADE_NOT_ASYNC", "`async def grade(self, ctx)`"),
        ({"grader": FailingGrader}, "GRADER_INIT_FAILED", "raised RuntimeError: no rubric"),
        ({"name": ""}, "INVALID_AGENT_NAME", "has 0 characters"),
        ({"name": "n" * 257}, "INVALID_AGENT_NAME", "has 257 characters"),
    ],
)
def test_each_problem_has_its_code_and_says_what_to_do(arguments, code, message):
    result = validated(**arguments)
    assert not result.valid
    assert codes(result) == ([code], [])
    assert message in result.errors[0].message


def test_all_problems_are_collected():
    class Both(Blocking):
        def __init__(self, config=None):
            raise ValueError

    expected = ["WORKFLOW_RUN_NOT_ASYNC", "WORKFLOW_INIT_FAILED", "MISSING_GRADER"]
    assert codes(validated(Both, None)) == (expected, [])


def test_name_of_256_characters_is_the_longest():
    assert validated(name="n" * 256).valid


def test_constructors_get_their_configs():
    seen = []

    class Looks(Solve):
        def __init__(self, config=None):
            seen.append(config)

    class GraderLooks(Strict):
        def __init__(self, config=None):
            seen.append(config)

    configs = Deep(name="deep"), GraderConfig(name="g")
    validated(Looks, GraderLooks, workflow_config=configs[0], grader_config=configs[1])
    assert seen == list(configs)


def test_wanted_config_that_is_missing_is_a_warning():
    result = validated(WantsConfig)
    assert result.valid and codes(result) == ([], ["MISSING_CONFIG"])
    assert "no Deep instance at module level" in result.warnings[0].message


def test_wanted_config_that_is_there_is_no_warning():
    assert codes(validated(WantsConfig, workflow_config=Deep(name="deep"))) == ([], [])


def test_workflow_that_takes_any_config_needs_none():
    assert codes(validated(WantsAnyConfig)) == ([], [])


def test_programs_own_check_adds_to_what_is_found_and_needs_no_grader():
    found = [Issue("NO_KEEL", "it has no keel")], [Issue("OLD_SAIL", "its sail is old")]
    result = validated(grader=None, check=lambda: found)
    assert not result.valid
    assert codes(result) == (["NO_KEEL"], ["OLD_SAIL"])
    assert validated(grader=None, check=lambda: ([], [])).valid
