"""Pydantic AI agents as osmosis rollouts; `osmosis_pydantic_ai.adapter` has what users import.

Nothing is imported here: finding plugins must not import the framework.
"""
