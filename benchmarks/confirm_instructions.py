"""Runs each instruction class on the emulator and on CUDA, with equal inputs, and compares bits.

    python benchmarks/confirm_instructions.py [--emulator-only] [--only TEXT] [--out FILE]

Writes one JSON line a class. Without a GPU it only says whether the emulator runs every class.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import struct
import sys
from pathlib import Path

import numpy as np
from instruction_cases import all_cases
from instruction_cases.case import Case

from flashsmith.base.errors import FlashsmithError
from flashsmith.compile.artefact import CompiledKernel
from flashsmith.compile.compiler import compile_text
from flashsmith.kernels.arguments import TensorMapSpec
from flashsmith.kernels.launch import LaunchGeometry
from flashsmith.runtime.cuda.device import CudaDevice
from flashsmith.runtime.device import Device
from flashsmith.runtime.emulated import EmulatedDevice

ARCH = "sm_90a"


def run_case(device: Device, kernel: CompiledKernel, case: Case) -> np.ndarray:
    """The output bytes of a case on one device."""
    buffers = []
    for array in case.inputs:
        address = device.allocate(array.nbytes)
        device.upload(address, array)
        buffers.append(address)
    out = device.allocate(case.out_bytes)
    device.upload(out, np.zeros(case.out_bytes, np.uint8))
    given = (*buffers,) * case.passes_inputs + (out,) * case.passes_out
    pointers = [struct.pack("<Q", address) for address in given]
    maps = []
    for m in case.maps:
        address = (*buffers, out)[m.buffer]
        spec = TensorMapSpec(
            address, m.element_bytes, m.dims, m.strides_bytes, m.box, m.swizzle_bytes, m.is_bf16
        )
        maps.append(device.tensor_map(spec))
    params = [*maps, *pointers] if case.maps_first else [*pointers, *maps]
    params += case.scalars
    geometry = LaunchGeometry((case.grid, 1, 1), case.threads, case.smem_bytes, case.cluster)
    device.launch(kernel, geometry, tuple(params))
    device.synchronize()
    found = device.download(out, case.out_bytes)
    for address in (*buffers, out):
        device.free(address)
    return np.asarray(found)


def confirm(case: Case, emulator: Device, cuda: Device | None) -> dict[str, object]:
    """One record: what ran, how far apart the devices were, whether that is allowed."""
    record: dict[str, object] = {"class": case.name, "instructions": case.instructions}
    try:
        kernel = compile_text(case.source, case.entry, ARCH)
        record["compiler"] = kernel.compiler
        ours = run_case(emulator, kernel, case)
        if cuda is None:
            return record | {"verdict": "emulated"}
        theirs = run_case(cuda, kernel, case)
        distance = case.compare(ours, theirs)
    except FlashsmithError as error:
        return record | {"verdict": "failed", "reason": f"{type(error).__name__}: {error}"}
    agrees = distance.value <= case.allowed
    record |= {"distance": distance.value, "unit": case.unit, "allowed": case.allowed}
    record |= {"verdict": "confirmed" if agrees else "different"}
    if np.array_equal(ours, theirs):  # what the emulator must go on computing
        record["sha256"] = hashlib.sha256(theirs.tobytes()).hexdigest()
    return record if agrees else record | {"where": distance.where}


def table(records: Path) -> str:
    """The records as a table of docs/notebook/emulator.md."""
    instructions = {case.name: case.instructions for case in all_cases()}
    lines = ["| class | instructions | distance |", "|---|---|---|"]
    for record in map(json.loads, records.read_text().splitlines()):
        distance = "equal bits" if "sha256" in record else _distance(record)
        lines.append(f"| {record['class']} | `{instructions[record['class']]}` | {distance} |")
    return "\n".join(lines)


def _distance(record: dict[str, object]) -> str:
    if not record["distance"]:
        return "equal, any NaN being a NaN"
    return f"{record['distance']:.2g} {record['unit']}, {record['allowed']:.2g} allowed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--emulator-only", action="store_true")
    parser.add_argument("--only", default="", help="classes whose name holds this text")
    parser.add_argument("--part", default="1/1", help="2/8: the second eighth of the classes")
    parser.add_argument("--out", type=Path, help="JSON lines are appended here")
    parser.add_argument("--table", type=Path, help="only print the table of these records")
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return 0
    emulator = EmulatedDevice()
    cuda = None if options.emulator_only else CudaDevice()
    where = {"gpu": cuda.name if cuda else "none", "date": datetime.date.today().isoformat()}
    counts: dict[str, int] = {}
    lines = []
    part, parts = (int(text) for text in options.part.split("/"))
    for case in [c for c in all_cases() if options.only in c.name][part - 1 :: parts]:
        record = confirm(case, emulator, cuda) | where
        lines.append(json.dumps(record))
        verdict = str(record["verdict"])
        counts[verdict] = counts.get(verdict, 0) + 1
        detail = record.get("reason") or record.get("where") or record.get("distance", "")
        if verdict in ("failed", "different") or "distance" in record:
            print(f"{verdict:10} {case.name}: {detail}")
    if options.out and lines:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as file:
            file.write("\n".join(lines) + "\n")
    print(", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())))
    return 1 if counts.keys() & {"failed", "different"} else 0


if __name__ == "__main__":
    sys.exit(main())
