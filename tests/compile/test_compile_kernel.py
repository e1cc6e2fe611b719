"""A configuration becomes a kernel: named after it, made of its needs, refused with a sentence."""

import pytest

from flashsmith.base.errors import CompileError, Unsupported
from flashsmith.compile.compiler import CompileJob, compile_kernel, compile_many
from flashsmith.compile.unit import unit_source
from flashsmith.kernels import get_kernel_configs, parse_config
from flashsmith.problem.needs import NEEDS, OF_LAUNCHES, Needs

PLAIN = Needs()
# What a need says something of.
BESIDE = {"bias_keys_apart": "bias_same", "bias_keys_chunks": "bias_same"}


def test_the_entry_spells_configuration_and_needs(cache, small):
    kernel = compile_kernel(small, Needs(("causal",)), "sm_80", cache=cache)
    assert kernel.name.endswith("__causal")
    assert f".entry {kernel.name}(" in kernel.ptx
    assert parse_config(kernel.name) == small


def test_the_unit_states_its_short_form_and_every_field_by_name(small):
    text = unit_source(small, PLAIN)
    assert text.startswith(f"// {small.short_form()} | plain\n")
    assert all(f".{name} = " in text for name in small.knobs())


@pytest.mark.parametrize("need", NEEDS)
def test_every_need_changes_the_machine_code(cache, small, need):
    if need in small.REFUSED_FACTS:
        pytest.skip("these kernels do not compute it")
    on_wgmma = need in OF_LAUNCHES or need == "bias_keys_chunks"  # others read pairs all the same
    config, arch = (splitting(), "sm_90a") if on_wgmma else (small, "sm_80")
    beside = (BESIDE[need],) if need in BESIDE else ()
    plain = compile_kernel(config, Needs(beside), arch, cache=cache)
    other = compile_kernel(config, Needs((need, *beside)), arch, cache=cache)
    assert plain.code != other.code


def splitting():
    """The first configuration whose plans cut tiles."""
    return next(config for config in get_kernel_configs("hopper") if config.split_last)


@pytest.mark.parametrize(
    ("written", "instead", "says"),
    [
        (".swizzled = true, ", "", "required"),
        (".swizzled", ".no_such_field = 1, .swizzled", "no_such_field"),
        (".d_head = 64, .B_r = 64", ".B_r = 64, .d_head = 64", "order"),
    ],
    ids=["forgotten", "unknown", "misordered"],
)
def test_a_field_that_the_languages_do_not_share_does_not_compile(
    cache, small, monkeypatch, written, instead, says
):
    text = small.to_cpp_struct()
    assert written in text
    monkeypatch.setattr(type(small), "to_cpp_struct", lambda self: text.replace(written, instead))
    with pytest.raises(CompileError) as caught:
        compile_kernel(small, PLAIN, "sm_80", cache=cache)
    assert says in caught.value.log


def test_a_configuration_that_cannot_be_built_fails_with_the_assertions_sentence(cache, small):
    wrong = small.replace(B_r=64, n_warps=8)
    with pytest.raises(CompileError) as caught:
        compile_kernel(wrong, PLAIN, "sm_80", cache=cache)
    assert str(caught.value).startswith(f"{wrong.short_form()}: does not compile:")
    assert "static assertion failed with" in str(caught.value)
    assert (caught.value.source_path / "kernel.cu").is_file()


def test_an_architecture_without_the_family_is_refused(cache, small, monkeypatch):
    monkeypatch.setattr(type(small), "runs_on", classmethod(lambda cls, arch: arch == "sm_90a"))
    with pytest.raises(Unsupported, match="do not exist on sm_80"):
        compile_kernel(small, PLAIN, "sm_80", cache=cache)


def test_many_kernels_come_back_in_order_an_error_in_the_place_of_its_kernel(cache, small):
    wrong = small.replace(B_r=64, n_warps=8)
    jobs = [CompileJob(config, PLAIN, "sm_80") for config in (small, wrong, small)]
    seen = []
    made = compile_many(
        jobs, workers=2, progress=lambda done, total: seen.append((done, total)), cache=cache
    )
    assert made[0] == made[2]
    assert made[0].name == small.kernel_name(PLAIN)
    assert isinstance(made[1], CompileError)
    assert seen == [(1, 3), (2, 3), (3, 3)]
