"""What varies: constant knobs are said once, the rest are columns, and no knob is lost."""

from itertools import pairwise

from flashsmith.kernels import get_kernel_configs
from flashsmith.kernels.varying import FLAGS, OFF, ON, OTHER, changed, varying, varying_texts

LADDER = get_kernel_configs("prog")


def test_what_all_share_is_the_caption_and_the_rest_are_columns():
    found = varying(LADDER)
    assert found.caption == (
        "sm80_forward, dtype FP16, d_head 128, B_r 64, B_c 64, n_warps 4, async"
    )
    assert found.columns == ("eager", "swizzled", "load_tiles", "buffer", "opt_softmax")
    assert list(found.table()[0].values()) == [OFF, OFF, "0/0/0", OFF, OFF]
    assert list(found.table()[-1].values()) == [ON, ON, "0/2/2", OFF, ON]


def test_flags_share_a_column_where_there_is_little_room():
    rows = varying(LADDER).narrow_table()
    assert list(rows[0]) == ["load_tiles", FLAGS]
    assert rows[0][FLAGS] == OFF
    assert rows[-1][FLAGS] == "eager+swizzled+opt_softmax"


def test_a_text_says_what_is_written_of_what_differs():
    assert varying(LADDER).texts()[:2] == ["load_tiles 0/0/0", "swizzled, load_tiles 0/0/0"]
    several = varying(get_kernel_configs("hopper-prog"))
    assert "cluster 1" not in several.texts()[0]  # it is so unless told otherwise
    assert several.table()[0]["cluster"] == "1"
    assert "up NONE" not in several.caption


def test_a_change_names_what_came_and_what_went():
    assert [changed(a, b) for a, b in pairwise(LADDER)] == [
        "swizzled",
        "eager",
        "load_tiles 2/2/2",
        "buffer",
        "opt_softmax",
        "load_tiles 0/2/2, no buffer",
    ]
    assert changed(LADDER[0], LADDER[0]) == ""


def test_equal_configurations_have_no_columns():
    found = varying([LADDER[0]] * 3)
    assert (found.columns, found.table()) == ((), [{}, {}, {}])
    assert found.texts() == ["none of these"] * 3


def test_different_kernels_stand_side_by_side():
    both = [LADDER[0], get_kernel_configs("hopper-prog")[0]]
    first, second = varying(both).table()
    assert (first["kernel"], second["kernel"]) == tuple(config.NAME for config in both)
    assert (first["n_warps"], second["n_warps"]) == ("4", "")
    assert varying(both).same["d_head"].text == "128"


def test_a_text_that_names_no_configuration_is_kept_as_it_is():
    found = varying_texts([LADDER[0].short_form(), "cuDNN"])
    assert [row[OTHER] for row in found.table()] == ["", "cuDNN"]
    assert found.texts()[1] == "cuDNN"


def test_two_configurations_differ_in_a_column_whenever_they_differ():
    for key in ("prog", "tune", "hopper", "hopper-prog", "smoke"):
        configs = list(dict.fromkeys(get_kernel_configs(key)))
        rows = [tuple(row.items()) for row in varying(configs).table()]
        assert len(set(rows)) == len(configs)
