"""`flashsmith build`: a set as a C library, or as a bundle that needs no compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashsmith.api.ahead.model_shapes import LENGTHS
from flashsmith.api.ahead.warmup import warmup as warm_up
from flashsmith.base.errors import ArgumentError
from flashsmith.cli import options
from flashsmith.cli.output import note, show
from flashsmith.cli.progress import progress_bar
from flashsmith.cli.verbs.compile import ArchesOption, WorkersOption, parse_arches
from flashsmith.compile.ahead_of_time.build import build_bundle
from flashsmith.compile.ahead_of_time.library import build_library
from flashsmith.compile.artefact import Built
from flashsmith.compile.survey import why_not
from flashsmith.tuner.choose.shipped_kernels import write_shipped_kernels

DEFAULT_KEY = "all"  # the set without KEY and KERNELS
LibraryOption = Annotated[
    Path | None,
    typer.Option("--library", metavar="DIR", help="Make libflashsmith.so and flashsmith.h here."),
]
BundleOption = Annotated[
    Path | None, typer.Option("--bundle", metavar="FILE", help="Make a bundle of cubins.")
]
ShippedOption = Annotated[
    bool,
    typer.Option("--shipped", help="Make what the shipped measurements choose, in the package."),
]


LibraryFolderOption = Annotated[
    Path, typer.Option("-o", "--output", metavar="DIR", help="Where the library goes.")
]
BundleFileOption = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="The bundle's file.")
]


ModelOption = Annotated[
    Path | None,
    typer.Option("--model", metavar="PATH", help="A model's config.json, or its folder."),
]
LogOption = Annotated[
    Path | None,
    typer.Option("--log", metavar="FILE", help="A file that FLASHSMITH_SHAPES named in a run."),
]
WarmHeadsOption = Annotated[
    int | None, typer.Option("--heads", min=1, help="Instead of a model: its query heads.")
]
WarmWidthOption = Annotated[
    int | None, typer.Option("--d-head", min=1, help="Instead of a model: its head dimension.")
]
WarmLengthsOption = Annotated[
    str | None,
    typer.Option(
        "--seq-lens", "--seq-len", help=f"Lengths; without it {','.join(map(str, LENGTHS))}."
    ),
]
WarmBatchOption = Annotated[
    int | None, typer.Option("--batch", min=1, help="Sequences; without it 1.")
]
WarmTypeOption = Annotated[
    str | None, typer.Option("--dtype", help="bf16 or fp16; without it the model's, else bf16.")
]
TrainingOption = Annotated[bool, typer.Option("--training", help="Gradients, too.")]
WarmArchOption = Annotated[
    str | None, typer.Option("--arch", help="Compile for this architecture, not for this machine.")
]
GpuOption = Annotated[
    str | None, typer.Option("--gpu", metavar="NAME", help='The same by name, "NVIDIA H200".')
]


def command(
    key: options.KeyArgument = None,
    arch: ArchesOption = "sm_90a",
    library: LibraryOption = None,
    bundle: BundleOption = None,
    shipped: ShippedOption = False,
    workers: WorkersOption = None,
    json: options.JsonOption = False,
    csv: options.CsvOption = False,
) -> None:
    """Build a set ahead of time; prints what was made, its size and its time.

    A bundle is loaded where FLASHSMITH_BUNDLE names it; a library is used through flashsmith.h.
    Example: flashsmith build all --arch sm_80,sm_90a --bundle kernels.bundle
    """
    if shipped:
        options.refuse_together({"KEY": key, "--shipped": shipped})
        options.refuse_together({"--shipped": shipped, "--library": library, "--bundle": bundle})
        rows = [
            {"made": str(path), "kernels": n, "megabytes": round(path.stat().st_size / 1e6, 2)}
            for path, n in write_shipped_kernels().items()
        ]
        show(rows, json=json, csv=csv)
        return
    if library is None and bundle is None:
        raise ArgumentError(
            "none of --library, --bundle and --shipped is given; build makes a C library in a "
            "folder, a bundle in a file, or both; name at least one."
        )
    configs = options.configs_of(key, DEFAULT_KEY)
    chosen = parse_arches(arch)
    for target in chosen:
        for config in configs:
            reason = why_not(config, target)
            if reason:
                note(f"left out for {target.name}: {config.short_form()}: {reason}")
    made = []
    with progress_bar("building") as progress:
        if bundle is not None:
            made.append(build_bundle(configs, chosen, bundle, workers=workers, progress=progress))
        if library is not None:
            made.append(build_library(configs, chosen, library, workers=workers, progress=progress))
    for reason in (reason for built in made for reason in built.left_out):
        note(f"left out: {reason}")
    show([_row(built) for built in made], json=json, csv=csv)


def library(
    output: LibraryFolderOption,
    key: options.KeyArgument = None,
    arch: ArchesOption = "sm_90a",
    workers: WorkersOption = None,
    json: options.JsonOption = False,
    csv: options.CsvOption = False,
) -> None:
    """Build a set as a C library: libflashsmith.so, and flashsmith.h to use it through.

    Example: flashsmith build library all --arch sm_80,sm_90a -o build/library
    """
    command(key, arch, library=output, workers=workers, json=json, csv=csv)


def bundle(
    output: BundleFileOption,
    key: options.KeyArgument = None,
    arch: ArchesOption = "sm_90a",
    workers: WorkersOption = None,
    json: options.JsonOption = False,
    csv: options.CsvOption = False,
) -> None:
    """Build a set as one file of compiled kernels, loaded where FLASHSMITH_BUNDLE names it.

    Example: flashsmith build bundle all --arch sm_80,sm_90a -o kernels.bundle
    """
    command(key, arch, bundle=output, workers=workers, json=json, csv=csv)


def warmup(
    model: ModelOption = None,
    log: LogOption = None,
    heads: WarmHeadsOption = None,
    kv_heads: options.KvHeadsOption = None,
    d_head: WarmWidthOption = None,
    seq_lens: WarmLengthsOption = None,
    batch: WarmBatchOption = None,
    dtype: WarmTypeOption = None,
    training: TrainingOption = False,
    arch: WarmArchOption = None,
    gpu: GpuOption = None,
    workers: WorkersOption = None,
    json: options.JsonOption = False,
    csv: options.CsvOption = False,
) -> None:
    """Compile ahead what calls will need, so that none of them waits for the compiler.

    Example: flashsmith build warmup --model path/to/config.json --gpu "NVIDIA H200"
    """
    for given in ({"--heads": heads}, {"--kv-heads": kv_heads}, {"--d-head": d_head}):
        options.refuse_together({"--model": model, **given})
    if (heads is None) != (d_head is None):
        raise ArgumentError("--heads and --d-head are given together, or a --model instead.")
    lengths = options.numbers_of("--seq-lens", seq_lens) if seq_lens else LENGTHS
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": d_head}
    with progress_bar("compiling") as progress:
        warmed = warm_up(
            model=model or (shape if heads else None),
            log=log,
            lengths=lengths,
            batch=batch or 1,
            dtype=dtype,
            training=training,
            arch=arch,
            gpu=gpu,
            workers=workers,
            progress=progress,
        )
    for reason in warmed.left_out:
        note(f"left out: {reason}")
    row: dict[str, object] = {
        "problems": warmed.problems,
        "kernels": warmed.kernels,
        "compiled": warmed.compiled,
        "compile_s": round(warmed.compile_s, 1),
        "seconds": round(warmed.seconds, 1),
    }
    show([row], json=json, csv=csv)


def _row(built: Built) -> dict[str, object]:
    return {
        "made": str(built.path),
        "configs": built.n_configs,
        "kernels": built.n_kernels,
        "megabytes": round(built.n_bytes / 1e6, 2),
        "seconds": round(built.seconds, 1),
        "compiler": built.compiler,
    }
