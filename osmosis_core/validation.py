"""What a submit would check about an entrypoint, collected instead of raised (protocol.md 2.4)."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

from osmosis_core.config import AgentWorkflowConfig
from osmosis_core.discovery import load_entrypoint
from osmosis_core.errors import describe
from osmosis_core.execution import Program
from osmosis_core.workflow import AgentWorkflow


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing that is wrong, or looks wrong."""

    code: str
    message: str


@dataclass(slots=True)
class ValidationResult:
    """All issues of an entrypoint."""

    name: str
    workflow: str
    grader: str | None
    errors: list[Issue] = field(default_factory=list[Issue])
    warnings: list[Issue] = field(default_factory=list[Issue])
    valid: bool = True


def validate_target(target: str) -> ValidationResult:
    """Load a TARGET and validate it; raises ConfigError when it cannot be loaded at all."""
    entrypoint = load_entrypoint(target)
    return validate_program(entrypoint.program, entrypoint.name)


def validate_program(program: Program, name: str) -> ValidationResult:
    """Check that the classes can be built and run; nothing is called but their constructors."""
    kind, config = program.workflow, program.workflow_config
    grader, errors = program.grader, list(_class_issues("WORKFLOW", kind, "run", config))
    if not 1 <= len(name) <= 256:
        text = f"the name has {len(name)} characters; give 1 to 256"
        errors.insert(0, Issue("INVALID_AGENT_NAME", text))
    warnings: list[Issue] = []
    if program.check is not None:
        own_errors, warnings = program.check()
        errors += own_errors
    if grader is not None:
        errors += _class_issues("GRADER", grader, "grade", program.grader_config)
    elif program.check is None:
        text = "no concrete Grader subclass in the entrypoint; define one"
        errors.append(Issue("MISSING_GRADER", text))
    wanted = _config_type(kind)
    if wanted is not None and config is None:
        text = f"no {wanted.__name__} instance at module level, so ctx.config will be None"
        warnings.append(Issue("MISSING_CONFIG", text))
    graded_by = grader.__name__ if grader else None
    return ValidationResult(name, kind.__name__, graded_by, errors, warnings, not errors)


def _class_issues(kind: str, cls: type[Any], method: str, config: Any) -> Iterator[Issue]:
    code, function = f"{kind}_{method.upper()}", getattr(cls, method)
    called, mend = f"{cls.__name__}.{method}()", f"write `async def {method}(self, ctx)`"
    if not inspect.iscoroutinefunction(function):
        yield Issue(f"{code}_NOT_ASYNC", f"{called} is not async; {mend}")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        yield Issue(f"{code}_WITHOUT_CTX", f"{called} does not take ctx; {mend}")
    try:
        cls(config)
    except (Exception, SystemExit) as error:  # boundary: user code raises anything
        text = f"{cls.__name__}(config) raised {type(error).__name__}: {describe(error)}"
        yield Issue(f"{kind}_INIT_FAILED", text)


def _config_type(workflow: type[AgentWorkflow[Any]]) -> type[AgentWorkflowConfig] | None:
    """The config class that the workflow's type argument names, if it names a subclass."""
    for base in getattr(workflow, "__orig_bases__", ()):
        for argument in get_args(base):
            if isinstance(argument, type) and issubclass(argument, AgentWorkflowConfig):
                return argument if argument is not AgentWorkflowConfig else None
    return None
