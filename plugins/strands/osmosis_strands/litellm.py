"""The policy as Strands' LiteLLM model: quiet, offline, and over the same transport."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from osmosis_core.policy import MODEL
from osmosis_strands.model import PolicyModel, model_config, openai_client

_QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_MODE": "PRODUCTION",
}
"""Without these, importing litellm goes to the network and reads a `.env` into the environment."""


def _import_quietly() -> None:
    if "litellm" in sys.modules:
        return
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        litellm: Any = importlib.import_module("litellm")
    except ModuleNotFoundError as error:
        raise ImportError(
            "LiteLLMRolloutModel needs LiteLLM: pip install 'osmosis-strands[litellm]'"
        ) from error
    litellm.suppress_debug_info = True


_import_quietly()

from strands.models.litellm import LiteLLMModel  # noqa: E402 - litellm is imported quietly first


class LiteLLMRolloutModel(PolicyModel, LiteLLMModel):
    """OsmosisRolloutModel as a `strands.models.litellm.LiteLLMModel`.

    For code that needs LiteLLM's parameters or asks for its class; every call costs LiteLLM's
    CPU time, several times that of OsmosisRolloutModel.
    """

    def __init__(self, params: dict[str, Any] | None = None, **options: Any) -> None:
        config = model_config(type(self).__name__, params, options)
        once = {"client": openai_client(), "api_key": "-", "max_retries": 0, "num_retries": 0}
        LiteLLMModel.__init__(self, client_args=once, model_id=f"openai/{MODEL}", **config)
