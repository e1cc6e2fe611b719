"""Which configuration a problem gets: measurements, and the rule where there are none."""
