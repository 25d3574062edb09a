"""The order of stages is what DVC itself sees in dvc.yaml."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flows.graph import read_graph, select
from stages.config import StageError
from tests.conftest import ROOT
from tests.flows.project import Project, make_project


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_project(tmp_path_factory.mktemp("graph"))


def edges_of_dvc(project: Project) -> set[tuple[str, str]]:
    return set(re.findall(r'"(.+?)" -> "(.+?)";', project.dvc("dag", "--dot")))


def test_same_edges_as_dvc_in_the_toy_project(toy: Project) -> None:
    graph = read_graph(toy.root)
    assert {(up, label) for label, ups in graph.items() for up in ups} == edges_of_dvc(toy)
    assert list(graph) == ["a", "b@x", "b@y", "flaky", "late", "end"]
    assert graph["end"] == ("a", "b@y", "late")  # through its metrics file, too


def test_same_edges_as_dvc_in_this_repository() -> None:
    graph = read_graph(ROOT)
    assert {(up, label) for label, ups in graph.items() for up in ups} == edges_of_dvc(Project(ROOT))
    order = list(graph)
    assert all(order.index(up) < order.index(label) for label, ups in graph.items() for up in ups)


def test_targets_bring_what_they_need(toy: Project) -> None:
    graph = read_graph(toy.root)
    assert list(select(graph, ["flaky"])) == ["a", "b@x", "flaky"]
    assert list(select(graph, ["b"])) == ["a", "b@x", "b@y"]
    assert select(graph, []) == graph
    with pytest.raises(StageError, match="no stage 'rl'; expected one of a, b@x"):
        select(graph, ["rl"])


def test_a_cycle_and_broken_yaml_are_refused(tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").write_text("stages: {p: {cmd: p, deps: [q], outs: [p]}, q: {cmd: q, deps: [p], outs: [q]}, r: {cmd: r, outs: [r]}}")
    with pytest.raises(StageError, match="a cycle among p, q"):
        read_graph(tmp_path)
    (tmp_path / "dvc.yaml").write_text("stages: {p: [")
    with pytest.raises(StageError, match="not valid YAML"):
        read_graph(tmp_path)


@pytest.mark.parametrize(("dep", "related"), [("o", True), ("o/x", True), ("o/x/y", True), ("other", False), ("o-2/x", False), ("o/z", False)])
def test_paths_are_compared_by_parts(tmp_path: Path, dep: str, related: bool) -> None:
    (tmp_path / "dvc.yaml").write_text(f"stages: {{p: {{cmd: p, outs: [o/x]}}, q: {{cmd: q, deps: [{dep}], outs: [r]}}}}")
    assert read_graph(tmp_path)["q"] == (("p",) if related else ())
