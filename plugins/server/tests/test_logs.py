"""Log lines: one per record, with its rollout, without keys."""

import io
import json
import logging

import pytest

from osmosis_core import RolloutContext
from osmosis_server.logs import configure_logs

EVIL = "r\n2026-01-01 INFO forged\x1b[2J\u2028x"


@pytest.fixture
def logged():
    """Write one record through our formatters; returns what came out."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level

    def log(style, message, *arguments, secrets=(), **options):
        stream = io.StringIO()
        configure_logs(style, secrets=secrets, stream=stream)
        logging.getLogger("osmosis.test").warning(message, *arguments, **options)
        return stream.getvalue()

    yield log
    logging.captureWarnings(False)
    root.handlers, root.level = before, level


def test_a_line_names_its_rollout(logged):
    with RolloutContext("http://policy/v1", None, "r-1"):
        inside = logged("json", "hello")
    told = logged("json", "hello", extra={"rollout_id": "r-2", "tries": 3})
    assert json.loads(inside)["rollout_id"] == "r-1"
    line = json.loads(told)
    assert (line["rollout_id"], line["tries"], line["level"]) == ("r-2", "3", "warning")
    assert " WARNING osmosis.test [r-2] hello\n" in logged(
        "text", "hello", extra={"rollout_id": "r-2"}
    )


@pytest.mark.parametrize("style", ["text", "json"])
def test_nobody_can_begin_a_line_of_their_own(logged, style):
    try:
        raise ValueError(EVIL)
    except ValueError:
        text = logged(style, "id %s", EVIL, extra={"rollout_id": EVIL}, exc_info=True)
    first, *others = text.splitlines()
    assert "forged" in first and "\x1b" not in text
    assert all(line.startswith("    ") for line in others)
    assert style == "text" or json.loads(text)["message"] == f"id {EVIL}"


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abc.DEF-123",
        "{'authorization': 'Bearer abc.DEF-123'}",
        '{"llm_api_key": "abc.DEF-123", "x": 1}',
        "GET /v1?api_key=abc.DEF-123&x=1",
        "OPENAI_API_KEY=abc.DEF-123",
        "X-Osmosis-Rollout-Lease: abc.DEF-123",
        "polling_lease_token='abc.DEF-123'",
        "sk-abc.DEF-123",
        "the server's abc.DEF-123",
    ],
)
def test_keys_are_blotted_out(logged, style, text):
    secrets = ["abc.DEF-123"] if "server" in text or "sk-" in text else []
    try:
        raise RuntimeError(text)
    except RuntimeError:
        told = logged(style, text, secrets=secrets, exc_info=True)
    assert "DEF-123" not in told and told.count("[redacted]") == 2


def test_the_key_of_the_rollout_at_hand_is_blotted_out(logged):
    with RolloutContext("http://policy/v1", "key-of-the-rollout", "r-1"):
        assert "key-of" not in logged("text", "it says key-of-the-rollout")


def test_what_is_no_key_stays(logged):
    assert "bearers of tokens: 7 monkeys" in logged("text", "bearers of tokens: 7 monkeys")
