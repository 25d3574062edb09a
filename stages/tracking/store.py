"""The MLflow store: the only file that imports MLflow.

In: the project's root folder (or MLFLOW_TRACKING_URI). Out: runs, links, registered models. The SQLite file is made once, under a
file lock, in a temporary place and renamed, so neither concurrent first users nor a kill can leave half a database. Only the
client API with explicit run ids is used: there is no "active run" that a failed stage could leave open.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from alembic.util import CommandError
from mlflow import set_tracking_uri
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from sqlalchemy.exc import SQLAlchemyError

from stages.tracking.processes import Owner
from stages.tracking.values import MAX_TAG, clean_key

EXPERIMENT = "headrace"
PARENT_TAG = "mlflow.parentRunId"
OVERFLOW = 1e300  # stores without infinity keep the largest double in its place; nothing we measure comes near it


class TrackingError(RuntimeError):
    """The tracker cannot do what was asked; the message says why and what to do."""


def tracking_uri(root: Path) -> str:
    """MLFLOW_TRACKING_URI, or the SQLite file in the project's root, absolute."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root.resolve() / 'mlflow.db'}"


def sqlite_file(uri: str) -> Path | None:
    """The database file behind a SQLite address; None for a server."""
    return Path(uri.removeprefix("sqlite:///")).resolve() if uri.startswith("sqlite:///") else None


class Store:
    """An open store with its experiment. Methods take run ids and never keep a current run."""

    def __init__(self, client: MlflowClient, experiment_id: str, uri: str, lock: Path | None) -> None:
        self.client = client
        self.experiment_id = experiment_id
        self.uri = uri
        self._lock = lock

    @classmethod
    def open(cls, root: Path) -> Store:
        """Open the store, making database and experiment when missing. TrackingError when it cannot be opened."""
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        uri = tracking_uri(root)
        database = sqlite_file(uri)
        lock = database.with_name(database.name + ".lock") if database else None
        try:
            with _locked(lock):
                if database and (not database.exists() or database.stat().st_size == 0):
                    _make_database(database)
                set_tracking_uri(uri)  # model addresses (models:/...) are resolved through the global setting only
                client = MlflowClient(uri)
                return cls(client, _experiment(client, database.parent if database else None), uri, lock)
        except (MlflowException, SQLAlchemyError, CommandError, OSError) as error:
            raise TrackingError(f"cannot open the tracking store {uri}: {error}; check MLFLOW_TRACKING_URI, or move a damaged database away") from error

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the store's lock, for look-then-create steps. No lock for a server, which serialises them itself."""
        with _locked(self._lock):
            yield

    def find(self, filter_string: str, limit: int = 1000) -> list[Run]:
        """Runs of the experiment, newest first."""
        return list(self.client.search_runs([self.experiment_id], filter_string, max_results=limit, order_by=["attributes.start_time DESC"]))

    def get(self, run_id: str) -> Run | None:
        """The run, or None when it does not exist or was deleted."""
        try:
            run = self.client.get_run(run_id)
        except MlflowException:
            return None
        return run if run.info.lifecycle_stage == "active" else None

    def start(self, name: str, tags: Mapping[str, str], parent: str | None = None) -> str:
        """Create a RUNNING run and return its id."""
        tags = {clean_key(key): str(value)[:MAX_TAG] for key, value in tags.items()}
        tags |= {PARENT_TAG: parent} if parent else {}
        return self.client.create_run(self.experiment_id, tags=tags, run_name=name).info.run_id

    def tag(self, run_id: str, tags: Mapping[str, object]) -> None:
        """Set tags; values become text."""
        self.client.log_batch(run_id, tags=[RunTag(clean_key(key), str(value)[:MAX_TAG]) for key, value in tags.items()])

    def log_params(self, run_id: str, params: Mapping[str, str], known: Mapping[str, str]) -> None:
        """Log parameters not in `known`; a changed one keeps its first value and the new one becomes a tag (MLflow refuses changes)."""
        params = {clean_key(key): value for key, value in params.items()}
        fresh = [Param(key, value) for key, value in params.items() if key not in known]
        for start in range(0, len(fresh), 100):
            self.client.log_batch(run_id, params=fresh[start : start + 100])
        changed = {f"param_changed.{key}": value for key, value in params.items() if key in known and known[key] != value}
        if changed:
            self.tag(run_id, changed)

    def log_points(self, run_id: str, points: list[tuple[str, float, int, int]], tags: Mapping[str, object]) -> None:
        """Log finite (name, value, time in ms, step) points and tags."""
        for start in range(0, len(points), 1000):
            self.client.log_batch(run_id, metrics=[Metric(*point) for point in points[start : start + 1000]])
        if tags:
            self.tag(run_id, tags)

    def last_steps(self, run: Run) -> dict[str, int]:
        """Largest logged step of every curve of the run."""
        names = [name for name in run.data.metrics if not name.startswith("system/")]
        return {name: max(metric.step for metric in self.client.get_metric_history(run.info.run_id, name)) for name in names}

    def artifact(self, run_id: str, path: Path) -> None:
        """Copy a file, or a folder under its own name, into the run's artifacts."""
        if path.is_dir():
            self.client.log_artifacts(run_id, str(path), artifact_path=path.name)
        else:
            self.client.log_artifact(run_id, str(path))

    def reopen(self, run_id: str, owner: Owner) -> None:
        """Mark the run RUNNING in the hands of `owner`."""
        self.client.update_run(run_id, status="RUNNING")
        self.tag(run_id, {"owner": owner, "heartbeat": f"{time.time():.0f}"})

    def finish(self, run_id: str, status: str, reason: str | None = None) -> None:
        """End the run with FINISHED, FAILED or KILLED."""
        if reason:
            self.tag(run_id, {"reason": reason})
        self.client.set_terminated(run_id, status)

    def sweep(self) -> list[str]:
        """End every RUNNING run whose owner is dead as FAILED; returns their ids."""
        now, swept = time.time(), []
        for run in self.find("attributes.status = 'RUNNING'"):
            owner = Owner.parse(run.data.tags.get("owner", ""))
            last_sign = float(run.data.tags.get("heartbeat") or run.info.start_time / 1000)
            if owner and not owner.alive(last_sign, now):
                self.finish(run.info.run_id, "FAILED", f"its process ({owner.pid} on {owner.host}) ended without closing the run")
                swept.append(run.info.run_id)
        return swept

    def maker_of(self, fingerprint: str) -> Run | None:
        """Newest finished stage run with this fingerprint: the one that made the output now in place."""
        runs = self.find(f"tags.fingerprint = '{fingerprint}' and tags.kind = 'stage' and attributes.status = 'FINISHED'", limit=1)
        return runs[0] if runs else None

    def link(self, parent: str, stage: str, item: str | None, fingerprint: str) -> str:
        """Record a skipped stage under `parent`, pointing at the run that made its output. Returns the new run's id."""
        label, maker = stage if item is None else f"{stage}@{item}", self.maker_of(fingerprint)
        tags = {"kind": "link", "stage": stage, "fingerprint": fingerprint} | ({"item": item} if item else {})
        if maker:
            tags |= {"made_by": maker.info.run_id}
            note = f"Up to date. Its output was made by run [{maker.info.run_name}](#/experiments/{maker.info.experiment_id}/runs/{maker.info.run_id})."
        else:
            note = "Up to date. No run in this store made its output (restored from a cache, or made before this store)."
        run_id = self.start(f"{label} (up to date)", {**tags, "mlflow.note.content": note}, parent)
        self.finish(run_id, "FINISHED")
        return run_id

    def register_model(self, run_id: str, folder: Path, name: str, alias: str, tags: Mapping[str, str]) -> str:
        """Copy an exported folder into the store, register it and move `alias` to it; returns the version.

        No pickle, no model import. A folder registered before (equal content) keeps its version. Nothing half-registered stays.
        """
        if alias.lower() == "latest" or alias.lower().lstrip("v").isdigit():
            raise ValueError(f"alias '{alias}' is reserved by MLflow; choose another, such as 'newest'")
        try:
            digest = folder_digest(folder)
            version = self._find_version(name, digest) or self._make_version(run_id, folder, name, {**tags, "digest": digest})
            self.client.set_registered_model_alias(name, alias, version)
        except (MlflowException, OSError) as error:
            raise TrackingError(f"cannot register {folder} as '{name}': {error}; nothing was left half-registered, run the stage again") from error
        return version

    def _find_version(self, name: str, digest: str) -> str | None:
        found = self.client.search_model_versions(f"name = '{name}' and tag.digest = '{digest}'")
        return str(max((int(version.version) for version in found), default=0)) if found else None

    def _make_version(self, run_id: str, folder: Path, name: str, tags: Mapping[str, str]) -> str:
        if not self.client.search_registered_models(f"name = '{name}'"):
            try:
                self.client.create_registered_model(name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
        model = self.client.create_logged_model(self.experiment_id, name=clean_key(name), source_run_id=run_id, tags=dict(tags), model_type="headrace export")
        try:
            self.client.log_model_artifacts(model.model_id, str(folder))
            self.client.finalize_logged_model(model.model_id, "READY")
            made = self.client.create_model_version(name, f"models:/{model.model_id}", run_id=run_id, tags=dict(tags), model_id=model.model_id)
        except (MlflowException, OSError):
            self.client.delete_logged_model(model.model_id)
            raise
        return str(made.version)

    def best_run(self, metric: str, mode: str, stage: str | None = None) -> tuple[Run, float] | None:
        """Finished stage run with the best last value of `metric`; runs in which it ended not-a-number or infinite never win."""
        if mode not in ("min", "max"):
            raise ValueError(f"mode={mode!r}, expected 'min' or 'max'")
        where = "tags.kind = 'stage' and attributes.status = 'FINISHED'" + (f" and tags.stage = '{stage}'" if stage else "")
        name = clean_key(metric)
        measured = [(run, run.data.metrics[name]) for run in self.find(where) if name in run.data.metrics]
        measured = [(run, value) for run, value in measured if name not in run.data.tags.get("diverged", "").split(",")]
        measured = [(run, value) for run, value in measured if math.isfinite(value) and abs(value) < OVERFLOW]
        return (min if mode == "min" else max)(measured, key=lambda pair: pair[1], default=None)


def best_run(root: Path, metric: str, mode: str, stage: str | None = None) -> str | None:
    """Id of the best finished stage run of the project; see Store.best_run."""
    best = Store.open(root).best_run(metric, mode, stage)
    return best[0].info.run_id if best else None


def folder_digest(folder: Path) -> str:
    """Hex sha256 over the names and bytes of a folder's files."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        with file.open("rb") as handle:
            digest.update(f"{file.relative_to(folder).as_posix()}\0{hashlib.file_digest(handle, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


@contextmanager
def _locked(path: Path | None) -> Iterator[None]:
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # dropped by the kernel with its owner
        yield


def _make_database(database: Path) -> None:
    """Build the schema and the experiment in a temporary file and rename it: it exists whole or not at all."""
    temporary = database.with_name(f".{database.name}.new")
    temporary.unlink(missing_ok=True)
    _experiment(MlflowClient(f"sqlite:///{temporary}"), database.parent)
    os.replace(temporary, database)


def _experiment(client: MlflowClient, artifacts_under: Path | None) -> str:
    """Id of our experiment. A local one keeps artifacts beside its database; one from before the database moved is set aside."""
    location = (artifacts_under.resolve() / "mlartifacts").as_uri() if artifacts_under else None
    found = client.get_experiment_by_name(EXPERIMENT)
    if found and found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    if found and location and found.artifact_location != location:
        client.rename_experiment(found.experiment_id, f"{EXPERIMENT} (artifacts at {found.artifact_location}, until {time.strftime('%Y-%m-%d %H:%M:%S')})")
        found = None
    if found:
        return found.experiment_id
    try:
        return client.create_experiment(EXPERIMENT, artifact_location=location)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        return client.get_experiment_by_name(EXPERIMENT).experiment_id
