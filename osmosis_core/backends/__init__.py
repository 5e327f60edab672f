"""Backends that ship with the kernel."""
