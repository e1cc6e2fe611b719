"""Plants faults in the headers of every kernel family and lets the quick cases look for them.

    python benchmarks/plant_faults.py [--only TEXT] [--no-record]

Of each kind that plain cases miss: several sequences, rows that see no key, one key in the last
block, large scores. The record (a JSON line a fault: which of `quick_cases` found it, and how) is
benchmarks/results/emulator/planted_faults.jsonl; a list of another day is appended to it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "emulator" / "planted_faults.jsonl"

FAMILIES = {
    "sm80_forward": "(FP16, 64, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
    "sm90_forward": "hopper(FP16, 64, 1, 64): kv_2+q_1+overlap+stats_SUM+lazy_8+tiles_DYNAMIC"
    "+o_smem+regs_240_56",
    "sm80_backward": "bwd(BF16, 64): dkv_64_32_4+dq_64_32_4",
    "sm90_backward": "hopper_bwd(BF16, 64): ds_2+turns+fold+early_dv+late_fences+sections",
    "sm80_decode": "decode(FP16, 64, 16, 16, 2): slice_128+most_32+stages_3+ctas_2",
    "sm90_decode": "hopper_decode(FP16, 64, 16, 16, 2): slice_128+most_32+stages_3+ctas_2",
}


class Fault(NamedTuple):
    """What goes wrong: the text that is right, once in a header, and the text with the fault."""

    family: str
    kind: str
    name: str
    header: str
    right: str
    wrong: str


SEVERAL, UNSEEN, ONE_KEY, LARGE = "sequences", "rows without keys", "one key", "large scores"
FAULTS = [
    Fault(
        *("sm80_forward", SEVERAL, "keys come from the first sequence", "sm80/forward.cuh"),
        "k_stream_(args.k, tile.batch, kv_head()",
        "k_stream_(args.k, 0, kv_head()",
    ),
    Fault(
        *("sm80_forward", UNSEEN, "a row is divided by its sum of 0", "sm80/store_output.cuh"),
        "sum == 0.0f ? 0.0f : reciprocal",
        "reciprocal",
    ),
    Fault(
        *("sm80_forward", ONE_KEY, "the last block is left out", "attention/mask.cuh"),
        "Span span{0, (seen_by_last + kBlock - 1) / kBlock,",
        "Span span{0, (seen_by_last + kBlock - 2) / kBlock,",
    ),
    Fault(
        *("sm80_forward", LARGE, "a row that outgrew its reference keeps O", "sm80/softmax.cuh"),
        "o.at[i][n][2 * half] = ptx::mul_rn(o.at[i][n][2 * half], factor);",
        "",
    ),
    Fault(
        *("sm90_forward", SEVERAL, "queries come from the first sequence", "sm90/producer.cuh"),
        "at.row + w * kWarpgroupRows, at.head, at.batch}, full)",
        "at.row + w * kWarpgroupRows, at.head, 0}, full)",
    ),
    Fault(
        *("sm90_forward", SEVERAL, "keys come from the first sequence", "sm90/producer.cuh"),
        f"block * kConfig.B_c + share,\n{' ' * 43}at.head, at.batch}};",
        f"block * kConfig.B_c + share,\n{' ' * 43}at.head, 0}};",
    ),
    Fault(
        *("sm90_forward", SEVERAL, "O goes to the first sequence", "sm90/output.cuh"),
        "{panel * kPanelColumns, row, tile.head, tile.batch}",
        "{panel * kPanelColumns, row, tile.head, 0}",
    ),
    Fault(
        *("sm90_forward", SEVERAL, "the LSE goes to the first sequence", "sm90/consumer.cuh"),
        "static_cast<i64>(tile.batch) * args.heads + tile.head",
        "static_cast<i64>(tile.head)",
    ),
    Fault(
        *("sm90_forward", UNSEEN, "a row is divided by its sum of 0", "sm90/consumer.cuh"),
        "inverse[i] = divides ? ptx::rcp(sums[i]) : 0.f;",
        "inverse[i] = ptx::rcp(sums[i]);",
    ),
    Fault(
        *("sm90_forward", UNSEEN, "a row without keys sees the first", "attention/mask.cuh"),
        "return kCausal ? min(sequence.k_len, row_end + sequence.diagonal) : sequence.k_len;",
        "return kCausal ? min(sequence.k_len, max(row_end + sequence.diagonal, 1))\n"
        "                       : sequence.k_len;",
    ),
    Fault(
        *("sm90_forward", ONE_KEY, "the last block is left out", "attention/mask.cuh"),
        "(max(seen_before(sequence, row_end), 1) + kBlock - 1) / kBlock",
        "(max(seen_before(sequence, row_end), 2) + kBlock - 2) / kBlock",
    ),
    Fault(
        *("sm90_forward", LARGE, "a row that outgrew its maximum keeps its sum"),
        *("sm90/lazy_softmax.cuh", "l[i] *= correction[i];", ""),
    ),
    Fault(
        *("sm90_forward", LARGE, "a row that outgrew its maximum keeps O", "sm90/lazy_softmax.cuh"),
        "o[i + 2] *= correction[1];",
        "",
    ),
    Fault(
        *("sm90_forward", LARGE, "weights may outgrow their element type", "sm90/lazy_softmax.cuh"),
        "return sum <= kMostSum && (!first || sum >= kLeastSum);",
        "return sum <= 1e30f && (!first || sum >= kLeastSum);",
    ),
    Fault(
        *("sm80_backward", SEVERAL, "gradients go to the first sequence", "sm80/backward_tile.cuh"),
        "at.batch * tensor.batch_stride + at.head",
        "0 * at.batch * tensor.batch_stride + at.head",
    ),
    Fault(
        *("sm80_backward", SEVERAL, "O and dO come from the first sequence"),
        *("sm80/backward_delta.cuh", "const i64 element = batch * tensor.batch_stride +"),
        "const i64 element = 0 * batch * tensor.batch_stride +",
    ),
    Fault(
        *("sm80_backward", SEVERAL, "statistics of keys are of the first sequence"),
        *("sm80/backward_keys.cuh", "static_cast<i64>(batch_) * args_.heads + cursor.head"),
        "static_cast<i64>(cursor.head)",
    ),
    Fault(
        *("sm80_backward", SEVERAL, "statistics of queries are of the first sequence"),
        *("sm80/backward_queries.cuh", "static_cast<i64>(batch_) * args.heads + head_"),
        "static_cast<i64>(head_)",
    ),
    Fault(
        *("sm80_backward", UNSEEN, "a row without keys has a weight", "sm80/backward_delta.cuh"),
        "if (lse != kNegativeInfinity) shift = ptx::mul_rn(lse, -kLog2E);",
        "shift = ptx::mul_rn(lse, -kLog2E);",
    ),
    Fault(
        *("sm80_backward", ONE_KEY, "the last block is left out", "sm80/backward_keys.cuh"),
        "const i32 last_key = min(first_key_ + Kernel::kBc, sequence().k_len) - 1;",
        "if (first_key_ + 1 == sequence().k_len) return;\n"
        "        const i32 last_key = min(first_key_ + Kernel::kBc, sequence().k_len) - 1;",
    ),
    Fault(
        *("sm80_backward", LARGE, "the row's delta is left out", "sm80/backward_products.cuh"),
        "ptx::mul_rn(p, ptx::sub_rn(dp, row.delta))",
        "ptx::mul_rn(p, dp)",
    ),
    Fault(
        *("sm90_backward", SEVERAL, "keys come from the first sequence"),
        *("sm90/backward/producer.cuh", f"args, block.kv_head),\n{' ' * 20}block.batch);"),
        f"args, block.kv_head),\n{' ' * 20}0);",
    ),
    Fault(
        *("sm90_backward", SEVERAL, "queries come from the first sequence"),
        "sm90/backward/producer.cuh",
        f"walk.batch_head - batch * args.heads,\n{' ' * 20}batch);",
        f"walk.batch_head - batch * args.heads,\n{' ' * 20}0);",
    ),
    Fault(
        *("sm90_backward", SEVERAL, "O and dO come from the first sequence"),
        *("sm90/backward/launches/rows.cuh", "batch * tensor.batch_stride + (batch_head -"),
        "0 * batch * tensor.batch_stride + (batch_head -",
    ),
    Fault(
        *("sm90_backward", SEVERAL, "dK and dV go to the first sequence"),
        "sm90/backward/consumer.cuh",
        f"0,\n{' ' * 23}kv_head_of<Kernel>(args, block.kv_head), block.batch}};",
        f"0,\n{' ' * 23}kv_head_of<Kernel>(args, block.kv_head), 0}};",
    ),
    Fault(
        *("sm90_backward", UNSEEN, "a row without keys has a weight"),
        "sm90/backward/launches/rows.cuh",
        "const bool sees_none = lse == kNegativeInfinity;",
        "const bool sees_none = false;",
    ),
    Fault(
        *("sm90_backward", ONE_KEY, "the last block is left out", "sm90/backward/tile.cuh"),
        "const u32 block = Kernel::kConfig.in_any_order() ? turn : args.kv_blocks - 1 - turn;",
        "u32 block = Kernel::kConfig.in_any_order() ? turn : args.kv_blocks - 1 - turn;\n"
        "    if (block * Kernel::kConfig.keys() + 1 == static_cast<u32>(args.k_len)) --block;",
    ),
    Fault(
        *("sm90_backward", LARGE, "the LSE is rounded to one part"),
        "sm90/backward/launches/rows.cuh",
        "return {{part[0] | part[1] << 16, part[2], 0, 0}};",
        "return {{part[0], 0, 0, 0}};",
    ),
    Fault(
        *("sm80_decode", SEVERAL, "queries and O are of the first sequence", "decode/kernel.cuh"),
        "return work.batch * tensor.batch_stride + at.head",
        "return 0 * work.batch * tensor.batch_stride + at.head",
    ),
    Fault(
        *("sm80_decode", SEVERAL, "keys come from the first sequence", "sm80/decode/copies.cuh"),
        "kNeeds.page ? 0 : work.batch * tensor.batch_stride",
        "0",
    ),
    Fault(
        *("sm80_decode", SEVERAL, "parts of slices lie in those of the first sequence"),
        "decode/output.cuh",
        "(static_cast<i64>(work_.batch) * args_.kv_heads + work_.kv_head) * args_.q_tiles +",
        "static_cast<i64>(work_.kv_head) * args_.q_tiles +",
    ),
    Fault(
        *("sm80_decode", UNSEEN, "a row without keys has no finite maximum", "decode/team.cuh"),
        "return m == kNegativeInfinity ? 0.0f : m;",
        "return m;",
    ),
    Fault(
        *("sm80_decode", UNSEEN, "a row is divided by its sum of 0", "decode/output.cuh"),
        "sum == 0.0f ? 0.0f : ptx::rcp(sum)",
        "ptx::rcp(sum)",
    ),
    Fault(
        *("sm80_decode", ONE_KEY, "the last block is left out", "decode/team.cuh"),
        "(min(slices * work.slice_keys, end_key - first_key_) + kBc - 1) / kBc",
        "(min(slices * work.slice_keys, end_key - first_key_) + kBc - 2) / kBc",
    ),
    Fault(
        *("sm80_decode", LARGE, "a maximum that grew leaves the sum", "decode/team.cuh"),
        "sum[half] = ptx::mul_rn(sum[half], shrink);",
        "",
    ),
    Fault(
        *("sm80_decode", LARGE, "parts are added up under other maxima", "decode/output.cuh"),
        "const float theirs = ptx::ex2(ptx::sub_rn(other_maximum, finite_maximum(top)));",
        "const float theirs = 1.0f;",
    ),
    Fault(
        *("sm90_decode", SEVERAL, "keys come from the first sequence", "sm90/decode/copies.cuh"),
        "from{column_, first_key + row_, kv_head_, batch_};",
        "from{column_, first_key + row_, kv_head_, 0};",
    ),
    Fault(
        *("sm90_decode", SEVERAL, "the LSE goes to the first sequence", "decode/output.cuh"),
        "static_cast<i64>(batch_of_rows<Kernel>(work_)) * args_.heads + at.head",
        "static_cast<i64>(at.head)",
    ),
    Fault(
        *("sm90_decode", SEVERAL, "parts of slices lie in those of the first sequence"),
        "decode/output.cuh",
        "(static_cast<i64>(work_.batch) * args_.kv_heads + work_.kv_head) * args_.q_tiles +",
        "static_cast<i64>(work_.kv_head) * args_.q_tiles +",
    ),
    Fault(
        *("sm90_decode", UNSEEN, "a row is divided by its sum of 0", "decode/output.cuh"),
        "sum == 0.0f ? 0.0f : ptx::rcp(sum)",
        "ptx::rcp(sum)",
    ),
    Fault(
        *("sm90_decode", ONE_KEY, "the last block is left out", "decode/team.cuh"),
        "(min(slices * work.slice_keys, end_key - first_key_) + kBc - 1) / kBc",
        "(min(slices * work.slice_keys, end_key - first_key_) + kBc - 2) / kBc",
    ),
    Fault(
        *("sm90_decode", LARGE, "a maximum that grew leaves O", "decode/team.cuh"),
        "output.at[0][n][2 * half] = ptx::mul_rn(output.at[0][n][2 * half], shrink);",
        "",
    ),
]


def found_by(fault: Fault, folder: Path) -> dict[str, object]:
    """Which quick case found a fault, and how; the small one is looked at first."""
    from flashsmith.check.cases import quick_cases
    from flashsmith.check.survey import check_one
    from flashsmith.compile import compiler
    from flashsmith.compile.header_closure import INCLUDE_ROOT, closure_hash
    from flashsmith.kernels import parse_config
    from flashsmith.runtime.emulated import EmulatedDevice

    root = folder / "include"
    shutil.copytree(INCLUDE_ROOT, root)
    path = root / "flashsmith" / fault.header
    text = path.read_text(encoding="utf-8")
    assert text.count(fault.right) == 1, f"{fault.header} has no {fault.right!r} any more"
    path.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")
    before = compiler.INCLUDE_ROOT, compiler.closure_hash
    compiler.INCLUDE_ROOT, compiler.closure_hash = root, lambda unit: closure_hash(unit, root)
    try:
        config = parse_config(FAMILIES[fault.family])
        for case in reversed(quick_cases(config)):
            checked = check_one(EmulatedDevice(), config, case)
            assert checked.verdict is not None, checked.refusal
            if not checked.verdict.ok:
                reason = " ".join(checked.verdict.reason.split())
                how = reason or f"{checked.verdict.worst:.3g} times what is allowed"
                return {"found_by": case.name, "how": how[:160]}
    finally:
        compiler.INCLUDE_ROOT, compiler.closure_hash = before
    return {"found_by": "", "how": "not found"}


def main() -> int:
    """Plants all, one after the other; 1 where the quick cases missed one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="faults whose family, kind or name has this")
    parser.add_argument("--no-record", action="store_true", help="write nothing down")
    given = parser.parse_args()
    chosen = [fault for fault in FAULTS if given.only in " ".join(fault[:3])]
    lines, missed = [], 0
    for fault in chosen:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="flashsmith-planted-") as folder:
            os.environ["FLASHSMITH_CACHE_DIR"] = str(Path(folder) / "cache")
            found = found_by(fault, Path(folder))
        missed += not found["found_by"]
        line = {"family": fault.family, "kind": fault.kind, "fault": fault.name, **found}
        lines.append({**line, "date": datetime.date.today().isoformat()})
        print(json.dumps(line), f"{time.monotonic() - began:.0f} s", flush=True)
    if not given.no_record:
        with RECORD.open("a", encoding="utf-8") as record:
            record.writelines(json.dumps(line) + "\n" for line in lines)
    print(f"{len(chosen)} planted, {missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
