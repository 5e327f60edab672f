"""smolagents as osmosis rollouts; `osmosis_smolagents.adapter` has what users import.

Nothing is imported here: finding plugins must not import the framework.
"""
