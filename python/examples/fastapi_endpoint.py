"""A FastAPI endpoint under a lock."""

from typing import Any, Dict

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

import tenure

locks = tenure.connect()
app = FastAPI()


async def close_account(account: str, token: int) -> Dict[str, int]:
    """The work. What it writes to refuses an earlier token than it has seen."""
    return {"closed_under": token}


@app.post("/accounts/{account}/close")
async def close(account: str) -> Dict[str, int]:
    # A second request is refused at once; a lost lease cancels the block.
    async with locks.mutex(f"account/{account}", ttl=10, wait=0) as lease:
        return await close_account(account, lease.token)


@app.exception_handler(tenure.Timeout)
async def busy(request: Request, error: Any) -> JSONResponse:
    return JSONResponse({"error": "somebody else is at work on it"}, status_code=409)


@app.exception_handler(tenure.Unavailable)
async def away(request: Request, error: Any) -> JSONResponse:
    return JSONResponse({"error": "try again soon"}, status_code=503)
