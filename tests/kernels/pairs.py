"""Points of a grid of values that hold every pair of values of two lists, drawn by a seed."""

import itertools
import random


def all_pairs(grid, seed):
    """Points of the grid that hold every pair of values of two lists: drawn, the best kept."""
    draw = random.Random(seed)
    names = list(grid)
    missing = {
        (a, x, b, y)
        for a, b in itertools.combinations(names, 2)
        for x in range(len(grid[a]))
        for y in range(len(grid[b]))
    }

    def covered(point):
        return {(a, point[a], b, point[b]) for a, b in itertools.combinations(names, 2)}

    points = []
    while missing:
        a, x, b, y = draw.choice(sorted(missing))
        others = ({n: draw.randrange(len(grid[n])) for n in names} for _ in range(30))
        tried = [point | {a: x, b: y} for point in others]
        best = max(tried, key=lambda point: len(covered(point) & missing))
        missing -= covered(best)
        points.append({name: grid[name][at] for name, at in best.items()})
    return points


def require_every_pair(grid, points):
    """Fails unless every value, and every pair of values of two lists, is among the points."""
    for a, b in itertools.combinations(grid, 2):
        pairs = {(str(point[a]), str(point[b])) for point in points}
        assert len(pairs) == len(grid[a]) * len(grid[b]), (a, b)
