"""The page on the Hopper kernels shows what the committed records say."""

import runpy
from pathlib import Path

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools/write_hopper_page.py"))


def test_the_tables_are_those_of_the_records():
    page = TOOL["PAGE"].read_text(encoding="utf-8")
    assert TOOL["page_with_tables"](page) == page
