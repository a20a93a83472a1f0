"""Public reports that came out wrong once, where they are at hand: each figure as it should be."""

import json

import pytest
from test_server_log import SHARED, figures

from vllm_tuning.answer import Asked, find_optimum, model_of
from vllm_tuning.budget import capacity, launch_to_measure
from vllm_tuning.reading import read_source, sources_of
from vllm_tuning.workload import Workload

CASES = SHARED / "cases2"
LOGS = sorted(path.name for path in CASES.glob("[01]*") if (path / "a.log").exists())
pytestmark = pytest.mark.skipif(not CASES.exists(), reason="needs ../shared/cases2")


def agrees(known, name, value):
    if name == "error_has":
        return value in known["error"]
    if name == "warn":
        return {value} <= set(known["warnings"]) if isinstance(value, str) else False
    if name.endswith("_in"):
        return any(known[name[:-3]] == pytest.approx(each, abs=0.005) for each in value)
    if name.endswith("_range"):
        return value[0] <= known[name[:-6]] <= value[1]
    if isinstance(value, float):
        return known[name] == pytest.approx(value, abs=0.005)
    return known[name] == value


@pytest.mark.parametrize("name", LOGS)
def test_every_figure_of_a_report(name):
    wanted = json.loads((CASES / name / "expected.json").read_text())["expected"]
    launches = read_source(CASES / name / "a.log")
    if isinstance(wanted, list):
        assert len(launches) == len(wanted)
        for launch, expected in zip(launches, wanted, strict=True):
            known = figures(launch)
            assert [n for n, value in expected.items() if not agrees(known, n, value)] == []


@pytest.mark.parametrize("name", ["098-hybrid-align-two-states", "099-cpu-k8s-oomkilled-0.30"])
def test_the_budget_of_a_report(name):
    folder = CASES / name
    wanted = json.loads((folder / "expected.json").read_text())["budget --launches --json"]
    found = capacity(
        folder / "config.json",
        launch=launch_to_measure([folder / "a.log"]),
        lengths=(Workload(1024, 256),),
    ).to_dict()
    assert {key: found[key] for key in wanted} == pytest.approx(wanted)


@pytest.mark.parametrize("length", ["at-5120", "at-200000"])
def test_a_hybrid_with_drafts_at_whatever_length_it_was_launched(length):
    """92 GiB hold 203 requests of 5,120 tokens; 546 were promised."""
    folder = CASES / "113-hybrid-mtp-four-launches"
    model = model_of(sources_of(folder / length), folder / "config.json", Asked())
    best = find_optimum(model, Workload(4096, 1024)).recommended
    assert 200 <= best.max_num_seqs <= 203
