"""The laboratory: suites of shapes, peers beside us in one run, the ladder step by step."""
