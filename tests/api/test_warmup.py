"""Kernels made ahead, and what serves where one is not there yet."""

import json
import threading
from dataclasses import replace

import pytest
from standin_gpus import plug_in

import flashsmith
from flashsmith.api import launches
from flashsmith.api.ahead import substitutes, warmup
from flashsmith.api.ahead.model_shapes import model_problems
from flashsmith.api.array_view import ArrayView, compact
from flashsmith.api.options import checked_options
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError, ArgumentTypeError, DamagedFile, Unsupported
from flashsmith.compile import compiler
from flashsmith.kernels.plans import kernels_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.devices import default_device
from flashsmith.tuner.choose import shipped_kernels
from flashsmith.tuner.choose.choice import choose

SMALL = AttentionProblem(1, 4, 2, 256, 256, 64, DType.BF16)
MMA = "(BF16, 64, 64, 32, 4): async+swizzled+load_2_2_2_tiles"
LLAMA = {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def gpu(monkeypatch, empty_cache):
    """A GPU that computes nothing, and no kernels on disk."""
    monkeypatch.setattr(launches, "KEPT_LAUNCHES", {})
    monkeypatch.setattr(substitutes, "_failed", set())
    monkeypatch.setattr(substitutes, "_pool", None)
    return plug_in(monkeypatch, "NVIDIA H200")


def launch(problem, config=MMA):
    options = checked_options(config=config)
    return launches.launch_for(default_device("cuda"), problem, options, views_of(problem))


def views_of(problem):
    """q, k and v as a call would bring them."""
    shape = problem.batch, problem.q_len, problem.heads, problem.d_head
    keys = problem.batch, problem.k_len, problem.kv_heads, problem.d_head
    return [
        ArrayView(name, extents, compact(extents), "bfloat16", 4096, "cuda:0")
        for name, extents in (("q", shape), ("k", keys), ("v", keys))
    ]


def test_shapes_are_compiled_once_and_side_by_side(empty_cache):
    ragged = replace(SMALL, q_len=250, k_len=250)
    told = []
    first = flashsmith.warmup(
        [SMALL, SMALL, ragged], arch="sm_80", progress=lambda *done: told.append(done)
    )
    assert (first.problems, first.kernels, first.compiled) == (2, 2, 2)
    assert told == [(1, 2), (2, 2)]
    assert first.compile_s > 0
    again = flashsmith.warmup([SMALL, ragged], arch="sm_80")
    assert (again.kernels, again.compiled, again.compile_s) == (2, 0, 0)


def test_after_a_warmup_calls_of_these_shapes_compile_nothing(empty_cache, monkeypatch):
    flashsmith.warmup([SMALL], arch="sm_80")
    monkeypatch.setattr(compiler, "_build", None)
    config = choose(SMALL, "sm_80").config
    for kernel, needs in kernels_of(config, SMALL):
        assert compiler.compile_kernel(kernel, needs, "sm_80")


def test_what_is_warmed_up_for_this_machine_is_loaded(gpu):
    flashsmith.warmup([SMALL])
    loaded = list(gpu.loaded)
    assert loaded
    launch(SMALL, config=None)
    assert gpu.loaded == loaded


def test_a_problem_that_nothing_computes_is_left_out_with_the_reason(empty_cache):
    wide = replace(SMALL, d_head=520)
    warmed = flashsmith.warmup([wide], arch="sm_80")
    assert warmed.kernels == 0
    assert "d_head" in warmed.left_out[0]


def test_a_choice_that_cannot_be_built_is_passed_over(empty_cache, monkeypatch):
    first = choose(SMALL, "sm_80").config
    real = compiler._accepted

    def refusing(config, kernel):
        if config == first:
            raise Unsupported(f"{config.short_form()}: it spills.")
        return real(config, kernel)

    monkeypatch.setattr(compiler, "_accepted", refusing)
    warmed = flashsmith.warmup([SMALL], arch="sm_80")
    assert warmed.compiled == 1
    second = choose(SMALL, "sm_80", unusable={first: "it spills"}).config
    assert compiler.kept_kernel(*kernels_of(second, SMALL)[0], "sm_80") is not None


def test_nothing_to_warm_up_and_what_is_no_problem_are_refused():
    with pytest.raises(ArgumentError, match="give problems, a model or a log of shapes"):
        flashsmith.warmup()
    with pytest.raises(ArgumentTypeError, match="it must hold AttentionProblem objects"):
        flashsmith.warmup([(1, 2, 3)])
    with pytest.raises(ArgumentError, match="which is not listed; give its arch as well"):
        flashsmith.warmup([SMALL], gpu="NVIDIA Unheard 1")


def test_a_models_configuration_gives_prefill_decoding_and_gradients(tmp_path):
    found = model_problems(LLAMA, (512, 1024, 4096))
    assert {(p.heads, p.kv_heads, p.d_head, p.dtype) for p in found} == {(32, 8, 128, DType.BF16)}
    lengths = {(p.q_len, p.k_len, p.causal) for p in found}
    assert lengths == {
        *((n, n, True) for n in (512, 511, 1024, 1023)),
        *((1, n, False) for n in (512, 511, 1024, 1023)),
    }
    assert {p.operation for p in found} == {"forward"}
    trained = model_problems(LLAMA, (512,), training=True)
    assert sum(p.operation == "backward" for p in trained) == sum(p.lse for p in trained) == 2
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"text_config": {**LLAMA, "torch_dtype": "float16"}}))
    assert {p.dtype for p in model_problems(tmp_path)} == {DType.FP16}
    assert model_problems(path) == model_problems(tmp_path)


def kernels(problems, arch="sm_90a", gpu="NVIDIA H200"):
    """All that calls with these problems would have compiled."""
    found = {problem: choose(problem, arch, gpu=gpu).config for problem in problems}
    return {kernel for problem, config in found.items() for kernel in kernels_of(config, problem)}


@pytest.mark.parametrize(("arch", "gpu"), [("sm_90a", "NVIDIA H200"), ("sm_80", "")])
@pytest.mark.parametrize(("heads", "d_head"), [(12, 64), (32, 128)])
def test_no_length_between_those_that_are_warmed_up_waits(heads, d_head, arch, gpu):
    """Its kernel is there, or another that gives the same bits serves while it is compiled."""
    model = {"num_attention_heads": heads, "num_key_value_heads": 4, "head_dim": d_head}
    warmed = model_problems(model)
    prefill = next(p for p in warmed if p.q_len > 1)
    decoding = next(p for p in warmed if p.q_len == 1)
    lengths = [
        *range(2, 600, 23),
        *range(64, 4097, 448),
        *range(384, 4097, 384),
        *range(601, 4097, 350),
    ]
    calls = [replace(prefill, q_len=n, k_len=n, diagonal=0, layout="bhsd") for n in lengths]
    calls += [replace(decoding, k_len=n, layout="bhsd") for n in lengths]
    loaded = kernels(warmed, arch, gpu)
    waiting = [
        (config.short_form(), needs.names)
        for config, needs in kernels(calls, arch, gpu) - loaded
        if not any(config == other and more.gives_bits_of(needs) for other, more in loaded)
    ]
    assert waiting == []


def test_windows_caps_and_sinks_are_the_models():
    gemma = {**LLAMA, "sliding_window": 600, "attn_logit_softcapping": 50.0}
    found = model_problems(gemma, (512, 1024), training=True)
    assert {p.softcap for p in found} == {50.0}
    seen = {(p.q_len, p.window_left) for p in found if p.operation == "backward"}
    assert seen == {
        *((n, None) for n in (512, 511, 1024, 1023)),
        *((n, 599) for n in (1024, 1023)),
    }
    assert {p.window_left for p in found if p.q_len == 1} == {None}  # caches end at the window
    for unused in ({"use_sliding_window": False}, {"layer_types": ["full_attention"]}):
        assert {p.window_left for p in model_problems(gemma | unused)} == {None}
    assert {p.sinks for p in model_problems(LLAMA)} == {False}
    assert {p.sinks for p in model_problems({**LLAMA, "model_type": "gpt_oss"})} == {True}


def test_names_of_older_configurations_and_widths_of_latent_heads_are_read():
    older = {"n_head": 12, "n_embd": 768, "n_positions": 1024}
    found = model_problems(older)
    assert {(p.heads, p.d_head) for p in found} == {(12, 64)}
    assert max(p.k_len for p in found) == 1024
    latent = {**LLAMA, "head_dim": 64, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    assert {p.d_head for p in model_problems(latent)} == {192}


def test_a_transformers_configuration_is_read():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=2048, num_attention_heads=16, num_key_value_heads=4, dtype="bfloat16"
    )
    found = model_problems(config, (512,))
    assert {(p.heads, p.kv_heads, p.d_head) for p in found} == {(16, 4, 128)}


def test_a_model_that_cannot_be_read_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(ArgumentError, match="say which one it is loaded in with dtype"):
        model_problems({**LLAMA, "torch_dtype": "float32"})
    assert model_problems({**LLAMA, "torch_dtype": "float32"}, dtype="fp16")
    with pytest.raises(ArgumentError, match="num_attention_heads of the model is None"):
        model_problems({})
    with pytest.raises(ArgumentError, match="the model has 2,048 positions"):
        model_problems(LLAMA, (4096,))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ArgumentError, match="is not JSON"):
        model_problems(tmp_path)


def test_shapes_seen_in_one_run_are_warmed_up_in_another(gpu, monkeypatch, tmp_path):
    log = tmp_path / "shapes.jsonl"
    monkeypatch.setenv("FLASHSMITH_SHAPES", str(log))
    launch(SMALL, config=None)
    launch(SMALL, config=None)  # kept: not written again
    launch(replace(SMALL, causal=True))
    assert len(log.read_text().splitlines()) == 2
    found = list(warmup.read_shapes(log))
    assert [problem for problem, _ in found] == [SMALL, replace(SMALL, causal=True)]
    assert [config and config.short_form() for _, config in found] == [None, MMA]
    warmed = flashsmith.warmup(log=log)
    assert (warmed.problems, warmed.compiled) == (2, 0)


def test_a_log_that_is_none_is_refused_by_its_line(tmp_path):
    log = tmp_path / "shapes.jsonl"
    log.write_text('{"problem": {"batch": 1}}\n')
    with pytest.raises(DamagedFile, match=r"line 1 of .* does not belong to a log of shapes"):
        flashsmith.warmup(log=log)


def test_a_loaded_kernel_serves_until_the_problems_own_is_compiled(gpu, monkeypatch):
    ragged = replace(SMALL, q_len=250, k_len=250)
    (ours,) = launch(ragged).prepared.steps
    may_compile = threading.Event()
    compile_own = shipped_kernels.compile_kernel

    def slowly(*job):
        assert may_compile.wait(60)
        return compile_own(*job)

    monkeypatch.setattr(shipped_kernels, "compile_kernel", slowly)
    first = launch(SMALL)  # does not wait
    assert first.prepared.steps[0].kernel is ours.kernel
    assert "a loaded kernel that gives the same bits runs" in first.choice.reason
    assert launch(SMALL) is first
    may_compile.set()
    assert first.until.wait(60)
    substitutes._pool.shutdown()  # and what it holds is done
    own = launch(SMALL)
    assert own is not first
    assert own.until is None
    assert own.prepared.steps[0].kernel.name != ours.kernel.name


def test_a_substitute_made_while_its_time_ends_is_not_kept(gpu):
    over = threading.Event()
    over.set()
    kept = launches.kept_launch("key", lambda: launches.Launch(None, None, over))
    assert kept.until is over
    assert "key" not in launches.KEPT_LAUNCHES


def test_what_cannot_be_compiled_behind_is_said_by_the_next_call(gpu, monkeypatch):
    launch(replace(SMALL, q_len=250, k_len=250))

    def refusing(*job):
        raise Unsupported("it spills.")

    monkeypatch.setattr(shipped_kernels, "compile_kernel", refusing)
    served = launch(SMALL)
    assert served.until.wait(60)
    substitutes._pool.shutdown()  # and what it holds is done
    with pytest.raises(Unsupported, match="it spills"):
        launch(SMALL)


def test_a_kernel_with_another_fact_does_not_serve(gpu):
    launch(replace(SMALL, causal=True))
    assert launch(SMALL).until is None
    assert launch(replace(SMALL, lse=True)).until is None
