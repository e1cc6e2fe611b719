"""Masks: spans, areas and pairs are those of the matrix of what each row sees."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashsmith.problem.mask import Mask

bounds = st.one_of(st.none(), st.integers(-5, 45))
masks = st.builds(
    Mask,
    q_len=st.integers(1, 40),
    k_len=st.integers(1, 40),
    left=bounds,
    right=bounds,
    alignment=st.integers(-45, 45),
)


@given(masks, st.integers(0, 45), st.integers(0, 45))
def test_a_span_holds_every_key_that_its_rows_see_and_ends_where_they_do(mask, first, more):
    seen = mask.visible()[first : first + more].any(axis=0)
    start, count = mask.span(first, first + more)
    keys = np.flatnonzero(seen)
    if keys.size:
        assert (start, start + count) == (keys[0], keys[-1] + 1)
    assert not seen[:start].any()
    assert not seen[start + count :].any()


@given(masks)
def test_pairs_and_hiding_are_those_of_the_matrix(mask):
    assert mask.pairs == mask.visible().sum()
    assert mask.hides == (not mask.visible().all())


@given(masks)
def test_the_area_is_near_the_pairs(mask):
    """An element on an edge counts half, and a row has at most two edges."""
    assert abs(mask.pairs - mask.area) <= mask.q_len + 1e-9 or mask.pairs == 0


@given(masks)
def test_the_bounded_diagonal_hides_what_the_true_one_does(mask):
    rows = np.arange(mask.q_len)[:, None]
    keys = np.arange(mask.k_len)[None, :]
    right_only = Mask(mask.q_len, mask.k_len, None, mask.right, mask.alignment)
    assert ((keys <= rows + mask.diagonal) == right_only.visible()).all()


def test_the_reach_is_the_keys_from_edge_to_edge_and_all_where_one_is_unbounded():
    assert [Mask(9, 90, 4, 3).reach, Mask(9, 90, 4).reach, Mask(9, 90, None, 0).reach] == [
        7,
        94,
        90,
    ]
