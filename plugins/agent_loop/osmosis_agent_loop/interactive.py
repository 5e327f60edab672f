"""Step through a rollout in a terminal: see each turn, change it, try it again."""

from __future__ import annotations

import json
import signal
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import click

from osmosis_agent_loop.agent_loop import tool_dicts
from osmosis_agent_loop.client import CompletionsResult, LLMClientProtocol
from osmosis_agent_loop.messages import get_message_content, get_message_role, parse_tool_calls
from osmosis_agent_loop.schemas import MessageDict, RolloutMetrics

_BEFORE = {
    "n": "next: ask the policy",
    "e": "edit the last message",
}
_AFTER = {
    "n": "next: use this answer",
    "r": "retry the turn",
    "e": "edit the answer",
}
_ALWAYS = {"c": "continue to the end", "m": "messages", "t": "tools", "q": "quit"}


class Quit(KeyboardInterrupt):
    """The person wants no more; a loop that catches errors does not catch it."""


class SteppingClient:
    """A client that asks the person at the terminal before and after each call of another one."""

    def __init__(self, client: LLMClientProtocol, tools: list[Any]) -> None:
        self._client, self._tools = client, tool_dicts(tools)
        self._is_stepping = True
        self._shown = 0
        self._turn = 0

    def get_metrics(self) -> RolloutMetrics:
        """Those of the other client."""
        return self._client.get_metrics()

    async def chat_completions(
        self, messages: list[MessageDict], **params: Any
    ) -> CompletionsResult:
        """One turn, as often as the person wants it; edits change the loop's own messages."""
        self._turn += 1
        for message in messages[self._shown :]:
            show(message)
        while self._choose(f"turn {self._turn}", _BEFORE, messages) == "e" and messages:
            messages[-1] = edited(messages[-1])
            show(messages[-1])
        while True:
            result = await self._client.chat_completions(messages, **params)
            show(result.message)
            shown = [*messages, result.message]
            while (choice := self._choose("answer", _AFTER, shown)) == "e":
                _replace(result.message, edited(result.message))
                show(result.message)
            if choice != "r":
                self._shown = len(messages) + 1
                return result

    def _choose(self, what: str, options: dict[str, str], messages: list[MessageDict]) -> str:
        """The person's choice; `n` without asking once they said to continue."""
        options = {**options, **_ALWAYS}
        while self._is_stepping:
            match _ask(what, options):
                case "m":
                    for message in messages:
                        show(message)
                case "t":
                    click.echo(json.dumps(self._tools, indent=2, ensure_ascii=False))
                case "c":
                    self._is_stepping = False
                case "q":
                    raise Quit
                case choice:
                    return choice
        return "n"


def show(message: MessageDict) -> None:
    """Print a message: who, what, and the tools that it calls."""
    text, role = get_message_content(message), get_message_role(message)
    if text or not parse_tool_calls(message):
        click.echo(f"  {role}: {text}")
    for call in parse_tool_calls(message):
        function: dict[str, Any] = call.get("function") or {}
        click.echo(f"  {role} calls {function.get('name')}({function.get('arguments')})")


def edited(message: MessageDict) -> MessageDict:
    """The message as the person leaves it in `$EDITOR`, or as it was."""
    before = json.dumps(message, indent=2, ensure_ascii=False)
    try:
        with _interruptible():
            text = click.edit(before, extension=".json")
        after = json.loads(text) if text else message
    except (click.ClickException, ValueError) as error:
        click.echo(f"unchanged: {error}")
        return message
    if not isinstance(after, dict):
        click.echo("unchanged: a message is a JSON object")
        return message
    return cast("MessageDict", after)


def _replace(message: MessageDict, by: MessageDict) -> None:
    changed = dict(by)
    message.clear()
    message.update(changed)


def _ask(what: str, options: dict[str, str]) -> str:
    shown = ", ".join(f"[{key}] {text}" for key, text in options.items())
    while True:
        try:
            with _interruptible():
                choice = input(f"{what}: {shown}> ").strip().lower() or "n"
        except EOFError as error:
            raise Quit from error
        if choice in options:
            return choice
        click.echo(f"{choice!r} is none of {', '.join(options)}")


@contextmanager
def _interruptible() -> Generator[None]:
    """Let Ctrl-C end the wait for the person, which the event loop's own handler does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
