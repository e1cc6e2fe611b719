"""`bench --peer FILE.py:NAME`: a contender from outside, and what its records say of it."""

import hashlib

import pytest

from flashsmith.base.errors import ArgumentError
from flashsmith.bench.peers import peer_of_file
from flashsmith.bench.suite import Shape
from flashsmith.bench.versus import OURS, Versus, records
from flashsmith.cli.verbs.bench import Wanted
from flashsmith.measure.environment import environment_of
from flashsmith.measure.interleaved import Comparison, Timed
from flashsmith.measure.statistics import summarize
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.tuner.choose.choice import Choice

SOURCE = """
__version__ = "3.1"

def cuDNN(problem, q, k, v):
    return lambda: (problem, q, k, v)

def paged(problem, q, k, v, block_table=None, k_lengths=None):
    return lambda: (k_lengths, block_table)

number = 5
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "theirs.py"
    path.write_text(SOURCE)
    return path


def test_the_function_of_the_file_makes_the_call_that_is_timed(path):
    peer = peer_of_file(f"{path}:cuDNN")
    assert peer.name == "cuDNN"
    assert peer.make("p", 1, 2, 3)() == ("p", 1, 2, 3)


def test_a_function_is_given_the_tables_that_it_has_parameters_for(path):
    plain, paged = (peer_of_file(f"{path}:{name}") for name in ("cuDNN", "paged"))
    cache = AttentionProblem(2, 4, 2, 1, 64, 64, k_lengths=True)
    pages = AttentionProblem(2, 4, 2, 1, 64, 64, k_lengths=True, page=16, pages=8)
    assert plain.computes(cache)
    assert not plain.computes(pages)
    assert paged.computes(pages)
    tensors = {"q": 1, "k": 2, "v": 3, "k_lengths": 4, "block_table": 5}
    assert paged.call(pages, tensors)() == (4, 5)
    assert plain.call(cache, tensors)() == (cache, 1, 2, 3)
    assert paged.call(cache, {"q": 1, "k": 2, "v": 3, "k_lengths": 4})() == (4, None)


def test_records_say_which_file_it_was(path):
    peer = peer_of_file(f"{path}:cuDNN")
    one = summarize([1.0])
    timed = tuple(Timed(name, (1.0,), one, one) for name in (OURS, "cuDNN"))
    problem = AttentionProblem(1, 3, 3, 200, 200, 128)
    choice = Choice(None, "rule", "none")
    found = Versus(Shape("x", problem), choice, Comparison("burst", timed, one, ()))
    environment = environment_of(EmulatedDevice("sm_90a"))
    made = {r.what["name"]: r.what for r in records(found, environment, "quick", [peer])}
    assert made["cuDNN"]["peer_file"] == "theirs.py"
    assert made["cuDNN"]["peer_version"] == "3.1"
    assert made["cuDNN"]["peer_sha256"] == hashlib.sha256(SOURCE.encode()).hexdigest()
    assert "peer_file" not in made[OURS]


@pytest.mark.parametrize("text", ["theirs.py", "missing.py:cuDNN", "{path}:no name", "{path}"])
def test_what_is_no_file_and_function_is_refused(text, path):
    with pytest.raises(ArgumentError, match=r"it must be FILE.py:NAME"):
        peer_of_file(text.format(path=path))


@pytest.mark.parametrize("name", ["missing", "number"])
def test_a_name_that_is_no_function_is_refused(name, path):
    with pytest.raises(ArgumentError, match=f"has no function '{name}'; name one"):
        peer_of_file(f"{path}:{name}")


def test_a_file_is_raced_alone_unless_peers_are_named_too(path):
    file = f"{path}:cuDNN"
    assert [p.name for p in Wanted("", [file], 15, False, None).peers()] == ["cuDNN"]
    names = [p.name for p in Wanted("efficient", [file], 15, False, None).peers()]
    assert names == ["cuDNN", "efficient (torch)"]
    assert len(Wanted("", [], 15, False, None).peers()) == 7


def test_none_of_the_known_peers_is_asked_for(path):
    assert Wanted("none", [], 15, False, None).peers() == []
    file = f"{path}:cuDNN"
    assert [p.name for p in Wanted("none", [file], 15, False, None).peers()] == ["cuDNN"]
    with pytest.raises(ArgumentError, match="name one of them, or none"):
        Wanted("none,cudnn", [], 15, False, None).peers()
