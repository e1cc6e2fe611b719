"""What lies around a cache: tables and lengths that lie bring none of it into a result."""

from dataclasses import replace

import numpy as np
import pytest

from flashsmith.check.cases import Case, inputs_of
from flashsmith.kernels import parse_config
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import signature_of
from flashsmith.runtime.run import prepare, run_arrays
from flashsmith.runtime.tensors import Location, contiguous, contiguous_tensors, uploaded

SMALL = "decode(BF16, 64, 16, 16, 2): slice_128+most_32+stages_3+ctas_2"
CHUNKS = (
    "hopper(BF16, 64, 2, 64): kv_2+q_4+overlap+pingpong+early_rescale+early_tests+stats_SUM+lazy_8"
    "+tiles_DYNAMIC+split+sections+o_smem+regs_224_56"
)
CONTIGUOUS = AttentionProblem(3, 3, 1, 2, 300, 64, causal=True, lse=True, k_lengths=True)
PAGES = replace(CONTIGUOUS, page=16, pages=23)
SPARE = 5  # sequences or pages, and rows, that lie before and behind those of a cache
FILLINGS = (0, 0x7FC1)  # NaN, and an entry far behind the pool
KERNELS = {
    "slices": (SMALL, CONTIGUOUS),
    "in turn": (f"{SMALL}+persistent", CONTIGUOUS),
    "boxes": (f"hopper_{SMALL}", CONTIGUOUS),
    "chunks": (CHUNKS, CONTIGUOUS),
    "slices of pages": (SMALL, PAGES),
    "runs of whole pages": (f"{SMALL}+runs+evict_first+whole_pages", PAGES),
    "boxes of pages": (f"hopper_{SMALL}", PAGES),
    "chunks of pages": (CHUNKS, PAGES),
    "chunks of rows of pages": (CHUNKS, replace(PAGES, page=15)),
}


def lying(problem):
    """Lengths beyond the room and below zero, entries on both sides of the pool."""
    given = dict(inputs_of(Case("behind", problem)))
    lengths = [problem.k_len + SPARE, -SPARE, 177]
    given["k_lengths"] = np.array(lengths, np.int32).view(np.uint32)
    if problem.page:
        shape, random = given["block_table"].shape, np.random.default_rng(0)
        table = random.integers(-SPARE, problem.pages + SPARE, shape, np.int32)
        table[0, :4] = -SPARE, problem.pages, -1, problem.pages + SPARE - 1
        given["block_table"] = table.view(np.uint32)
    return given


def clamped(problem, given):
    """The same as the documents say that it is read."""
    found = dict(given)
    for name, most in (("k_lengths", problem.k_len), ("block_table", problem.pages - 1)):
        if name in given:
            found[name] = given[name].view(np.int32).clip(0, most).view(np.uint32)
    return found


def amid(name, bits, filling):
    """Where a tensor lies in a larger array, and that array: `filling` all around."""
    spare = [SPARE] * (2 if bits.ndim == 4 else 1)  # rows of a table follow each other
    sides = [(n, n) for n in spare] + [(0, 0)] * (bits.ndim - len(spare))
    larger = np.pad(bits, sides, constant_values=filling)
    strides = contiguous(name, larger.shape).strides
    offset = SPARE * sum((*strides, 1)[: len(spare)])
    return Location(name, offset, bits.shape, strides), larger.reshape(-1)


def run_amid(device, config, problem, given, filling):
    """The bits of all outputs where `filling` lies around caches, lengths and tables."""
    locations, buffers = contiguous_tensors(problem, given)
    for name in given.keys() - {"q"}:
        locations[name], buffers[name] = amid(name, given[name], filling)
    with uploaded(device, buffers) as held:
        prepare(device, config, problem)(held.call(locations))
        outputs = signature_of(problem).outputs(problem)
        return {r.name: held.download(r.name).reshape(r.shape(problem)) for r in outputs}


@pytest.mark.parametrize(("text", "problem"), KERNELS.values(), ids=KERNELS)
def test_nothing_behind_a_cache_reaches_a_result(text, problem, device):
    """No host looks at tables and lengths first: the kernel alone holds them."""
    config, given = parse_config(text), lying(problem)
    wanted = run_arrays(device, config, problem, clamped(problem, given))
    for filling in FILLINGS:
        found = run_amid(device, config, problem, given, filling)
        for name, bits in wanted.items():
            np.testing.assert_array_equal(found[name], bits)
