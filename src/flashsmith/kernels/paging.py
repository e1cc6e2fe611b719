"""Pages of a cache, as kernels are told of them."""

from __future__ import annotations


def page_shift(page: int) -> int:
    """The logarithm of a page's rows where they are a power of two; else -1."""
    return page.bit_length() - 1 if page and page & (page - 1) == 0 else -1


LEAST_BOX = 8  # rows of a box, at least: after so many the swizzle repeats


def boxes_fit(page: int, rows: int) -> bool:
    """Whether `rows` keys are whole boxes: pages, or parts of one."""
    return page % rows == 0 or (page >= LEAST_BOX and rows % page == 0)


def page_box(page: int, rows: int) -> int:
    """Rows of a box where `rows` keys are whole boxes; else 0."""
    return min(page, rows) if page and boxes_fit(page, rows) else 0
