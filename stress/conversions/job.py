"""Convert on an executor that runs the segments in reverse order, or each one twice at once."""

from __future__ import annotations

import sys
from concurrent.futures import Executor

from cloudload.convert import convert_to_mds
from cloudload.errors import CloudloadError
from cloudload.tools.convert.outline import outline_conversion
from cloudload.tools.convert.output import list_sizes_at
from testkit.segments import SETTINGS, LastFirst, Twice


def main(source: str, out: str, rejects: str, splits: str, how: str) -> int:
    segments = outline_conversion(source, segment_bytes=SETTINGS["segment_bytes"]).segments
    notes = [name for name in list_sizes_at(f"{out}/.convert") if name.endswith(".done.json")]
    executor: Executor = Twice() if how == "twice" else LastFirst(segments - len(notes))
    options = SETTINGS | {"block_bytes": 8 << 20}
    try:
        convert_to_mds(
            source,
            out,
            splits=splits,
            skip_bad=True,
            rejects=rejects,
            executor=executor,
            **options,
        )
    except CloudloadError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
