"""The error tree, and the one place that turns any exception into a category.

    OsmosisError
    ├── NoActiveRolloutError   also RuntimeError: an Osmosis agent was built outside a rollout
    ├── PolicyNotBoundError    also NotImplementedError: an Osmosis model was called outside one
    ├── SampleError            also ValueError: duplicate or unknown sample id, object nobody adapts
    ├── ConfigError            also ValueError: wrong before any rollout started
    ├── PluginError            a plugin is missing, failed, too old, or a name is offered twice
    └── RolloutError           inside a rollout; carries a category
        ├── WorkflowError  GraderError  BackendError  PolicyError

User and plugin code raises whatever it likes; only `boundary()` classifies.
"""

import asyncio
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from osmosis_core.types import RolloutErrorCategory


class OsmosisError(Exception):
    """Base of every error that osmosis-core raises on purpose."""

    exit_code = 2
    """Exit code of the `osmosis` command when this error ends it."""


class NoActiveRolloutError(OsmosisError, RuntimeError):
    """An Osmosis agent or session was constructed outside a rollout."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} needs an active rollout: build it inside AgentWorkflow.run(), or open one:\n"
            "    with RolloutContext(chat_completions_url=..., api_key=...):\n"
            f"        {what}(...)"
        )


class PolicyNotBoundError(OsmosisError, NotImplementedError):
    """An Osmosis model or policy client was called outside a rollout."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} was called outside a rollout, so it has no policy to call: call it inside "
            "AgentWorkflow.run(), or within `with RolloutContext(chat_completions_url=...):`"
        )


class SampleError(OsmosisError, ValueError):
    """A sample id is taken or unknown, or no plugin can read samples from an object."""


class ConfigError(OsmosisError, ValueError):
    """Something was wrong before a rollout started."""


class PluginError(OsmosisError):
    """A plugin is missing, failed to load, is too old, or collides with another one."""


class RolloutError(OsmosisError):
    """Something went wrong inside a rollout; `category` is what the controller is told."""

    exit_code = 1
    default_category = RolloutErrorCategory.AGENT_ERROR

    def __init__(self, message: str, *, category: RolloutErrorCategory | None = None) -> None:
        super().__init__(message)
        self.category = category or self.default_category


class WorkflowError(RolloutError):
    """The user's workflow raised."""


class GraderError(RolloutError):
    """The user's grader raised, or left a sample without a reward."""


class BackendError(RolloutError):
    """A backend could not place or finish the work."""

    default_category = RolloutErrorCategory.INTERNAL_ERROR


class PolicyError(RolloutError):
    """The policy cannot be reached, keeps failing, or answered something unusable."""

    default_category = RolloutErrorCategory.HTTP_ERROR


def categorize(error: BaseException) -> RolloutErrorCategory:
    """The wire category of an exception from user code.

    A typed error, or a failed policy call anywhere among its causes, keeps its category;
    `TimeoutError` is a timeout, `ValueError` and `TypeError` are validation errors, all else is
    an agent error (documented mapping of LocalBackend).
    """
    for link in _causes(error):
        if isinstance(link, RolloutError):
            return link.category
        if failed_call(link) is not None:
            return RolloutErrorCategory.HTTP_ERROR
    if members := _members(error):
        return categorize(members[0])
    if isinstance(error, TimeoutError):
        return RolloutErrorCategory.TIMEOUT
    if isinstance(error, ValueError | TypeError):
        return RolloutErrorCategory.VALIDATION_ERROR
    return RolloutErrorCategory.AGENT_ERROR


def failed_call(error: BaseException) -> object | None:
    """The PolicyCall behind an SDK's status error, found through the response it carries."""
    extensions = getattr(getattr(error, "response", None), "extensions", None)
    return extensions.get("osmosis_call") if isinstance(extensions, dict) else None  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, its causes, and the members of exception groups among them."""
    seen: set[int] = set()
    links: list[BaseException | None] = [error]
    while links:
        link = links.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        links.append(link.__cause__ or (None if link.__suppress_context__ else link.__context__))
        links += _members(link)


def _members(error: BaseException) -> tuple[BaseException, ...]:
    return error.exceptions if isinstance(error, BaseExceptionGroup) else ()  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]


def _is_cancelling() -> bool:
    """True when the running task was asked to stop, or there is none."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return True
    return task is None or task.cancelling() > 0


@contextmanager
def boundary(kind: type[RolloutError]) -> Generator[None]:
    """Turn whatever user code lets escape into `kind`, keeping its text and its category.

    `sys.exit()` and a CancelledError that nobody asked for are errors of the rollout too.
    """
    try:
        yield
    except kind:
        raise
    except SystemExit as error:
        raise kind(f"called sys.exit({error.code!r})") from error
    except asyncio.CancelledError as error:
        if _is_cancelling():
            raise
        raise kind("raised CancelledError: something that it awaited was cancelled") from error
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise kind(describe(error), category=categorize(error)) from error


def describe(error: BaseException) -> str:
    """What an error says, on one line if it is a failed policy call's, a group's or pydantic's."""
    call = next((call for call in map(failed_call, _causes(error)) if call is not None), None)
    if call is not None:
        return str(getattr(call, "error", None) or call)
    if members := _members(error):
        return "; ".join(dict.fromkeys(map(describe, members)))
    if isinstance(error, ValidationError):
        issues = error.errors(include_url=False, include_input=False)
        where = [".".join(map(str, issue["loc"])) for issue in issues]
        return "; ".join(f"{at}: {issue['msg']}" for at, issue in zip(where, issues, strict=True))
    try:
        return str(error).strip() or type(error).__name__
    except Exception:  # a user's __str__ raises anything
        return type(error).__name__


def one_line(text: str, limit: int | None = None) -> str:
    """The text on one line, cut to `limit` characters."""
    text = " ".join(text.split())
    return text if limit is None or len(text) <= limit else f"{text[: limit - 3]}..."


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` when something similar is known, else nothing."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
