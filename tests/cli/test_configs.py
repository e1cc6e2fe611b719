"""`flashsmith configs`: sets in three forms, why a configuration is out, the size of the space."""

import csv
import io
import json

import pytest
from typer.testing import CliRunner

from flashsmith.cli.main import app
from flashsmith.kernels import get_kernel_configs, parse_config

NOT_IN_THE_GRID = "(BF16, 128, 128, 64, 8): async+eager+swizzled+load_4_4_2_tiles+opt_softmax"
FACTS = ["short_form", "threads", "smem_bytes", "blocks_at_most", "limit"]


@pytest.fixture
def configs(monkeypatch):
    monkeypatch.delenv("KERNELS", raising=False)

    def run(*arguments, columns=160):
        ran = CliRunner().invoke(app, ["configs", *arguments], env={"COLUMNS": str(columns)})
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    return run


def test_json_is_one_array_of_flat_objects(configs):
    rows = json.loads(configs("prog", "--json"))
    assert [row["short_form"] for row in rows] == [
        c.short_form() for c in get_kernel_configs("prog")
    ]
    assert all(list(row) == FACTS for row in rows)
    assert rows[0] | {"short_form": ""} == {
        "short_form": "",
        "threads": 128,
        "smem_bytes": 49152,
        "blocks_at_most": 4,
        "limit": "shared memory",
    }


def test_csv_has_the_columns_of_json(configs):
    rows = list(csv.DictReader(io.StringIO(configs("prog", "--csv"))))
    assert list(rows[0]) == FACTS
    assert [parse_config(row["short_form"]) for row in rows] == get_kernel_configs("prog")


def test_without_a_key_kernels_decides_and_else_it_is_the_tuning_set(configs, monkeypatch):
    assert len(json.loads(configs("--json"))) == 80
    monkeypatch.setenv("KERNELS", "64,64")
    assert len(json.loads(configs("--json"))) == 32
    assert len(json.loads(configs("prog", "--json"))) == 7


def test_a_key_may_be_a_short_form_or_a_file(configs, tmp_path):
    one = get_kernel_configs("prog")[3].short_form()
    assert [row["short_form"] for row in json.loads(configs(one, "--json"))] == [one]
    path = tmp_path / "two.txt"
    path.write_text(f"{one}\n# and no more\n", encoding="utf-8")
    assert len(json.loads(configs(f"@{path}", "--json"))) == 1


@pytest.mark.parametrize(("arch", "blocks"), [("sm_86", 2), ("sm_80", 3), ("sm_90a", 4)])
def test_most_blocks_per_sm_are_those_of_the_architecture(configs, arch, blocks):
    (first, *_) = json.loads(configs("prog", "--json", "--arch", arch))
    assert first["blocks_at_most"] == blocks


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_fits_the_terminal(configs, columns):
    lines = configs("tune", "--all", columns=columns).splitlines()
    assert len(lines) > 80
    assert max(map(len, lines)) <= columns
    assert "70 more: --all" in configs("tune", columns=columns).splitlines()


def test_the_narrowest_terminal_gets_a_table(configs):
    assert "7 configurations on" in configs("prog", columns=20)


def test_why_names_the_filter_that_refuses_or_says_that_none_does(configs):
    text = configs("--why", "(FP16, 128, 64, 64, 8): eager+load_0_0_0_tiles")
    assert "eager_needs_async refuses it" in text
    assert "add async or drop eager" in text
    fine = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles"
    assert "no filter refuses it" in configs("--why", fine)
    rows = json.loads(configs("--why", fine, "--json"))
    assert rows[-1]["answer"].startswith("no filter refuses it")


def test_why_says_whether_a_block_fits_the_architecture(configs):
    large = "(BF16, 256, 128, 128, 8): async+load_2_2_2_tiles"
    *_, short, verdict = json.loads(configs("--why", large, "--arch", "sm_89", "--json"))
    assert short["answer"] == "refuses: 196,608 of 101,376 bytes of shared memory"
    assert "but sm_89 lacks the shared memory; " in verdict["answer"]
    *_, enough, verdict = json.loads(configs("--why", large, "--json"))
    assert enough["answer"] == "lets pass: 196,608 of 232,448 bytes of shared memory"
    assert verdict["answer"].startswith("no filter refuses it, and sm_90a can run it; ")


def test_why_says_that_an_architecture_lacks_the_instructions(configs):
    hopper = "hopper(BF16, 128, 1, 128): kv_2+q_1+o_smem+regs_240_56"
    rows = json.loads(configs("--why", hopper, "--arch", "sm_80", "--json"))
    assert [row["answer"] for row in rows[-3:]] == [
        "refuses: its instructions do not exist on sm_80; they do on sm_90a",
        "lets pass: 164,080 of 166,912 bytes of shared memory",
        "no filter refuses it, but sm_80 lacks the instructions; it is in hopper-prog",
    ]


def test_space_gives_the_size_before_and_after_each_filter(configs):
    steps = json.loads(configs("--space", "--json"))
    (start,) = [s for s in steps if s["step"] == "tuning grid" and s["family"] == "sm80_forward"]
    assert start["left"] == 256
    (end,) = [s for s in steps if s["step"] == "large_tile_reads_q_in_steps"]
    assert end["left"] == 80


def test_space_shows_ten_rows_unless_all_are_asked_for(configs, monkeypatch):
    steps = [{"step": f"rule {n}", "left": 10**12 - n * 10**10} for n in range(12)]
    monkeypatch.setattr("flashsmith.cli.verbs.configs._space", lambda: steps)
    assert "2 more: --all" in configs("--space").splitlines()
    assert configs("--space", "--all").splitlines()[-2].split() == ["rule", "11", "890", "billion"]


def test_space_leaves_out_rules_that_refuse_nothing(configs):
    steps = json.loads(configs("--space", "--json"))
    starts = [s["step"] for s in steps if not s["refused"]]
    assert starts == ["legal values"] * 7 + ["tuning grid"] * 5


def test_page_is_the_reference_of_every_knob(configs):
    assert "| `n_warps` | in the parentheses | 4, 8 |" in configs("--page")


def test_a_family_that_an_architecture_lacks_has_no_blocks_there(configs):
    here = {row["limit"] for row in json.loads(configs("hopper", "--json", "--arch", "sm_80"))}
    assert here == {"architecture"}
    rows = json.loads(configs("hopper", "--json"))
    assert all(row["blocks_at_most"] >= 1 for row in rows)


def test_why_says_that_a_configuration_is_not_in_the_grid(configs):
    rows = json.loads(configs("--why", NOT_IN_THE_GRID, "--json"))
    assert rows[-1]["answer"] == (
        "no filter refuses it, and sm_90a can run it; not in the grid: n_warps 8, "
        "Q_mma_load_K_tiles 4, K_mma_load_K_tiles 4; give it by its short form, or as a line of "
        "@file"
    )
    held = get_kernel_configs("tune")[0].short_form()
    rows = json.loads(configs("--why", held, "--json"))
    assert rows[-1]["answer"] == "no filter refuses it, and sm_90a can run it; it is in tune, all"


def test_configs_and_compile_do_not_call_two_numbers_by_one_name(configs):
    """One is what threads and shared memory leave room for, the other what registers do too."""
    from flashsmith.cli.verbs.compile import COLUMNS

    assert not {"blocks_per_sm"} & set(FACTS)
    assert "blocks_per_sm" in COLUMNS
