"""What every other package may use: errors, settings, number formats, paths."""
