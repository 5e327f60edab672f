"""What this distribution offers to osmosis."""
