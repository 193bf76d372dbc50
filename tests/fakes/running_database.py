"""A database with its writer running, as the application has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

from inferd.storage.database import Database

D = TypeVar("D", bound=Database)


@asynccontextmanager
async def running(opened: AbstractAsyncContextManager[D]) -> AsyncIterator[D]:
    async with opened as database, asyncio.TaskGroup() as group:
        writer = group.create_task(database.run())
        try:
            yield database
        finally:
            writer.cancel()
