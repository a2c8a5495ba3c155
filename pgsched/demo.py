"""The App of ``pgsched demo``: one task that compresses a file and tells how it went.

Imported by workers, like any user's module.
"""

import lzma
import time

from pgsched.app import App
from pgsched.model import Retry

CHUNK = 1 << 20
"""Bytes read at once, so that a large file needs no more memory than a small one."""

app = App()


@app.task(name="pgsched.demo.compress", timeout=600, retry=Retry(max=1))
def compress(path: str, preset: int = 3) -> dict[str, float]:
    """Compress a file with LZMA and throw the outcome away.

    :return: ``bytes_in``, ``bytes_out`` and ``cpu_seconds``.
    """
    started = time.process_time()
    compressor = lzma.LZMACompressor(preset=preset)
    bytes_in = bytes_out = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            bytes_in += len(chunk)
            bytes_out += len(compressor.compress(chunk))
    bytes_out += len(compressor.flush())
    return {"bytes_in": bytes_in, "bytes_out": bytes_out, "cpu_seconds": time.process_time() - started}
