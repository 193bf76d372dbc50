"""What `inferd engine install` leaves behind, with the fake engine in the real one's place.

inferd finds a whole environment and a whole model folder, and starts, watches and stops workers as
it does with SGLang. Faults go through `extra_args` of the version.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

from inferd.provision.recipes import RECIPES, SPLIT, Device, extra_pins
from inferd.provision.record import InstallRecord, Step, save
from tests.fakes.engines import REPOSITORY

PROGRAM = """\
#!/bin/sh
# Called as: python -m sglang.launch_server FLAGS
shift 2
export PYTHONPATH={repository}
exec {python} -m tests.fake_engine --speed {speed} "$@"
"""


def install_fake_engine(directory: Path, *, speed: float = 20.0) -> None:
    """Make `directory` an environment whose engine is the fake one."""
    recipe = RECIPES[Device.CPU]
    site_packages = directory / "lib" / "python3.12" / "site-packages"
    for pin in (*recipe.pins, *extra_pins(Device.CPU, SPLIT)):
        info = site_packages / f"{pin.name.replace('-', '_')}-{pin.version}.dist-info"
        info.mkdir(parents=True)
        (info / "RECORD").write_text(f"{info.name}/RECORD,,\n")
    (directory / "pyvenv.cfg").write_text("")
    python = directory / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PROGRAM.format(repository=REPOSITORY, python=sys.executable, speed=speed))
    python.chmod(0o755)
    steps = dict.fromkeys(Step, "2026-01-01T00:00:00+00:00")
    save(directory, InstallRecord(Device.CPU, recipe.digest, "3.12.0", steps))


def make_model(folder: Path) -> None:
    """A whole model folder: config, tokenizer, and weights of one byte."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 8_192}))
    (folder / "tokenizer.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    weights = struct.pack("<Q", len(header)) + header + b"\0"
    (folder / "model.safetensors").write_bytes(weights)
