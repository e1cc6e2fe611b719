"""`flashsmith compile` and `flashsmith cache`: rows, options that matter, and exit codes."""

import json

import pytest
from typer.testing import CliRunner

from flashsmith.cli.main import app
from flashsmith.compile.cache import upkeep as cache_upkeep
from flashsmith.kernels import parse_config

SMALL = "(BF16, 64, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"
LARGE = "(FP16, 256, 128, 64, 8): async+swizzled+load_2_2_2_tiles"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("KERNELS", raising=False)
    return tmp_path / "cache"


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def rows(*arguments):
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_one_row_a_configuration_and_architecture(tmp_path):
    (tmp_path / "two").write_text(f"{SMALL}\n{LARGE}\n")
    found = rows("compile", f"@{tmp_path / 'two'}", "--arch", "sm_80,sm_86")
    assert [(row["config"], row["arch"]) for row in found] == [
        (SMALL, "sm_80"),
        (LARGE, "sm_80"),
        (SMALL, "sm_86"),
        (LARGE, "sm_86"),
    ]
    assert found[0]["registers"] > 0
    assert found[3]["registers"] is None
    assert "131,072" in found[3]["note"]
    assert set(found[0]) == {
        "config",
        "arch",
        "registers",
        "spill_bytes",
        "smem_bytes",
        "blocks_per_sm",
        "compile_s",
        "code",
        "same_as",
        "note",
    }


def new_entry(own_cache, *options):
    """The cache entry that a compile with these options makes beside the plain one."""
    rows("compile", SMALL, "--arch", "sm_80")
    before = set((own_cache / "kernels").iterdir())
    rows("compile", SMALL, "--arch", "sm_80", *options)
    (new,) = set((own_cache / "kernels").iterdir()) - before
    return new


@pytest.mark.parametrize("trait", ["causal", "ragged_q", "ragged_k", "narrow_d", "lse"])
def test_every_trait_has_an_option(own_cache, trait):
    new = new_entry(own_cache, f"--{trait.replace('_', '-')}")
    assert (new / "kernel.cu").read_text().startswith(f"// {SMALL} | {trait}\n")


@pytest.mark.parametrize(("option", "is_debug"), [("--line-info", False), ("--debug", True)])
def test_lines_and_debug_builds_are_options(own_cache, option, is_debug):
    ptx = (new_entry(own_cache, option) / "kernel.ptx").read_text()
    assert ".loc" in ptx
    assert (".target sm_80, debug" in ptx) == is_debug


def test_a_table_leaves_columns_out_that_say_nothing():
    done = run("compile", SMALL, "--arch", "sm_80")
    assert "registers" in done.stdout
    assert "same_as" not in done.stdout


def test_all_means_every_architecture():
    found = rows("compile", LARGE, "--arch", "all", "--workers", "1")
    assert [row["arch"] for row in found] == [
        "sm_80",
        "sm_86",
        "sm_89",
        "sm_90a",
        "sm_100a",
        "sm_120",
    ]


def test_a_kernel_that_does_not_compile_makes_the_exit_code_1(monkeypatch):
    config_class = type(parse_config(SMALL))
    monkeypatch.setattr(config_class, "CPP_ENTRY", "flashsmith::no_such_kernel")
    done = run("compile", SMALL, "--arch", "sm_80", "--csv")
    assert done.exit_code == 1
    assert "no_such_kernel" in done.stdout
    assert "1 of 1 did not compile" in done.stderr


def test_the_cache_is_shown_and_cleaned(own_cache):
    rows("compile", SMALL, "--arch", "sm_80")
    (summary,) = rows("cache")
    assert (summary["kernels"], summary["failed"], summary["damaged"]) == (1, 0, 0)
    assert summary["folder"] == str(own_cache)
    assert summary["megabytes"] > 0
    (entry,) = rows("cache", "--list")
    assert entry["kernel"] == f"{SMALL} | plain"
    assert entry["arch"] == "sm_80"
    assert entry["bytes"] > 10_000
    assert len(list((own_cache / "kernels").glob(f"{entry['key']}*"))) == 1
    assert run("cache", "--clean").stdout.startswith("removed 1 entries")
    assert rows("cache")[0]["kernels"] == 0


def test_what_cannot_be_cleaned_is_said_and_is_exit_code_1(own_cache, monkeypatch):
    rows("compile", SMALL, "--arch", "sm_80")
    monkeypatch.setattr(cache_upkeep, "remove", lambda entry: "Permission denied")
    ran = run("cache", "--clean")
    assert (ran.exit_code, ran.stdout[:17]) == (1, "removed 0 entries")
    assert "cannot be removed: " in ran.stderr
    assert ": Permission denied" in ran.stderr
