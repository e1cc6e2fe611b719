"""`bench --op backward`: shapes of gradients, our own forward before them, peers' own gradients."""

import json
from functools import partial

import pytest
from standin_gpus import plug_in
from typer.testing import CliRunner

from flashsmith.base.errors import ArgumentError
from flashsmith.bench import versus as module
from flashsmith.bench.peers import Peer, find_peers, torch_tensors
from flashsmith.bench.suite import Shape, of_operations, read_suite
from flashsmith.bench.versus import OURS, computing, versus
from flashsmith.cli.main import app
from flashsmith.kernels import resolve_key
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.devices import default_device

PROBLEM = AttentionProblem(1, 3, 1, 200, 200, 64, causal=True, operation="backward")


def run(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments])


def test_a_suite_of_gradients_has_the_shapes_of_the_forward_one():
    ran = run("--op", "backward", "--suite", "quick", "--list", "--json")
    rows = json.loads(ran.stdout)
    forward = json.loads(run("--suite", "quick", "--list", "--json").stdout)
    assert [row["shape"] for row in rows] == [f"{row['shape']} backward" for row in forward]
    assert all("operation=backward" in row["facts"] for row in rows)
    of_set = json.loads(run("hopper-bwd", "--suite", "quick", "--list", "--json").stdout)
    assert [r for r in rows if r["d_head"] in {s["d_head"] for s in of_set}] == of_set


def test_gradients_in_any_order_are_asked_for():
    rows = json.loads(
        run("--op", "backward", "--any-order", "--suite", "quick", "--list", "--json").stdout
    )
    assert rows
    assert all("deterministic=False" in row["facts"] for row in rows)
    forward = run("--any-order", "--suite", "quick", "--list")
    assert isinstance(forward.exception, ArgumentError)
    assert "add --op backward" in str(forward.exception)


def test_gradients_do_not_know_sinks_and_caches_have_none():
    models = of_operations(read_suite("models", PROBLEM.dtype), ["backward"])
    assert not any(shape.problem.sinks for shape in models.shapes)
    with pytest.raises(ArgumentError, match="which have no gradients; choose another --suite"):
        of_operations(read_suite("serve", PROBLEM.dtype), ["backward"])


def test_numbers_are_of_forward_passes():
    ran = run("--op", "backward", "--suite", "quick", "--numbers")
    assert isinstance(ran.exception, ArgumentError)
    assert "`flashsmith verify KEY` checks" in str(ran.exception)


def test_a_set_is_timed_on_its_own_operation():
    configs = resolve_key("bwd+smoke")
    assert {c.OPERATION for c in computing(configs, PROBLEM)} == {"backward"}


def test_the_forward_pass_is_run_first_and_peers_get_what_it_gives(monkeypatch):
    torch = pytest.importorskip("torch")
    seen = {}

    def compare(device, contenders, *, rounds, regime):
        seen["names"] = [contender.name for contender in contenders]
        contenders[0].launch(0)

    def gradients(problem, *tensors):
        seen["given"] = tensors
        return lambda: None

    kept = []
    monkeypatch.setattr(module, "compare", compare)
    monkeypatch.setattr(module, "torch_tensors", partial(torch_tensors, where="cpu"))
    monkeypatch.setattr(module, "_gemm", lambda *_: iter(()))
    monkeypatch.setattr(
        module,
        "contenders_of",
        lambda device, peers, problem, tensors: (
            kept.append(tensors)
            or ([p.call(problem, tensors) for p in peers if p.computes(problem)][:0], {})
        ),
    )
    gpus = plug_in(monkeypatch, "NVIDIA H200")
    peer = Peer("mine", lambda *_: None, gradients=gradients)
    versus(default_device("cuda"), Shape("tiny", PROBLEM), [peer], rounds=15, regime="burst")
    kernels = [started.kernel for started in gpus.started]
    assert "_forward_" in kernels[0]
    assert all("_backward_" in kernel for kernel in kernels[1:])
    assert seen["names"] == [OURS]
    (tensors,) = kept
    wanted = [tensors[name] for name in ("do", "q", "k", "v", "o", "lse")]
    assert all(a is b for a, b in zip(seen["given"], wanted, strict=True))
    assert tensors["lse"].dtype == torch.float32
    assert tensors["lse"].shape == (1, 3, 200)


def test_peers_without_gradients_are_left_out():
    known = {peer.name: peer for peer in find_peers([])}
    tensors = dict.fromkeys(("do", "q", "k", "v", "o", "lse"))
    assert known["flash-attn 2"].call(PROBLEM, tensors) is None
    assert known["cuDNN"].computes(PROBLEM)
    assert known["cuDNN"].gradients is not None
