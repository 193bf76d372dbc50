"""A stored file whose bytes stay while somebody needs them, whoever deletes the file."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack, aclosing

from inferd.storage.files import Blobs, FileRow


class KeptFile:
    """Made by `FileStore.keep`. What outlives the process without a row is the sweep's."""

    def __init__(
        self,
        file: FileRow,
        stream: Callable[[Blobs, int, int], AsyncGenerator[bytes]],
        use: AbstractContextManager[None],
    ) -> None:
        self.purpose = file.purpose
        self._file = file
        self._stream = stream
        self._use = ExitStack()
        self._use.enter_context(use)

    async def read(self) -> AsyncIterator[bytes]:
        """From first to last. Raises FileStoreError."""
        file = self._file
        async with aclosing(self._stream(file.blobs, 0, file.bytes)) as pieces:
            async for data in pieces:
                yield data

    def let_go(self) -> None:
        """Again is the same as once."""
        self._use.close()
