"""Tables of the page: ratios stay inside a run and a family, and rows say what varies."""

from dataclasses import replace

import pytest
from report_records import CONFIGS, record

from flashsmith.kernels import get_kernel_configs
from flashsmith.report import ladders, tuning_tables
from flashsmith.report.contenders import OURS, against_peers
from flashsmith.report.left_out import left_out
from flashsmith.report.peer_tables import all_versus, best_peer, peer_tables
from flashsmith.report.sources import ReportData, gather, shipped_records
from flashsmith.report.table import knob_columns
from flashsmith.tuner.run.counting import Place
from flashsmith.tuner.store.outcome import DidNotCompile, Timed, Verified

SAME = (1.0, 1.0, 1.0)
HOPPER = get_kernel_configs("hopper-prog")
OLD, NEW = "2026-11-15", "2026-11-16"


def texts(table):
    return [[cell.text for cell in row] for row in table.rows]


def test_a_ratio_is_never_taken_between_two_runs():
    old = [record("a", OURS, 1024, 50.0), record("a", "cuDNN", 1024, 60.0)]
    new = [
        record("b", OURS, 1024, 100.0, ratio=SAME, date=NEW),
        record("b", "FlashInfer", 1024, 200.0, ratio=(0.5, 0.4, 0.8), date=NEW),
    ]
    found = {a.peer: a for a in against_peers([*new, *old])}
    assert found["cuDNN"].ratio == 1.2
    assert found["FlashInfer"].ratio == 2.0
    assert (found["FlashInfer"].p20, found["FlashInfer"].p80) == (1.25, 2.5)


def test_what_was_taken_in_too_few_rounds_is_no_evidence_and_said():
    records = [record("explored", name, 1024, us) for name, us in ((OURS, 50.0), ("cuDNN", 60.0))]
    for r in records:
        r.result["rounds"] = 11
    assert against_peers(records) == []
    gaps = " ".join(left_out(ReportData(tuple(records), (), "x")))
    assert "2 records of explored: taken in fewer than 15 rounds" in gaps


def test_the_newest_run_of_a_peer_counts():
    runs = [
        [record("a", OURS, 1024, 100.0, date=d), record("a", "cuDNN", 1024, us, date=d)]
        for d, us in ((NEW, 150.0), (OLD, 110.0))
    ]
    (found,) = against_peers([*runs[0], *runs[1]])
    assert found.ratio == 1.5


def test_kernels_of_two_families_are_two_comparisons():
    runs = [
        [
            record("a", config.short_form(), 1024, us, date=d),
            record("a", "cuDNN", 1024, 90.0, date=d),
        ]
        for config, us, d in ((CONFIGS[0], 80.0, NEW), (HOPPER[0], 60.0, OLD))
    ]
    found = all_versus([*runs[0], *runs[1]])
    assert [(v.family, v.mean) for v in found] == [
        (HOPPER[0].NAME, pytest.approx(1.5)),
        (CONFIGS[0].NAME, pytest.approx(1.125)),
    ]
    assert best_peer([*runs[0], *runs[1]]).family == HOPPER[0].NAME
    titles = [table.title for table in peer_tables([*runs[0], *runs[1]])]
    assert titles[0] == f"{HOPPER[0].NAME}: times as fast as cuDNN, burst"


def test_the_nearest_peer_is_the_best_unless_it_was_asked_on_few_shapes():
    lengths = (512, 1024, 2048, 4096)
    records = [
        record("a", name, n, us) for n in lengths for name, us in ((OURS, 50.0), ("cuDNN", 60.0))
    ]
    records += [record("a", "slow", n, 90.0) for n in lengths]
    assert best_peer(records).peer == "cuDNN"
    assert best_peer([*records, record("a", "rare", 512, 51.0)]).peer == "cuDNN"
    assert best_peer([]) is None


def test_a_prototype_of_ours_is_no_peer():
    records = [record("a", name, 1024, us) for name, us in ((OURS, 50.0), ("prototype", 51.0))]
    assert all_versus(records) == []


def test_widths_and_masks_stand_down_lengths_across_with_the_spread():
    records = [
        r
        for d_head, causal in ((64, False), (128, True))
        for length in (4096, 512)
        for r in (
            record(
                "a",
                CONFIGS[0].short_form(),
                length,
                80.0,
                d_head=d_head,
                causal=causal,
                ratio=(1.25, 1.2, 1.4),
            ),
            record("a", "torch FA2", length, 100.0, d_head=d_head, causal=causal, ratio=SAME),
        )
    ]
    (table,) = peer_tables(records)
    assert table.title == "Times as fast as FlashAttention-2 (torch), burst"
    assert table.heads == ("", "512", "4,096")
    assert texts(table) == [["d 64 full", "1.25", "1.25"], ["d 128 causal", "1.25", "1.25"]]
    cell = table.rows[0][1]
    assert (cell.small, cell.kind) == ("±8.0%", "number good")
    assert "Burst: each run after 4 ms of rest." in table.reads


def test_shapes_that_differ_in_more_have_rows_of_their_own():
    records = [record("a", name, 1024, us) for name, us in ((OURS, 50.0), ("cuDNN", 60.0))]
    records += [replace(r, what={**r.what, "batch": 7}) for r in records]
    (table,) = peer_tables(records)
    assert [row[0] for row in texts(table)] == [
        "d 128 full, FP16, batch 2, 16 heads",
        "d 128 full, FP16, batch 7, 16 heads",
    ]


def ladder(configs, length, date=OLD):
    return [
        record("progression", c.short_form(), length, 100.0 / n, ratio=(float(n), n, n), date=date)
        for n, c in enumerate(configs, start=1)
    ]


def test_a_ladder_is_one_table_whose_steps_say_what_they_add():
    records = [*ladder(CONFIGS, 4096), *ladder(CONFIGS, 16384), *ladder(HOPPER, 4096, NEW)]
    mma, hopper = ladders.ladders(records)
    assert len(hopper.rows) == len(HOPPER) == 12
    assert mma.heads[:4] == ("", "adds", "TFLOP/s at 4,096", "× before")
    assert [row[1] for row in texts(mma)] == [
        *("the start", "swizzled", "eager", "load_tiles 2/2/2", "buffer", "opt_softmax"),
        "load_tiles 0/2/2, no buffer",
    ]
    assert texts(mma)[1][3] == "2.00×"
    assert mma.title == "sm80_forward: 7 steps, together 7.00 times as fast"
    assert "All steps: sm80_forward, dtype FP16, d_head 128, B_r 64" in mma.reads


def test_a_run_that_two_files_hold_is_one(tmp_path):
    lines = "".join(f"{r.to_line()}\n" for r in ladder(HOPPER, 4096))
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(lines)
    data = gather([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    (table,) = ladders.ladders(data.records)
    assert len(table.rows) == len(HOPPER)


def test_the_shipped_ladders_have_as_many_rows_as_steps():
    tables = ladders.ladders(gather(shipped_records()).records)
    assert [len(table.rows) for table in tables] == [len(CONFIGS), len(HOPPER)]


def test_a_ladder_of_what_names_no_configuration_is_no_ladder():
    assert ladders.ladders([record("progression", f"step {n}", 4096, 9.0) for n in (1, 2)]) == []


def test_few_knobs_are_columns_and_many_are_a_text():
    few = knob_columns([c.short_form() for c in CONFIGS])
    assert few.heads == ("eager", "swizzled", "load_tiles", "buffer", "opt_softmax")
    both = knob_columns([c.short_form() for c in (*CONFIGS, *HOPPER)])
    assert both.heads == ("configuration",)
    stated = knob_columns([c.short_form() for c in CONFIGS], stated=("buffer",))
    assert stated.heads == tuple(head for head in few.heads if head != "buffer")
    assert [len(row) for row in stated.rows] == [len(few.heads) - 1] * len(CONFIGS)
    assert both.rows[0] == (
        "sm80_forward, dtype FP16, B_r 64, B_c 64, n_warps 4, async, load_tiles 0/0/0",
    )


def test_winners_say_what_varies_between_them(gpu_data):
    timed = [m for m in gpu_data.measurements if isinstance(m.outcome, Timed)]
    many = [
        replace(m, key=replace(m.key, problem=replace(m.key.problem, q_len=64 * (n + 1))))
        for n, m in enumerate(timed)
    ]
    table = tuning_tables.winners_table(many)
    assert table.heads[4:] == ("eager", "load_tiles", "buffer", "opt_softmax")
    assert "swizzled" in table.reads
    of_widths = [
        replace(m, key=replace(m.key, config=CONFIGS[-1].replace(d_head=d).short_form()))
        for m, d in zip(many, (64, 128), strict=False)
    ]
    assert "d_head" not in tuning_tables.winners_table(of_widths).heads  # the problem says it
    assert tuning_tables.winners_table(timed) is None  # one problem: the head of the page says it


def test_without_times_the_predicted_order_shows_its_quantity_and_what_limits(gpuless_data):
    table = tuning_tables.order_table(gpuless_data.measurements, gpuless_data.places)
    assert table.title == "Predicted order on 512, d 128, full, nothing was timed"
    assert table.heads[:3] == ("place", "cycles, over the first", "limited by")
    assert texts(table)[1][:3] == ["2", "1.100", "shared memory"]
    assert table.rows[-1][1].bar == (0, 100)
    assert len(table.words) == len(CONFIGS)
    older = {key: Place(int(place)) for key, place in gpuless_data.places.items()}
    assert texts(tuning_tables.order_table(gpuless_data.measurements, older))[0][1] == "unknown"


def test_where_there_are_times_no_predicted_order_stands_alone(gpu_data, gpuless_data):
    assert tuning_tables.order_table(gpu_data.measurements, gpu_data.places) is None
    assert tuning_tables.order_table(gpuless_data.measurements, {}) is None


def test_a_class_is_told_by_the_knobs_that_make_it(gpu_data):
    first = gpu_data.measurements[0]
    configs = [CONFIGS[-1].replace(B_c=b, swizzled=s) for b in (32, 64) for s in (True, False)]
    found = [
        replace(
            first, key=replace(first.key, config=c.short_form()), outcome=Verified(f"{c.B_c:06}")
        )
        for c in configs
    ]
    table = tuning_tables.classes_table(found)
    assert texts(table) == [
        ["d 128, full, sm80_forward", "000032", "2", "B_c 32"],
        ["d 128, full, sm80_forward", "000064", "2", "B_c 64"],
    ]
    assert tuning_tables.classes_table(found[:2]) is None  # one class


def test_kernels_that_spill_are_listed_and_the_others_counted(gpu_data):
    facts = [0, 408, 8, 0, 56, 0, 0]
    spilling = [
        replace(m, environment={**m.environment, "spill_bytes": n})
        for m, n in zip(gpu_data.measurements, facts, strict=True)
    ]
    table = tuning_tables.spills_table(spilling)
    assert table.title == "3 of 7 kernels spill registers"
    assert [row[-1] for row in texts(table)] == ["408", "56", "8"]
    assert tuning_tables.spills_table(gpu_data.measurements) is None


def test_candidates_that_could_not_be_measured_are_listed_with_the_reason(gpu_data):
    table = tuning_tables.failures_table(gpu_data.measurements)
    assert texts(table)[0][:3] == [DidNotCompile.__name__, "no room", "512, d 128, full"]
    timed = [m for m in gpu_data.measurements if isinstance(m.outcome, Timed)]
    assert tuning_tables.failures_table(timed) is None
