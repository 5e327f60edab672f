"""The ways of speaking with controllers, one file each."""
