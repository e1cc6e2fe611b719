"""A predicted order that was written down stands beside the times in the report."""

from report_records import CONFIGS, record
from typer.testing import CliRunner

from flashsmith.cli.main import app
from flashsmith.measure.record import append_records
from flashsmith.report.sources import gather


def test_predicted_places_are_appended_and_read_back(tmp_path):
    times, places = tmp_path / "times.jsonl", tmp_path / "places.jsonl"
    forms = [config.short_form() for config in CONFIGS[1:4]]
    made = [record("paper", form, 1024, 100.0 + n) for n, form in enumerate(forms)]
    append_records(times, [type(r)({**r.what, "scale": None}, *_rest(r)) for r in made])
    ran = CliRunner().invoke(app, ["predict", "--against", str(times), "-o", str(places)])
    assert ran.exit_code == 0, ran.output
    assert "3 places appended" in ran.stderr
    found = gather([places]).places
    assert {config for config, _ in found} == set(forms)
    assert sorted(found.values()) == [1, 2, 3]
    first = min(found.values())
    assert (first.cycles_over_first, first.limit) == (1.0, "shared memory")
    assert not gather([places]).records


def _rest(r):
    return r.result, r.environment
