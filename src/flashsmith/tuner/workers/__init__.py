"""Who does a tuning run's jobs: processes here, or on a cluster."""
