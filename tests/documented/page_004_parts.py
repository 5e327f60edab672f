"""Agent loops: the other blocks of the page, with their imports changed."""

import re
from typing import Any, Dict, List, Optional

from page_004 import agent_loop

from osmosis_agent_loop import RolloutSettings, create_app, osmosis_reward
from osmosis_agent_loop.errors import ToolArgumentError
from osmosis_agent_loop.schemas import (
    OpenAIFunctionParametersSchema,
    OpenAIFunctionPropertySchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
)
from osmosis_agent_loop.settings import RolloutClientSettings
from osmosis_agent_loop.tools import (
    create_tool_error_result,
    create_tool_result,
    get_tool_call_info,
    serialize_tool_result,
)

TOOLS = [
    OpenAIFunctionToolSchema(
        type="function",
        function=OpenAIFunctionSchema(
            name="search",
            description="Search for information",
            parameters=OpenAIFunctionParametersSchema(
                type="object",
                properties={
                    "query": OpenAIFunctionPropertySchema(type="string", description="Search query")
                },
                required=["query"],
            ),
        ),
    )
]

SAME_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search for information",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "description": "Search query"}},
                "required": ["query"],
            },
        },
    }
]


async def do_search(query):
    return {"results": [query]}


async def execute_tool(tool_call):
    """Execute a single tool call."""
    try:
        tool_call_id, function_name, arguments = get_tool_call_info(tool_call)
    except ToolArgumentError as e:
        return create_tool_error_result(e.tool_call_id, str(e))

    if function_name == "search":
        result = await do_search(arguments["query"])
        return create_tool_result(tool_call_id, serialize_tool_result(result))
    else:
        return create_tool_error_result(tool_call_id, f"Unknown tool: {function_name}")


async def async_startup_fn():
    pass


async def async_shutdown_fn():
    pass


settings = RolloutSettings(
    client=RolloutClientSettings(
        timeout_seconds=300.0,  # HTTP client timeout
        max_retries=3,  # Max retry attempts
        complete_rollout_retries=2,  # Retries for /completed endpoint
        retry_base_delay=1.0,  # Initial retry delay (seconds)
        retry_max_delay=30.0,  # Maximum retry delay (seconds)
        max_connections=100,  # HTTP connection pool size
        max_keepalive_connections=20,  # Keep-alive connections
    )
)

app = create_app(
    agent_loop,
    max_concurrent=10,  # Max concurrent rollouts (default: unlimited)
    record_ttl_seconds=3600.0,  # How long to keep rollout records (default: 1 hour)
    settings=settings,  # Custom settings (see below)
    debug_dir="./logs",  # Directory for debug logs
    on_startup=async_startup_fn,  # Async function called on server start
    on_shutdown=async_shutdown_fn,  # Async function called on server stop
)


@osmosis_reward
def compute_reward(
    solution_str: str,
    ground_truth: str,
    extra_info: dict = None,
    **kwargs,  # Required for platform compatibility
) -> float:
    """Compare solution to ground truth."""
    if solution_str.strip() == ground_truth.strip():
        return 1.0
    return 0.0


def get_last_assistant_content(messages: List[Dict[str, Any]]) -> Optional[str]:
    """Get the content of the last assistant message."""
    for message in reversed(messages):
        if message.get("role") == "assistant":
            return message.get("content", "")
    return None


def compute_reward_from_messages(
    messages: List[Dict[str, Any]],
    ground_truth: Optional[str],
) -> Optional[float]:
    """Compute reward from messages if ground_truth is available."""
    if not ground_truth:
        return None

    solution_str = get_last_assistant_content(messages)
    if not solution_str:
        return 0.0

    # Your reward logic here
    return compute_reward(solution_str, ground_truth)


def extract_answer(text: str) -> str | None:
    """Extract answer after #### marker."""
    match = re.search(r"####\s*(.+)", text)
    return match.group(1).strip() if match else None
