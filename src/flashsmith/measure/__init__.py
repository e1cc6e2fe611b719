"""How a number is obtained: timing protocol, statistics, environment."""
