"""The wgmma wrappers are what their generator writes, and one for each width that is used."""

import runpy
from pathlib import Path

from flashsmith.kernels.sm90_forward.config import Sm90ForwardConfig

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools/write_wgmma_headers.py"))


def squeezed(text):
    """clang-format moves white space and cuts strings; nothing else may differ."""
    return "".join(text.replace('" "', "").split()).replace('""', "")


def test_every_header_is_as_generated():
    for width in TOOL["WIDTHS"]:
        written = (TOOL["FOLDER"] / f"m64n{width}.cuh").read_text(encoding="utf-8")
        assert squeezed(written) == squeezed(TOOL["header"](width)), width
    assert len(list(TOOL["FOLDER"].iterdir())) == len(TOOL["WIDTHS"])


def test_every_width_of_the_space_has_a_header():
    knobs = Sm90ForwardConfig.knobs()
    used = {*knobs["B_c"].values, *knobs["d_head"].values, 64 + 8}
    assert used == set(TOOL["WIDTHS"])
