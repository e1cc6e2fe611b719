"""The list of kv blocks that q tiles see under a boolean mask: a launch before the others."""
