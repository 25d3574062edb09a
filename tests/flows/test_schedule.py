"""Schedules: local hours across clock changes, missed dates made up for once, no overlap, a real served deployment (PRE-05)."""

from __future__ import annotations

import datetime
import json
import re
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from flows.plan import BadInput
from flows.schedule import Covered, main
from flows.when import When
from flows.workspace import exclusive
from tests.flows.project import Project
from tests.flows.test_pipeline import ask

BERLIN = ZoneInfo("Europe/Berlin")


def local_dates(cron: str, start: tuple[int, int, int], days: int) -> list[str]:
    from flows.deployments import dates

    first = datetime.datetime(*start, tzinfo=BERLIN)
    found = dates(When(cron, None, "Europe/Berlin"), first, first + datetime.timedelta(days=days), None)
    return [f"{date.astimezone(BERLIN):%d %H:%M %Z}" for date in found]


@pytest.mark.parametrize(
    ("cron", "start", "expected"),
    [
        ("10 0 * * *", (2025, 3, 29), ["29 00:10 CET", "30 00:10 CET", "31 00:10 CEST"]),
        ("30 2 * * *", (2025, 3, 29), ["29 02:30 CET", "30 03:30 CEST", "31 02:30 CEST"]),  # 02:30 does not exist on the 30th
        ("10 0 * * *", (2025, 10, 25), ["25 00:10 CEST", "26 00:10 CEST", "27 00:10 CET"]),
        ("30 2 * * *", (2025, 10, 25), ["25 02:30 CEST", "26 02:30 CEST", "27 02:30 CET"]),  # 02:30 comes twice on the 26th
    ],
)
def test_pre05_one_run_per_local_day_across_clock_changes(cron: str, start: tuple[int, int, int], expected: list[str]) -> None:
    assert local_dates(cron, start, 3) == expected


def test_pre05_a_restart_inside_the_gap_neither_repeats_nor_skips() -> None:
    """Served until 02:10 before the change of 30 March 2025; back at 03:10 (the hour between does not exist), or at 04:00."""
    from flows.deployments import missed, next_date

    when = When("30 2 * * *", None, "Europe/Berlin")
    last = datetime.datetime(2025, 3, 30, 1, 50, tzinfo=BERLIN)
    early, late = datetime.datetime(2025, 3, 30, 3, 10, tzinfo=BERLIN), datetime.datetime(2025, 3, 30, 4, 0, tzinfo=BERLIN)
    assert missed(when, last, early) == [] and f"{next_date(when, early).astimezone(BERLIN):%d %H:%M}" == "30 03:30"
    assert len(missed(when, last, late)) == 1 and f"{next_date(when, late).astimezone(BERLIN):%d %H:%M}" == "31 02:30"


def test_missed_dates_lie_strictly_between_the_last_sign_and_now() -> None:
    from flows.deployments import missed

    hourly, at = When(None, 3600, "UTC"), datetime.datetime(2025, 1, 1, 12, tzinfo=datetime.UTC)
    assert missed(hourly, None, at) == []
    assert missed(hourly, at, at) == []
    assert [date.hour for date in missed(hourly, at - datetime.timedelta(hours=3), at)] == [10, 11]
    assert missed(hourly, at + datetime.timedelta(minutes=1), at) == []


def test_intervals_do_not_shift_with_a_restart() -> None:
    from flows.deployments import next_date

    when = When(None, 6 * 3600, "UTC")
    for minute in (1, 300):
        at = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(minutes=minute)
        assert next_date(when, at) == datetime.datetime(2025, 1, 1, 6, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("cron", "interval", "timezone", "text"),
    [
        (None, None, "UTC", "exactly one of --cron and --interval"), ("0 3 * * *", 60, "UTC", "exactly one"), (None, 0.5, "UTC", "at least 1 second"),
        ("0 3 * * *", None, "Mars/Base", "expected an IANA name"), ("0 3 * * *", None, "", "expected an IANA name"),
    ],
)  # fmt: skip
def test_wrong_times_are_refused(cron: str | None, interval: float | None, timezone: str, text: str) -> None:
    with pytest.raises(BadInput, match=text):
        When(cron, interval, timezone)


def test_wrong_options_are_code_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    previous = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(tmp_path)
    assert main(["--cron", "0 3 * * *"]) == 2 and "no dvc.yaml" in capsys.readouterr().err
    (tmp_path / "dvc.yaml").touch()
    assert main(["--cron", "0 3 * * *", "--timezone", "Nowhere"]) == 2
    signal.signal(signal.SIGTERM, previous)


def test_the_sign_of_life_is_renewed_while_served(tmp_path: Path) -> None:
    covered = Covered(tmp_path / "s.json")
    assert covered.read() is None
    with covered.signing():
        while covered.read() is None:
            time.sleep(0.01)
    assert abs((datetime.datetime.now(datetime.UTC) - covered.read()).total_seconds()) < 60


def until(condition, seconds: float = 600) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_missed_dates_are_one_run_and_a_busy_workspace_skips_one(project: Project, launch, api_url: str) -> None:
    """A real server and a served deployment. The first start misses nothing; the second finds five dates in the gap."""
    words = ("--interval", "3600", "--name", "hourly", "--targets", "a")
    first = launch("schedule", *words, PREFECT_API_URL=api_url)
    for line in first.stdout:
        if line.startswith("serving 'hourly', next at "):
            break
    second = launch("schedule", *words, PREFECT_API_URL=api_url)
    out, _ = second.communicate(timeout=600)
    assert second.returncode == 2 and "served by another process already" in out
    first.send_signal(signal.SIGTERM)
    out, _ = first.communicate(timeout=600)
    assert first.returncode == 0, out
    (deployment,) = [entry for entry in ask(api_url, "deployments") if entry["name"] == "hourly"]
    assert deployment["parameters"]["targets"] == ["a"] and deployment["schedules"][0]["schedule"]["interval"] == 3600
    mine = {"deployments": {"id": {"any_": [deployment["id"]]}}}

    def runs() -> list[dict]:
        return [run for run in ask(api_url, "flow_runs", mine) if run["state_type"] != "SCHEDULED" or "catch-up" in run["tags"]]

    assert runs() == []
    gap = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=5)
    (project.root / "data/work/schedule/hourly.json").write_text(json.dumps({"covered_until": gap.isoformat()}))
    third = launch("schedule", *words, PREFECT_API_URL=api_url)
    said = [third.stdout.readline()]
    assert re.match(r"5 dates passed while nobody served this schedule, .* starting one run", said[0])
    until(lambda: runs() and runs()[0]["state_type"] in ("COMPLETED", "FAILED", "CRASHED"))
    assert [run["state_name"] for run in runs()] == ["Completed"] and len(project.starts("a")) == 1
    with exclusive(project.root, said.append):
        request = {"state": {"type": "SCHEDULED"}, "name": "while busy"}
        until(lambda: create_run(api_url, deployment["id"], request))
        until(lambda: any(run["state_name"] == "Skipped" for run in runs()))
    assert len(project.starts("a")) == 1
    third.send_signal(signal.SIGTERM)
    assert third.wait(600) == 0


def create_run(api_url: str, deployment: str, body: dict) -> bool:
    """Ask for a run; False when the server's database is busy and it asks to be asked again (503)."""
    url = f"{api_url}/deployments/{deployment}/create_flow_run"
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30):
            return True
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return False
