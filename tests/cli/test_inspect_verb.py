"""`flashsmith inspect`: counts, listings and differences of real kernels."""

import json

import pytest
from typer.testing import CliRunner

from flashsmith.base.errors import ArgumentError, CompilerMissing, Unsupported
from flashsmith.cli.main import app
from flashsmith.cli.verbs import inspect

BASE = "(BF16, 64, 64, 32, 4): async+swizzled+load_2_2_2_tiles"
SYNC = "(BF16, 64, 64, 32, 4): swizzled+load_2_2_2_tiles"


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def run(*arguments):
    return CliRunner().invoke(app, ["inspect", *arguments])


def counts(*arguments):
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return {(row["listing"], row["opcode"]): row for row in json.loads(done.stdout)}


def test_ptx_and_sass_have_the_matrix_products_of_the_kernel():
    found = counts(BASE, "--arch", "sm_80")
    # 64 x 32 x 64 products of a warp's 16 rows twice (Q K and P V), 16 x 8 x 16 a piece.
    assert found["ptx", "mma"]["count"] == 32
    assert found["sass", "HMMA"]["count"] == 32
    assert found["sass", "LDGSTS"]["count"] > 0


def test_without_a_disassembler_ptx_alone_is_counted_and_said_to_be(monkeypatch):
    def is_missing():
        raise CompilerMissing("no nvdisasm was found; install nvidia-cuda-nvdisasm.")

    monkeypatch.setattr(inspect, "find_nvdisasm", is_missing)
    done = run(BASE, "--arch", "sm_80", "--json")
    assert {row["listing"] for row in json.loads(done.stdout)} == {"ptx"}
    assert "Only PTX is counted: no nvdisasm was found" in done.stderr


def test_modifiers_are_counted_where_asked():
    assert ("sass", "HMMA.16816.F32.BF16") in counts(BASE, "--arch", "sm_80", "--whole")


def test_a_difference_shows_what_a_knob_changes_most_first():
    found = counts(BASE, "--diff", SYNC, "--arch", "sm_80")
    copies = found["sass", "LDGSTS"]
    assert (copies["other"], copies["difference"]) == (0, -copies["count"])
    assert abs(next(iter(found.values()))["difference"]) >= copies["count"]


def test_a_difference_has_no_rows_that_are_equal_and_a_title_on_two_lines():
    found = counts(BASE, "--diff", SYNC, "--arch", "sm_80")
    assert all(row["difference"] for row in found.values())
    shown = CliRunner().invoke(app, ["inspect", BASE, "--diff", SYNC], env={"COLUMNS": "80"})
    assert shown.stdout.splitlines()[:2] == [f"count: {BASE}", "other: no async"]


def test_traits_are_options():
    assert counts(BASE)["ptx", "setp"] != counts(BASE, "--causal")["ptx", "setp"]


def test_aliases_are_said_to_be_such():
    assert "they are aliases" in run(BASE, "--diff", BASE).stderr


def test_listings_are_printed_and_compared():
    assert ".visible .entry" in run(BASE, "--ptx").stdout
    assert "LDGSTS" in run(BASE, "--sass").stdout
    changes = run(BASE, "--diff", SYNC, "--ptx").stdout
    assert changes.startswith(f"--- {BASE}\n+++ {SYNC}\n")
    assert "\n-\tcp.async.cg" in changes


def test_two_listings_at_once_and_what_cannot_be_built_are_refused():
    assert isinstance(run(BASE, "--ptx", "--sass").exception, ArgumentError)
    assert isinstance(run(SYNC.replace("swizzled", "eager")).exception, Unsupported)
