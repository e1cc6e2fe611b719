"""What a GPU is, as data: limits, occupancy and peaks."""
