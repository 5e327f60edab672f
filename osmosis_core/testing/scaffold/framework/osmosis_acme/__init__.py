"""Acme agents as osmosis rollouts; `osmosis_acme.adapter` has what users import.

Nothing is imported here: finding plugins must not import the framework.
"""
