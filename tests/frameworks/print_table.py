"""Print benchmarks/FRAMEWORKS.md from the JUnit report of `scripts/test-frameworks`.

Run the tests first, and then this program:

    scripts/test-frameworks --junitxml frameworks.xml
    python -m tests.frameworks.print_table frameworks.xml > benchmarks/FRAMEWORKS.md
"""

from __future__ import annotations

import datetime
import platform
import re
import subprocess
import sys
from xml.etree import ElementTree

from tests.frameworks.test_killed_and_resumed import FRAMEWORKS, STEPS, WAYS, Framework

PACKAGES = {
    "train_torch.py": ["torch"],
    "train_composer.py": ["mosaicml", "torch"],
    "train_hf.py": ["transformers", "accelerate", "torch"],
    "train_trl.py": ["trl", "transformers", "torch"],
    "train_accelerate.py": ["accelerate", "torch"],
    "train_lightning.py": ["lightning", "torch"],
    "train_torchtitan.py": ["torchtitan", "torch"],
}
HEAD = """# Killed and resumed in training frameworks

Each cell shows two runs of the framework's example, in real processes under torchrun that read from
a real S3 server. The first run is killed with SIGKILL, and the second resumes from the last
checkpoint. A check mark means that, step by step, both trained on exactly the rows of an
uninterrupted run, and that the second fetched only the batches that it trained on (one more in
Lightning if the loader has no length). `make test-frameworks` runs these tests. A run
has {steps} steps, and saves a checkpoint every 4 steps. It is killed in step 7 unless the column
says otherwise.

Measured on {machine}, {date}. All runs together took {minutes:.0f} minutes.
"""


def versions(framework: Framework) -> str:
    """Return the versions of an example's main packages, from the framework's environment."""
    code = (
        "import sys; from importlib.metadata import version; print(', '.join(f'{n} "
        "{version(n)}' for n in sys.argv[1:]))"
    )
    command = [framework.python(), "-c", code, *PACKAGES[framework.example]]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main(report: str) -> None:
    cells: dict[tuple[str, str], tuple[str, str]] = {}
    seconds = 0.0
    for case in ElementTree.parse(report).iter("testcase"):
        seconds += float(case.get("time", 0))
        found = re.fullmatch(r"test_a_run_killed_\w+\[(.*)\]", case.get("name", ""))
        if not found:
            continue
        [(name, way)] = [
            (name, way) for name in FRAMEWORKS for way in WAYS if found[1] == f"{name}-{way}"
        ]
        skipped = case.find("skipped")
        failed = case.find("failure") is not None or case.find("error") is not None
        mark = "✗" if failed else "✓" if skipped is None else "not run"
        cells[name, way] = mark, "" if skipped is None else str(skipped.get("message"))
    machine = f"{platform.system()}, Python {platform.python_version()}, CPU"
    date = datetime.datetime.now(datetime.timezone.utc).date()
    print(HEAD.format(steps=STEPS, machine=machine, date=date, minutes=seconds / 60))
    print(f"| | {' | '.join(WAYS)} | versions |\n|---|{':---:|' * len(WAYS)}---|")
    for name, framework in FRAMEWORKS.items():
        print(
            f"| {name} | {' | '.join(cells.get((name, way), ('?', ''))[0] for way in WAYS)} | "
            f"{versions(framework)} |"
        )
    for reason in sorted({reason for _, reason in cells.values() if reason}):
        print(f"\nNot run: {reason}.")


if __name__ == "__main__":
    main(sys.argv[1])
