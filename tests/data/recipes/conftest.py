"""A bucket: a real S3 server on loopback, with nothing in it."""

from __future__ import annotations

from collections.abc import Iterator

import fsspec
import pytest


@pytest.fixture(scope="session")
def s3() -> Iterator[fsspec.AbstractFileSystem]:
    """Bucket `corpus` on a server of our own; the environment names the server, as a user's would."""
    moto_server = pytest.importorskip("moto.server", reason="moto[server], the local S3 server, is not installed")
    s3fs = pytest.importorskip("s3fs", reason="s3fs, the optional package for S3, is not installed")
    server = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    patch = pytest.MonkeyPatch()
    host, port = server.get_host_and_port()
    for name, value in {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}.items():
        patch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem()
    system.mkdir("corpus")
    yield system
    s3fs.S3FileSystem.clear_instance_cache()
    patch.undo()
    server.stop()
