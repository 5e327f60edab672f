from __future__ import annotations

import anthropic
import openai
import pytest

from osmosis_core.testing import ScriptedPolicy
from osmosis_gateway import Gateway


class World:
    """A policy that says what it is told, an open rollout in front of it, and its gateway."""

    def __init__(self, *script, **options):
        self.policy = ScriptedPolicy(*script)
        self.options = options
        self._clients = []

    def __enter__(self):
        self.policy.__enter__()
        self.rollout = self.policy.rollout("r-1", **self.options)
        self.rollout.__enter__()
        self.gateway = Gateway()
        self.gateway.__enter__()
        return self

    def __exit__(self, *exc_info):
        for client in self._clients:
            client.close()
        self.gateway.__exit__()
        self.rollout.__exit__()
        self.policy.__exit__()

    def openai(self, sample_id=None, **options):
        where = self.gateway.endpoint(sample_id)
        client = openai.OpenAI(base_url=where.openai_url, api_key=where.api_key, **options)
        self._clients.append(client)
        return client

    def openai_async(self, sample_id=None):
        where = self.gateway.endpoint(sample_id)
        return openai.AsyncOpenAI(base_url=where.openai_url, api_key=where.api_key)

    def anthropic(self, sample_id=None, **options):
        where = self.gateway.endpoint(sample_id)
        client = anthropic.Anthropic(base_url=where.anthropic_url, api_key=where.api_key, **options)
        self._clients.append(client)
        return client

    def anthropic_async(self, sample_id=None):
        where = self.gateway.endpoint(sample_id)
        return anthropic.AsyncAnthropic(base_url=where.anthropic_url, api_key=where.api_key)

    def sent(self, index=-1):
        """The body of a request that reached the policy."""
        return self.policy.requests[index].body


@pytest.fixture
def world(request):
    """Open a World with a script; closed at the end of the test."""
    opened = []

    def open_(*script, **options):
        opened.append(World(*script, **options).__enter__())
        return opened[-1]

    yield open_
    for each in reversed(opened):
        each.__exit__()
