"""From a configuration and a problem to grid, block, shared memory and parameters."""
