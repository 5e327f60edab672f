"""Osmosis rollouts on acme.

Nothing is imported here: finding plugins must not import what runs rollouts.
"""
