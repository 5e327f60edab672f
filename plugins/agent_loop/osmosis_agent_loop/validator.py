"""What is wrong with an agent loop before any rollout runs, with the published codes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast

from osmosis_agent_loop.agent_loop import returned_tools, stub_request
from osmosis_agent_loop.errors import AgentLoopError, AgentLoopValidationError
from osmosis_agent_loop.schemas import OpenAIFunctionToolSchema, RolloutRequest

_WARNINGS = ("UNKNOWN_TOOL_TYPE", "MISSING_FUNCTION_DESCRIPTION", "PARAMETERS_TYPE_NOT_OBJECT")


@dataclass(frozen=True, slots=True)
class ValidationError:
    """One thing that is wrong with an agent loop, or looks wrong."""

    code: str
    message: str
    field: str | None = None
    """Where, such as `tools[0].function.name`."""

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"


@dataclass(slots=True)
class ValidationResult:
    """All that was found; true when there are no errors."""

    valid: bool = True
    errors: list[ValidationError] = field(default_factory=list[ValidationError])
    warnings: list[ValidationError] = field(default_factory=list[ValidationError])
    agent_name: str | None = None
    tool_count: int = 0

    def __bool__(self) -> bool:
        return self.valid

    def raise_if_invalid(self) -> None:
        """Raise AgentLoopValidationError with all errors when there are any."""
        if not self.valid:
            raise AgentLoopValidationError("; ".join(map(str, self.errors)))


def validate_agent_loop(
    agent_loop: object, *, request: RolloutRequest | None = None
) -> ValidationResult:
    """Check an agent loop's name, tools and run method; `get_tools` is called, `run` is not.

    `request` is what `get_tools` is given; by default one with the id `validation-test-rollout`
    and the metadata `{"_validation": true}`.
    """
    request = request or stub_request("validation-test-rollout", metadata={"_validation": True})
    tools: list[Any] = []
    issues = [*_name_issues(agent_loop), *_tools_issues(agent_loop, request, tools)]
    issues += _run_issues(agent_loop)
    errors = [issue for issue in issues if issue.code not in _WARNINGS]
    warnings = [issue for issue in issues if issue.code in _WARNINGS]
    name: object = getattr(agent_loop, "name", None)
    shown = name if isinstance(name, str) else None
    return ValidationResult(not errors, errors, warnings, shown, len(tools))


def _name_issues(agent_loop: object) -> Iterator[ValidationError]:
    name: object = getattr(agent_loop, "name", None)
    if name is None:
        text = f'{type(agent_loop).__name__} has no name; write `name = "..."` in its class body'
        yield ValidationError("MISSING_NAME", text, "name")
    elif not isinstance(name, str):
        text = f"the name is {name!r}; give a string"
        yield ValidationError("INVALID_NAME_TYPE", text, "name")
    elif not name.strip():
        yield ValidationError("EMPTY_NAME", "the name is blank; give one", "name")


def _tools_issues(
    agent_loop: object, request: RolloutRequest, tools: list[Any]
) -> Iterator[ValidationError]:
    try:
        found = _in_thread(returned_tools(agent_loop, request))
    except AgentLoopError as error:
        yield ValidationError("GET_TOOLS_EXCEPTION", f"get_tools() {error}", "get_tools")
        return
    if found is None:
        text = "get_tools() returned None; return a list, empty for no tools"
        yield ValidationError("GET_TOOLS_RETURNS_NONE", text, "get_tools")
    elif not isinstance(found, list):
        text = f"get_tools() returned {type(found).__name__}; return a list"
        yield ValidationError("GET_TOOLS_INVALID_TYPE", text, "get_tools")
    else:
        tools += cast("list[Any]", found)
        for index, tool in enumerate(tools):
            yield from _tool_issues(tool, f"tools[{index}]")


def _tool_issues(tool: Any, where: str) -> Iterator[ValidationError]:
    if isinstance(tool, OpenAIFunctionToolSchema):
        tool = tool.model_dump()
    if not isinstance(tool, dict):
        text = f"{where} is {type(tool).__name__}; give a dict or an OpenAIFunctionToolSchema"
        yield ValidationError("INVALID_TOOL_TYPE", text, where)
        return
    given = cast("dict[str, Any]", tool)
    if not given.get("type"):
        text = f'{where} has no type; write "type": "function"'
        yield ValidationError("MISSING_TOOL_TYPE", text, f"{where}.type")
    elif given["type"] != "function":
        text = f'{where}.type is {given["type"]!r}; trainers know "function"'
        yield ValidationError("UNKNOWN_TOOL_TYPE", text, f"{where}.type")
    function = given.get("function")
    if function is None:
        text = f'{where} has no "function"'
        yield ValidationError("MISSING_FUNCTION", text, f"{where}.function")
    elif not isinstance(function, dict):
        text = f"{where}.function is {type(function).__name__}; give an object"
        yield ValidationError("INVALID_FUNCTION_TYPE", text, f"{where}.function")
    else:
        yield from _function_issues(cast("dict[str, Any]", function), f"{where}.function")


def _function_issues(function: dict[str, Any], where: str) -> Iterator[ValidationError]:
    name = function.get("name")
    if name is None:
        text = f"{where} has no name"
        yield ValidationError("MISSING_FUNCTION_NAME", text, f"{where}.name")
    elif not isinstance(name, str) or not name.strip():
        text = f"{where}.name is {name!r}; give a string that is not blank"
        yield ValidationError("INVALID_FUNCTION_NAME", text, f"{where}.name")
    if not function.get("description"):
        text = f"{where} has no description; models choose tools by it"
        yield ValidationError("MISSING_FUNCTION_DESCRIPTION", text, f"{where}.description")
    parameters = function.get("parameters", {"type": "object"})
    if not isinstance(parameters, dict):
        text = f"{where}.parameters is {type(parameters).__name__}; give a JSON Schema of an object"
        yield ValidationError("INVALID_PARAMETERS_TYPE", text, f"{where}.parameters")
    elif (kind := cast("dict[str, Any]", parameters).get("type")) != "object":
        text = f'{where}.parameters.type is {kind!r}; arguments are an "object"'
        yield ValidationError("PARAMETERS_TYPE_NOT_OBJECT", text, f"{where}.parameters.type")


def _run_issues(agent_loop: object) -> Iterator[ValidationError]:
    run: Any = getattr(agent_loop, "run", None)
    mend = "write `async def run(self, ctx)`"
    if run is None:
        text = f"{type(agent_loop).__name__} has no run(); {mend}"
        yield ValidationError("MISSING_RUN_METHOD", text, "run")
    elif not callable(run):
        text = f"run is {type(run).__name__}, which cannot be called; {mend}"
        yield ValidationError("RUN_NOT_CALLABLE", text, "run")
    elif not inspect.iscoroutinefunction(run):
        yield ValidationError("RUN_NOT_ASYNC", f"run() is not async; {mend}", "run")


def _in_thread(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Its result, inside an event loop too."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
