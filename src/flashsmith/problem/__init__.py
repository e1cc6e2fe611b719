"""What is computed: shapes, mask and scale of one attention problem, its cost and its truth."""
