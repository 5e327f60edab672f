"""Names the code that blocks the event loop of running rollouts, once for each place."""
