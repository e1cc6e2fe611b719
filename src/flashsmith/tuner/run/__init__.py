"""A tuning run: candidates, screening, races, the gate."""
