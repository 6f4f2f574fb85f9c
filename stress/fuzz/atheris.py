"""The coverage-guided engine, which needs `atheris`. If run as a program, it fuzzes one target.

    python -m stress.fuzz.atheris TARGET SECONDS FINDINGS

cloudload is imported with atheris' import hook, which instruments its code.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from stress.fuzz.engine import MAX_INPUT_BYTES, MAX_SECONDS

_REASON = re.compile(r"^(?:\S*(?:Error|Exception|Finding).*|=+ ?ERROR.*|ALARM.*)$", re.MULTILINE)


def start_atheris(
    name: str, seeds: list[bytes], seconds: int, findings: Path
) -> tuple[int, Path, str]:
    """Fuzz a target in a separate process, because libFuzzer exits at a finding.

    Returns the number of inputs, the path of the finding, and its reason, or "" if there is none.
    """
    corpus = findings / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    command = [sys.executable, "-m", "stress.fuzz.atheris", name, str(seconds), str(findings)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    printed = done.stdout.decode(errors="replace")
    tried = re.findall(r"number_of_executed_units: (\d+)", printed)
    tried = tried or re.findall(r"^#(\d+)", printed, re.MULTILINE)
    written = re.findall(r"Test unit written to (\S+)", printed)
    why = ""
    if done.returncode or written:
        why = [printed[-500:], *_REASON.findall(printed)][-1]
    return int(tried[-1]) if tried else 0, Path(written[-1]) if written else findings, why


def main(name: str, seconds: str, findings: str) -> None:
    """Fuzz a target in this process. Does not return, because libFuzzer exits the process."""
    import atheris

    with atheris.instrument_imports(include=["cloudload"]):
        import cloudload.cli
        import cloudload.loader
        import cloudload.provenance  # noqa: F401 - everything is instrumented
        from stress.fuzz.engine import check
        from stress.fuzz.targets import TARGETS
    target = TARGETS[name]
    target.prepare()
    arguments = [
        f"-max_total_time={seconds}",
        f"-timeout={MAX_SECONDS}",
        "-rss_limit_mb=6000",
        f"-max_len={MAX_INPUT_BYTES}",
        "-print_final_stats=1",
        f"-artifact_prefix={findings}/{name}-",
        f"{findings}/corpus/{name}",
    ]
    atheris.Setup([sys.argv[0], *arguments], lambda data: check(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
