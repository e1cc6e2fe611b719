"""The command line itself: verbs, versions, errors without tracebacks, nothing heavy imported."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from flashsmith import __version__
from flashsmith.bench.peers import find_peers
from flashsmith.cli import main as cli
from flashsmith.cli.main import OLD_NAMES, VERBS, app

DIGITS = "9" * 5000


def flashsmith(*arguments, **environment):
    import os

    inherited = {name: value for name, value in os.environ.items() if name != "KERNELS"}
    return subprocess.run(
        [sys.executable, "-m", "flashsmith", *arguments],
        capture_output=True,
        text=True,
        env=inherited | environment,
    )


@pytest.fixture
def told(monkeypatch, capsys):
    """As `flashsmith`, without a process of its own: exit code, output and errors."""

    def run(*arguments):
        monkeypatch.delenv("KERNELS", raising=False)
        monkeypatch.setattr(sys, "argv", ["flashsmith", *arguments])
        monkeypatch.setattr(cli, "let_readers_leave", lambda: None)  # of this process's output
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    return run


def test_the_version_is_the_packages():
    assert flashsmith("--version").stdout == f"flashsmith {__version__}\n"


def test_help_names_every_verb_without_importing_one():
    text = flashsmith("--help").stdout
    assert all(verb in text for verb in VERBS)


@pytest.mark.parametrize(("old", "verb"), OLD_NAMES.items())
def test_a_verb_answers_to_its_old_name(old, verb, told):
    new, before = (told(*name.split(), "--help")[1] for name in (verb, old))
    assert new.startswith(f"Usage: flashsmith {verb} ")
    assert new.splitlines()[1:] == before.splitlines()[1:]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb, told):
    code, text, errors = told(*verb.split(), "--help")
    assert code == 0, errors
    # Once in the usage line, and once in an example.
    assert " ".join(text.split()).count(f"flashsmith {verb} ") >= 2


def test_help_asks_no_value_of_a_flag():
    assert "  --json  " in flashsmith("results", "--help").stdout


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_a_terminal_and_its_examples_are_taken(verb):
    group = typer.main.get_command(app)
    with group.make_context("flashsmith", [verb], resilient_parsing=True) as context:
        text = CliRunner().invoke(app, [*verb.split(), "--help"], terminal_width=80).stdout
        assert [line for line in text.splitlines() if len(line) > 80] == []
        examples = re.findall(r"^    (.*flashsmith .*)$", text, flags=re.M)
        assert examples
        for example in examples:
            words = shlex.split(example, comments=True)
            given = words[words.index("flashsmith") + 1 :]
            name, found, rest = group.resolve_command(context, given)
            assert name == verb, example
            found.make_context(name, rest, parent=context).close()
            if "--peers" in rest:
                assert find_peers([rest[rest.index("--peers") + 1]])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("configs", "nonsense"), "unknown set 'nonsense'; the sets are prog, "),
        (("configs", "--arch", "sm_12"), "unknown architecture 'sm_12'; choose one of sm_80,"),
        (("configs", "--json", "--csv"), "--json and --csv are both given"),
        (("configs", "--why", "(FP16, 128)"), "has 2 values in parentheses; there are 5"),
        (("configs", "--nosuch"), "No such option: --nosuch"),
        (("nosuch",), "unknown verb 'nosuch'; the verbs are configs, env, compile, tune,"),
        (("tuen",), "unknown verb 'tuen'; did you mean 'tune'?"),
        (("run", "smoke", "--json", "--csv"), "--json and --csv are both given"),
        (("run", "smoke", "--d-head", "600"), "d_head is 600; the kernels take multiples of 8 up"),
        (("tune", "--d-heads", "64,7"), "d_head is 7; the kernels take multiples of 8 up to 512"),
        (("tune", "--seq-lens", "1024,²"), "--seq-lens is '1024,²'; it must be a list of numbers"),
        (("tune", "--causal", "--both-masks"), "--causal and --both-masks are both given"),
        (("tune", "--budget", "0s"), "--budget is '0s'; it must be a time above 0, such as 90s"),
        (("configs", "--why", "(FP16, 64)", "--page"), "--why and --page are both given"),
        (("configs", "prog", "--space"), "KEY and --space are both given"),
        (("compile", "--debug", "--line-info"), "--debug and --line-info are both given"),
        (("cache", "--clean", "--list"), "--clean and --list are both given"),
        (("build", "smoke", "--shipped"), "KEY and --shipped are both given"),
        (("inspect", "x", "--ptx", "--json"), "--ptx and --json are both given"),
        (("progression", "nosuch"), "'nosuch' has no ladder; there are prog, prog-all, hopper"),
        (("progression", "(FP16, 64, 64, 64, 4)"), "moved knob by knob; add --knob"),
        (("progression", "-o", "x", "--device", "emulator"), "-o is given without a GPU"),
        (("run", "--sustained", "--device", "emulator"), "--sustained is given for the emulator"),
        (("run", "--rounds", "15", "--device", "emulator"), "--rounds is given for the emulator"),
        (("progression", "--rounds", "15", "--device", "emulator"), "--rounds is given without a"),
        (("bench", "--suite", "nosuch.toml"), "nosuch.toml does not exist"),
        (
            ("compile", ""),
            "KEY is an empty text; it must be a set such as tune, a short form or @file",
        ),
        (("predict", ""), "KEY is an empty text"),
        (("tune", ""), "KEY is an empty text"),
        (("configs", "a" * 40_000), "…' has 40,000 letters; what names a configuration or a set"),
        (("configs", "--why", "a" * 40_000), "has 40,000 letters; what names a configuration"),
        (
            ("configs", f"64,{DIGITS[:3000]}"),
            "9…' is not of the form 'B_r,B_c'; the tuning set has",
        ),
        (
            ("run", "smoke", "--seq-lens", DIGITS),
            "9…'; it must be a list of numbers above 0, such as",
        ),
        (("run", "smoke", "--batch", DIGITS), "Invalid value for '--batch': Unable to parse"),
        (("run", "smoke", "--scale", DIGITS), "scale is inf; it must be a finite number above 0"),
        (("run", "smoke", "--scale", "1e39"), "scale is 1e+39; kernels take it as float32"),
        (("run", "--device", "emulator", "--seq-lens", "1" + "0" * 12), "q_len is 1000000000000;"),
    ],
)
def test_a_users_error_is_one_message_and_exit_code_2(arguments, says, told):
    code, output, errors = told(*arguments)
    assert code == 2
    assert says in errors
    assert not output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("configs", "nonsense"), "unknown set 'nonsense'"),
        (("configs", "--nosuch"), "No such option: --nosuch"),
        (("generate", "smoke", "-o", "/dev/null/x"), "/dev/null/x"),
    ],
)
def test_so_it_is_in_a_process_of_its_own(arguments, says):
    ran = flashsmith(*arguments)
    assert ran.returncode == 2
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not ran.stdout


def test_a_reader_that_leaves_early_is_no_error():
    ran = subprocess.run(
        f"{sys.executable} -m flashsmith configs all --csv | head -1",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert ran.stdout.startswith("short_form,")
    assert not ran.stderr


@pytest.mark.parametrize("arguments", ["configs prog", "configs all --csv", "--help", "env"])
def test_a_reader_that_reads_nothing_is_no_error(arguments):
    script = f"set -o pipefail; {sys.executable} -m flashsmith {arguments} | true"
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_an_error_that_nobody_reads_keeps_its_exit_code():
    script = f"set -o pipefail; {sys.executable} -m flashsmith nosuch 2>&1 | true"
    assert subprocess.run(["bash", "-c", script]).returncode == 2


def test_a_text_in_an_error_does_not_steer_the_terminal():
    assert "\x1b" not in flashsmith("configs", "\x1b[31mred").stderr


def test_listing_configurations_as_json_draws_no_table():
    code = (
        "import sys; sys.argv = ['flashsmith', 'configs', '--json']\n"
        "from flashsmith.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: sys.stderr.write(' '.join(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    modules = set(ran.stderr.split())
    assert "flashsmith.cli.verbs.configs" in modules
    assert not modules & {"torch", "cuda", "rich.table", "flashsmith.cli.verbs.env"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_behind_the_output_is_said_and_is_exit_code_2():
    for arguments in ("configs all --csv", "env"):
        script = f"{sys.executable} -m flashsmith {arguments} > /dev/full"
        ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        assert ran.returncode == 2
        assert ran.stderr == "flashsmith: the disk is full; make room and try again.\n"


def verb_commands():
    from flashsmith.cli.main import app

    group = typer.main.get_command(app)
    return {verb: group.get_command(None, verb) for verb in VERBS}


def test_the_help_of_key_states_the_verbs_own_default_and_no_others():
    found = {}
    for verb, command in verb_commands().items():
        for parameter in command.params:
            if parameter.name in ("key", "ladder") and parameter.param_type_name == "argument":
                found[verb] = re.search(r".*(?:KERNELS, else|Without it:) (.+)\.$", parameter.help)
    stated = {verb: match[1] for verb, match in found.items() if match}
    assert set(stated) == set(found)
    assert stated["run"] == "smoke"
    assert stated["build registry"] == stated["build bundle"] == stated["build"] == "all"
    assert stated["bench profile"] == stated["bench ladder"] == "prog"
    assert "can win" in stated["tune"]
    assert stated["configs"] == stated["compile"] == stated["verify"] == "tune"


def test_options_may_be_spelt_with_underscores():
    ran = flashsmith("predict", "smoke", "--seq_lens", "0", "--d_heads", "128")
    assert (ran.returncode, "--seq-lens is '0'" in ran.stderr) == (2, True)
