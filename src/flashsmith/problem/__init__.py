"""What is computed: the facts of one attention problem, its mask, its cost and its truth."""
