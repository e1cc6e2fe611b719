"""The flashsmith command: one file a verb."""
