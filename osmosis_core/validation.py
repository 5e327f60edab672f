"""What a submit would check about an entrypoint, collected instead of raised (protocol.md 2.4)."""

from __future__ import annotations

import inspect
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
    grader = program.grader
    result = ValidationResult(name, program.workflow.__name__, grader.__name__ if grader else None)
    if not 1 <= len(name) <= 256:
        _error(result, "INVALID_AGENT_NAME", f"the name has {len(name)} characters; give 1 to 256")
    _check_class(result, "WORKFLOW", program.workflow, "run", program.workflow_config)
    if grader is None:
        _error(
            result, "MISSING_GRADER", "no concrete Grader subclass in the entrypoint; define one"
        )
    else:
        _check_class(result, "GRADER", grader, "grade", program.grader_config)
    wanted = _config_type(program.workflow)
    if wanted is not None and program.workflow_config is None:
        text = f"no {wanted.__name__} instance at module level, so ctx.config will be None"
        result.warnings.append(Issue("MISSING_CONFIG", text))
    result.valid = not result.errors
    return result


def _check_class(
    result: ValidationResult, kind: str, cls: type[Any], method: str, config: Any
) -> None:
    if not inspect.iscoroutinefunction(getattr(cls, method)):
        text = f"{cls.__name__}.{method}() is not async; write `async def {method}(self, ctx)`"
        _error(result, f"{kind}_{method.upper()}_NOT_ASYNC", text)
    try:
        inspect.signature(getattr(cls, method)).bind(None, None)
    except TypeError:
        text = f"{cls.__name__}.{method}() does not take ctx; write `async def {method}(self, ctx)`"
        _error(result, f"{kind}_{method.upper()}_WITHOUT_CTX", text)
    try:
        cls(config)
    except (Exception, SystemExit) as error:  # boundary: user code raises anything
        text = f"{cls.__name__}(config) raised {type(error).__name__}: {describe(error)}"
        _error(result, f"{kind}_INIT_FAILED", text)


def _error(result: ValidationResult, code: str, message: str) -> None:
    result.errors.append(Issue(code, message))


def _config_type(workflow: type[AgentWorkflow[Any]]) -> type[AgentWorkflowConfig] | None:
    """The config class that the workflow's type argument names, if it names a subclass."""
    for base in getattr(workflow, "__orig_bases__", ()):
        for argument in get_args(base):
            if isinstance(argument, type) and issubclass(argument, AgentWorkflowConfig):
                return argument if argument is not AgentWorkflowConfig else None
    return None
