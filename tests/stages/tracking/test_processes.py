"""A run's owner: a living process is told from a dead one and from a later one with the same number."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from stages.tracking.processes import SILENT_SECONDS, Owner, invocation


def test_own_process_is_alive_and_survives_text() -> None:
    owner = Owner.of()
    assert Owner.parse(str(owner)).pid == os.getpid()
    assert Owner.parse(str(owner)).alive(0, 1e12)


def test_a_dead_process_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = Owner.of(process.pid)
    assert owner.alive(0, 0)
    process.communicate(b"\n")
    assert not owner.alive(0, 0)


def test_a_reused_process_number_is_another_process() -> None:
    assert not dataclasses.replace(Owner.of(), created=Owner.of().created - 100).alive(0, 0)


def test_an_owner_on_another_host_is_judged_by_its_last_sign() -> None:
    elsewhere = Owner("another-host", os.getpid(), 0.0)
    assert elsewhere.alive(last_sign=1000, now=1000 + SILENT_SECONDS - 1)
    assert not elsewhere.alive(last_sign=1000, now=1000 + SILENT_SECONDS + 1)


@pytest.mark.parametrize("text", ["", "x", "host:notanumber:1.0", "host:1:soon"])
def test_other_text_is_no_owner(text: str) -> None:
    assert Owner.parse(text) is None


def test_unknown_process_number_is_refused() -> None:
    with pytest.raises(ValueError, match="does not exist"):
        Owner.of(2**22 + 1)


def test_without_dvc_the_invocation_is_this_process() -> None:
    owner, command = invocation()
    assert owner.pid == os.getpid() and command.startswith("python ")


def test_a_dvc_ancestor_is_the_invocation(tmp_path) -> None:
    script = tmp_path / "dvc"
    script.write_text("import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[-1]], check=True)\n")
    inner = "from stages.tracking.processes import invocation; owner, command = invocation(); print(owner.pid, command.split(' from ')[0])"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, str(script), "repro", "sft", inner], stdout=subprocess.PIPE, text=True, env=env)
    out, _ = process.communicate()
    assert out.split()[:3] == [str(process.pid), "dvc", "repro"]
