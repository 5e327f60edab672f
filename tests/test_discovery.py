"""A TARGET leads to one workflow, its grader and their configs, or to a message that says why."""

import sys

import pytest

from osmosis_core import (
    AgentWorkflow,
    AgentWorkflowConfig,
    ConfigError,
    Grader,
    GraderConfig,
)
from osmosis_core.discovery import UserCodeError, load_entrypoint, load_program, load_target

IMPORTS = "from osmosis_core import AgentWorkflow, AgentWorkflowConfig, Grader, GraderConfig\n"
WORKFLOW = "class {}(AgentWorkflow):\n    async def run(self, ctx): pass\n"
GRADER = "class {}(Grader):\n    async def grade(self, ctx): pass\n"


def workflows(*names):
    return IMPORTS + "".join(map(WORKFLOW.format, names))


def graders(*names):
    return "".join(map(GRADER.format, names))


@pytest.fixture(autouse=True)
def fresh_imports(tmp_path, monkeypatch):
    """An empty current directory; what a test imports is forgotten after it."""
    monkeypatch.chdir(tmp_path)
    modules, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - modules:
        del sys.modules[name]


@pytest.fixture
def write(tmp_path):
    def write(file, text):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def refusal(target):
    with pytest.raises(ConfigError) as caught:
        load_entrypoint(target)
    assert not isinstance(caught.value, UserCodeError)
    return str(caught.value)


class TestTargets:
    @pytest.mark.parametrize("target", ["solve", "solve:Solve", "solve.py", "./solve.py:Solve"])
    def test_module_and_file_with_attribute_and_without(self, write, target):
        write("solve.py", workflows("Solve"))
        entrypoint = load_entrypoint(target)
        assert entrypoint.program.workflow.__name__ == "Solve"
        assert (entrypoint.target, entrypoint.name) == (target, "Solve")

    def test_attribute_chooses_among_several(self, write):
        write("solve.py", workflows("Fast", "Slow"))
        assert load_entrypoint("solve.py:Slow").program.workflow.__name__ == "Slow"

    def test_absolute_path_from_elsewhere_can_import_its_neighbours(self, write, tmp_path):
        write("there/tools.py", "NAME = 'Solve'")
        file = write("there/solve.py", workflows("Solve") + "from tools import NAME\n")
        assert load_entrypoint(str(file)).module.NAME == "Solve"

    @pytest.mark.parametrize("root", [".", "src"])
    def test_file_in_a_package_keeps_its_dotted_name(self, write, root):
        write(f"{root}/team/__init__.py", "")
        write(f"{root}/team/math/__init__.py", "")
        write(f"{root}/team/math/tools.py", "LIMIT = 3")
        write(f"{root}/team/math/solve.py", workflows("Solve") + "from .tools import LIMIT\n")
        module = load_entrypoint(f"{root}/team/math/solve.py").module
        assert (module.__name__, module.LIMIT) == ("team.math.solve", 3)

    def test_same_file_twice_is_one_module(self, write):
        write("solve.py", workflows("Solve"))
        first, second = load_entrypoint("solve.py"), load_entrypoint("solve")
        assert first.program.workflow is second.program.workflow

    def test_same_stem_in_two_folders_stays_two_modules(self, write):
        write("one/solve.py", workflows("One"))
        write("two/solve.py", workflows("Two"))
        names = [load_entrypoint(f"{d}/solve.py").name for d in ("one", "two", "one", "two")]
        assert names == ["One", "Two", "One", "Two"]

    def test_packages_of_one_name_in_two_folders_stay_two(self, write):
        for folder in ("one", "two"):
            write(f"{folder}/team/__init__.py", "")
            write(f"{folder}/team/{folder}.py", workflows(folder.title()))
        names = [load_entrypoint(f"{d}/team/{d}.py").name for d in ("one", "two", "one")]
        assert names == ["One", "Two", "One"]

    def test_file_named_like_an_imported_module_does_not_replace_it(self, write):
        import json

        write("json.py", workflows("Solve"))
        assert load_entrypoint("json.py").name == "Solve"
        assert sys.modules["json"] is json

    def test_target_may_name_anything_for_those_who_load_it_themselves(self, write):
        write("solve.py", "answer = 42")
        module, attribute = load_target("solve.py:answer")
        assert getattr(module, attribute) == 42
        assert load_target("solve") == (module, "")


class TestNotThere:
    def test_unknown_module_names_the_directory_that_was_searched(self, tmp_path):
        assert refusal("slove") == f"no module 'slove' on the path or in {tmp_path}"

    def test_module_below_a_plain_module_is_not_user_code(self, write):
        write("solve.py", workflows("Solve"))
        assert "no module 'solve.deeper'" in refusal("solve.deeper")

    def test_unknown_file_suggests_the_nearest(self, write):
        write("solve.py", workflows("Solve"))
        assert refusal("slove.py") == "no file 'slove.py'; did you mean 'solve.py'?"

    def test_file_in_a_missing_folder_is_a_plain_message(self):
        assert refusal("no/where.py") == "no file 'no/where.py'"

    def test_folder_is_not_said_to_be_missing(self, tmp_path):
        assert refusal(str(tmp_path)) == f"{str(tmp_path)!r} is a folder; name a file in it"

    def test_unknown_attribute_suggests_the_nearest(self, write):
        write("solve.py", workflows("Solve"))
        assert refusal("solve:Slove").endswith("solve has no 'Slove'; did you mean 'Solve'?")

    def test_dots_for_slashes_suggest_the_file(self, write):
        write("my/rollout.py", "")
        write("my.py", "")
        assert refusal("my.rollout").endswith("did you mean my/rollout.py?")

    @pytest.mark.parametrize("target", ["", "a-b", "solve:a.b", "1"])
    def test_text_that_is_no_target_says_what_is(self, target):
        assert "give module, module:attr or a path" in refusal(target)

    def test_file_that_is_not_python_is_refused(self, write):
        write("rollouts/solve.toml", "")
        assert "give a path that ends in .py" in refusal("rollouts/solve.toml")

    @pytest.mark.parametrize(
        ("attribute", "problem"),
        [
            ("answer", "give a subclass of AgentWorkflow"),
            ("IMPORTS", "give a subclass of AgentWorkflow"),
            ("Abstract", "is abstract; implement run"),
            ("AgentWorkflow", "is abstract; implement run"),
        ],
    )
    def test_attribute_that_is_no_concrete_workflow_is_refused(self, write, attribute, problem):
        text = f"{IMPORTS}IMPORTS = {IMPORTS!r}\nclass Abstract(AgentWorkflow): pass\nanswer = 1\n"
        write("solve.py", text)
        assert problem in refusal(f"solve.py:{attribute}")

    def test_abstract_workflows_are_named_when_there_is_no_other(self, write):
        write(
            "solve.py",
            f"{IMPORTS}class Typo(AgentWorkflow):\n    async def runn(self, ctx): pass\n",
        )
        assert "(Typo has no run())" in refusal("solve.py")


class TestCounting:
    def test_no_workflow_says_what_to_define(self, write):
        write("solve.py", IMPORTS)
        assert refusal("solve").startswith("no concrete AgentWorkflow subclass in 'solve'")

    def test_several_workflows_are_named(self, write):
        write("solve.py", workflows("Slow", "Fast"))
        assert "several AgentWorkflow subclasses in 'solve': Fast, Slow" in refusal("solve")

    def test_several_graders_are_named(self, write):
        write("solve.py", workflows("Solve") + graders("Strict", "Kind"))
        assert "several Grader subclasses in 'solve.py': Kind, Strict" in refusal("solve.py")

    @pytest.mark.parametrize("kind", ["AgentWorkflowConfig", "GraderConfig"])
    def test_several_configs_are_named(self, write, kind):
        write("solve.py", workflows("Solve") + f"b = {kind}(name='b')\na = {kind}(name='a')\n")
        assert f"several {kind} instances in 'solve': a, b" in refusal("solve")

    def test_abstract_classes_do_not_count(self, write):
        write("solve.py", workflows("Solve") + "class Base(AgentWorkflow): pass\n")
        assert load_entrypoint("solve").name == "Solve"

    def test_one_object_under_two_names_counts_once(self, write):
        more = "Alias = Solve\nconfig = settings = AgentWorkflowConfig(name='n')\n"
        write("solve.py", workflows("Solve") + more)
        assert load_entrypoint("solve").name == "n"

    def test_imported_classes_do_not_compete_with_defined_ones(self, write):
        write("shared.py", workflows("Base") + graders("Kind"))
        own = workflows("Solve") + graders("Strict")
        write("solve.py", own + "from shared import Base, Kind\n")
        program = load_entrypoint("solve").program
        assert (program.workflow.__name__, program.grader.__name__) == ("Solve", "Strict")

    def test_imported_classes_count_when_nothing_is_defined(self, write):
        write("shared.py", workflows("Base") + graders("Kind"))
        write("solve.py", "from shared import Base, Kind\n")
        program = load_entrypoint("solve").program
        assert (program.workflow.__name__, program.grader.__name__) == ("Base", "Kind")

    def test_configs_are_found_and_name_the_entrypoint(self, write):
        configs = "a = AgentWorkflowConfig(name=' math ', depth=3)\nb = GraderConfig(name='g')\n"
        write("solve.py", workflows("Solve") + graders("Strict") + configs)
        entrypoint = load_entrypoint("solve")
        assert entrypoint.name == "math"
        assert entrypoint.program.workflow_config.depth == 3
        assert entrypoint.program.grader_config.name == "g"

    def test_everything_but_the_workflow_is_optional(self, write):
        write("solve.py", workflows("Solve"))
        program = load_entrypoint("solve").program
        assert (program.workflow_config, program.grader, program.grader_config) == (None,) * 3


class TestUserCode:
    @pytest.fixture(params=["solve", "solve.py"])
    def failure(self, request, write):
        def failure(text):
            write("solve.py", text)
            with pytest.raises(UserCodeError) as caught:
                load_entrypoint(request.param)
            return caught.value

        return failure

    def test_error_shows_the_users_frames_only(self, failure):
        error = failure("def start():\n    raise RuntimeError('no key')\nstart()\n")
        assert str(error).endswith("cannot be imported: RuntimeError: no key")
        lines = [line for line in error.user_traceback.splitlines() if "File " in line]
        assert [line.partition("solve.py")[2] for line in lines] == [
            '", line 3, in <module>',
            '", line 2, in start',
        ]

    def test_error_keeps_its_cause(self, failure):
        error = failure(
            "try:\n    {}['key']\nexcept KeyError as e:\n    raise OSError('no') from e\n"
        )
        assert "KeyError: 'key'" in error.user_traceback
        assert "discovery.py" not in error.user_traceback

    def test_users_folder_may_be_called_importlib(self, write):
        write("importlib_demo/solve.py", "1 / 0")
        with pytest.raises(UserCodeError) as caught:
            load_entrypoint("importlib_demo/solve.py")
        assert "line 1, in <module>" in caught.value.user_traceback

    @pytest.mark.parametrize("missing", ["not_there", "solve_helpers"])
    def test_module_that_the_user_misses_is_user_code(self, failure, missing):
        error = failure(f"import {missing}")
        assert f"ModuleNotFoundError: No module named '{missing}'" in str(error)
        assert "line 1, in <module>" in error.user_traceback

    def test_syntax_error_shows_the_line(self, failure):
        error = failure("x = 1\nwhile True print(x)\n")
        assert "SyntaxError" in str(error)
        assert "solve.py" in error.user_traceback and "line 2" in error.user_traceback
        assert "discovery.py" not in error.user_traceback

    def test_exit_in_the_module_is_an_error_like_any_other(self, failure):
        assert "SystemExit: 3" in str(failure("raise SystemExit(3)"))

    def test_error_without_words_is_named(self, failure):
        assert str(failure("raise ValueError")).endswith("ValueError: ValueError")

    def test_mended_file_loads_in_the_same_process(self, failure, write):
        failure("raise ValueError")
        write("solve.py", workflows("Solve") + "# mended\n")
        assert load_entrypoint("solve.py").name == "Solve"


class Idle(AgentWorkflow):
    async def run(self, ctx):
        raise AssertionError


class Strict(Grader):
    async def grade(self, ctx):
        raise AssertionError


class Unfinished(AgentWorkflow):
    pass


class TestProgram:
    def test_objects_are_taken_as_they_are(self):
        config, grading = AgentWorkflowConfig(name="w"), GraderConfig(name="g")
        program = load_program(Idle, config, Strict, grading)
        assert (program.workflow, program.grader) == (Idle, Strict)
        assert program.workflow_config is config and program.grader_config is grading

    def test_paths_are_loaded(self, write):
        write("solve.py", workflows("Solve") + "config = AgentWorkflowConfig(name='c')\n")
        program = load_program("solve:Solve", "solve.py:config")
        assert (program.workflow.__name__, program.workflow_config.name) == ("Solve", "c")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((Idle(),), "workflow is <.*Idle object.*; pass the class, not an instance of Agent"),
            ((int,), "workflow is the class int; give a subclass of AgentWorkflow"),
            ((None,), "workflow is None; give a subclass of AgentWorkflow"),
            ((Unfinished,), "workflow Unfinished is abstract; implement run"),
            (("solve",), "workflow='solve' is not an import path; write 'module:attr'"),
            ((Idle, None, Idle), "grader is the class Idle; give a subclass of Grader"),
            ((Idle, {}), "workflow_config is {}; give an instance of AgentWorkflowConfig"),
            ((Idle, AgentWorkflowConfig), "workflow_config is the class AgentWorkflowConfig"),
            (
                (Idle, None, Strict, AgentWorkflowConfig(name="w")),
                "grader_config is .*; give an instance of GraderConfig",
            ),
        ],
    )
    def test_wrong_kinds_are_refused_with_the_right_one(self, arguments, message):
        with pytest.raises(ConfigError, match=message):
            load_program(*arguments)
