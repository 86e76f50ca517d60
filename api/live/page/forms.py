"""Bodies of forms, which are small and have to arrive soon."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

_MOST_BYTES: Final = 4096
_WITHIN_S: Final = 10.0


async def form_body(request: Request) -> bytes:
    """Return the body of a form.

    Raises
    ------
    HTTPException
        If it is too large, or does not arrive in time or as a whole.
    """
    body = b""
    try:
        async with asyncio.timeout(_WITHIN_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _MOST_BYTES:
                    raise HTTPException(413, f"a form has at most {_MOST_BYTES} bytes")
    except TimeoutError:
        raise HTTPException(408, f"a form must arrive within {_WITHIN_S:g} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the form broke off") from None
    return body
