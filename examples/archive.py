"""Compress files with LZMA: CPU-heavy work with arguments, limits, retries and a result.

pgsched migrate
pgsched run examples.archive:app --processes 4
python -m examples.archive DIRECTORY
"""

import lzma
import os
import sys
from pathlib import Path

from pgsched import App, Retry, current_task

CHUNK = 1 << 20

app = App()


@app.task(timeout=60, memory="512MiB", retry=Retry(max=5, base=2, cap=600))
def compress(path: str, preset: int = 6) -> dict[str, int]:
    """Write PATH.xz beside a file, and tell how many bytes went in and came out.

    It may run more than once for a file, because a machine can fail at any moment. So it writes under a name that
    belongs to this execution alone, and renames at the end: nobody ever sees half a file.
    """
    task = current_task()
    source, target = Path(path), Path(f"{path}.xz")
    unfinished = Path(f"{target}.{task.id}-{task.fence}")
    compressor = lzma.LZMACompressor(preset=preset)
    bytes_in = bytes_out = 0
    try:
        with source.open("rb") as reader, unfinished.open("wb") as writer:
            while chunk := reader.read(CHUNK):
                bytes_in += len(chunk)
                bytes_out += writer.write(compressor.compress(chunk))
            bytes_out += writer.write(compressor.flush())
            writer.flush()
            os.fsync(writer.fileno())
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return {"in": bytes_in, "out": bytes_out}


def main() -> None:
    """Enqueue one task for each file of a directory."""
    files = sorted(file for file in Path(sys.argv[1]).resolve().iterdir() if file.is_file() and file.suffix != ".xz")
    ids = compress.enqueue_many({"path": str(file), "preset": 9} for file in files)
    print(f"enqueued {len(ids)} tasks")


if __name__ == "__main__":
    main()
