"""Convert on an executor that runs the segments in reverse order, or each one twice at once."""

from __future__ import annotations

import sys
from concurrent.futures import Executor
from pathlib import Path

from cloudload.convert import convert_to_mds
from cloudload.data import Location
from cloudload.errors import CloudloadError
from cloudload.tools.convert.conversion_report import ConvertReport
from cloudload.tools.convert.dry_run import outline_conversion
from cloudload.tools.convert.output_location import list_sizes_at
from testkit.segments import SETTINGS, LastFirst, Twice

SPLITS = "train=0.8,val=0.2"


def convert(
    source: str | Path, out: str | Path, rejects: str | Path, executor: Executor | None = None
) -> ConvertReport:
    """Convert as all modes of the campaign do, in this process or on an executor."""
    options = SETTINGS | {"block_bytes": 8 << 20, "executor": executor}
    return convert_to_mds(source, out, splits=SPLITS, skip_bad=True, rejects=rejects, **options)


def main(source: str, out: str, rejects: str, mode: str) -> int:
    segments = outline_conversion(source, segment_bytes=SETTINGS["segment_bytes"]).segments
    done = [
        name for name in list_sizes_at(Location(f"{out}/.convert")) if name.endswith(".done.json")
    ]
    executor = Twice() if mode == "twice" else LastFirst(segments - len(done))
    try:
        convert(source, out, rejects, executor)
    except CloudloadError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
