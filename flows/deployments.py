"""The Prefect side of a schedule: the deployment, its dates, and serving it.

In: when to run and with which parameters. Out: a registered deployment whose runs this process starts. Dates come from Prefect's
own schedule objects, so what we call missed is what the server would have scheduled: in a zone with daylight saving a cron hour is
a local hour, one that does not exist runs once at the hour after the change, and one that comes twice runs the first time.
"""

from __future__ import annotations

import asyncio
import datetime
from zoneinfo import ZoneInfo

from prefect.client.orchestration import get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import StateType
from prefect.deployments.runner import EntrypointType, RunnerDeployment
from prefect.runner import Runner
from prefect.schedules import Cron, Interval, Schedule
from prefect.server.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.states import Cancelled

from flows.chain import scheduled
from flows.when import ANCHOR, When

MANY = 1000


def schedule_of(when: When) -> Schedule:
    """The schedule that a deployment carries."""
    if when.cron is not None:
        return Cron(when.cron, timezone=when.timezone)
    return Interval(datetime.timedelta(seconds=when.interval), anchor_date=ANCHOR.replace(tzinfo=ZoneInfo(when.timezone)), timezone=when.timezone)


def dates(when: When, start: datetime.datetime, end: datetime.datetime | None, n: int | None) -> list[datetime.datetime]:
    """Dates of the schedule from `start` on, up to `end` or `n` of them, as the server's scheduler computes them."""
    if when.cron is not None:
        schedule = CronSchedule(cron=when.cron, timezone=when.timezone)
    else:
        anchor = ANCHOR.replace(tzinfo=ZoneInfo(when.timezone))
        schedule = IntervalSchedule(interval=datetime.timedelta(seconds=when.interval), anchor_date=anchor, timezone=when.timezone)
    return asyncio.run(schedule.get_dates(n=n, start=start, end=end))


def missed(when: When, covered_until: datetime.datetime | None, now: datetime.datetime) -> list[datetime.datetime]:
    """Dates after `covered_until` and before `now` (at most MANY); none on the first start."""
    if covered_until is None or covered_until >= now:
        return []
    found = dates(when, covered_until, now, MANY)
    return [date for date in found if covered_until < date < now]


def next_date(when: When, now: datetime.datetime) -> datetime.datetime:
    """First date after `now`."""
    return dates(when, now, None, 1)[0]


def describe(name: str, when: When, parameters: dict[str, object]) -> RunnerDeployment:
    """The deployment, not registered yet. ValueError for a cron expression that Prefect refuses."""
    return scheduled.to_deployment(name=name, schedule=schedule_of(when), parameters=parameters, entrypoint_type=EntrypointType.MODULE_PATH)


def register(deployment: RunnerDeployment, missed_dates: list[datetime.datetime]) -> None:
    """Register with the server; past dates that nobody started are cancelled, and one run is made for them all."""
    deployment_id = deployment.apply()
    late = filters.FlowRunFilter(
        expected_start_time=filters.FlowRunFilterExpectedStartTime(before_=datetime.datetime.now(datetime.UTC)),
        state=filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
    )
    ours = filters.DeploymentFilter(id=filters.DeploymentFilterId(any_=[deployment_id]))
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_run_filter=late, deployment_filter=ours)
        for run in runs:
            client.set_flow_run_state(run.id, Cancelled(message="its time passed while nobody served the schedule; one run makes up for all"), force=True)
        if missed_dates:
            client.create_flow_run_from_deployment(deployment_id, name=f"catch-up for {missed_dates[-1]:%Y-%m-%d %H:%M}", tags=["catch-up"])


async def serve(deployment: RunnerDeployment) -> None:
    """Start runs when they are due until the process is asked to stop. Overlap is refused by the workspace's lock, not here."""
    runner = Runner(name=deployment.name, pause_on_shutdown=True, query_seconds=5)
    await runner.aadd_deployment(deployment)
    await runner.start()
