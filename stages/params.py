"""Compose params.yaml from the Hydra tree in stages/conf, exactly as `dvc exp run -S` does.

`python -m stages.params [--profile NAME] [--set key=value ...] [--check]` writes params.yaml by an atomic rename, or with --check
only says whether it is what the options compose to. Hydra's override grammar applies: `--set rl.lr=1e-4`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from ruamel.yaml import YAML

from stages.config import StageError, flatten, read_params

CONF = Path(__file__).resolve().parent / "conf"


def profiles(conf: Path = CONF) -> list[str]:
    """Names that `--profile` and `-S profile=` accept."""
    return sorted(path.stem for path in (conf / "profile").glob("*.yaml"))


def compose_params(profile: str | None, overrides: list[str], conf: Path = CONF) -> str:
    """YAML text of the composition. StageError on an unknown profile, key or value."""
    if profile is not None and profile not in profiles(conf):
        raise StageError(f"profile '{profile}' does not exist; expected one of {', '.join(profiles(conf))}")
    chosen = ([f"profile={profile}"] if profile else []) + list(overrides)
    try:
        with initialize_config_dir(str(conf), version_base=None):
            config = compose(config_name="config", overrides=chosen)
        OmegaConf.resolve(config)
        return OmegaConf.to_yaml(config)
    except (HydraException, OmegaConfBaseException) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise StageError(f"cannot compose params from {chosen or 'the defaults'}: {error} ({reason}); see stages/conf/config.yaml for the keys") from None


def write_params(path: Path, text: str) -> bool:
    """Replace `path` atomically; False when it already held exactly this text (the file is then untouched)."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
    return True


def edited_keys(path: Path, conf: Path = CONF) -> list[str]:
    """Dotted keys in which `path` differs from the profile it names; all of them when it names none we know."""
    params = read_params(path)
    shared = params.get("shared")
    profile = shared.get("profile") if isinstance(shared, dict) else None
    if profile not in profiles(conf):
        return sorted(params)
    composed = YAML(typ="safe").load(compose_params(profile, [], conf))
    ours, theirs = (_leaves(tree) for tree in (params, composed))
    return sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))


def _leaves(tree: dict[str, object]) -> dict[str, object]:
    return {key: leaf for name, section in tree.items() for key, leaf in flatten(name, section).items()}


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m stages.params", description=__doc__)
    parser.add_argument("--profile", help=f"one of {', '.join(profiles())}")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="change one value; repeat for more")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when params.yaml differs")
    args = parser.parse_args(argv)
    path = Path.cwd() / "params.yaml"
    try:
        text = compose_params(args.profile, args.overrides)
    except StageError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if args.check:
        same = path.is_file() and path.read_text(encoding="utf-8") == text
        sys.stdout.write(f"params.yaml {'is' if same else 'is not'} the composition\n")
        return 0 if same else 1
    changed = write_params(path, text)
    sys.stdout.write(f"params.yaml {'written' if changed else 'already up to date'}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
