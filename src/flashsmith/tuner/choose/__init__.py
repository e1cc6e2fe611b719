"""Which configuration runs a problem, and why."""
