"""Sample ids: a name as a key and header value (contract: injective, ASCII, at most 256)."""

import re
import urllib.parse

from osmosis_core.errors import SampleError

MAIN_SAMPLE = "main"
"""Sample id of calls that no agent scope claims."""

_MAX_LENGTH = 256
_ENCODED = re.compile(r"(?:[A-Za-z0-9._~-]|%[0-9A-F]{2})+")


def encode_sample_id(name: str) -> str:
    """The name's UTF-8 percent-encoding; one beyond 256 characters ends in its SHA-256.

    Raises:
        SampleError: the name is empty.
    """
    if not name:
        raise SampleError("a sample id is empty; give the agent a name")
    key = urllib.parse.quote(name, safe="", errors="surrogatepass")
    if len(key) <= _MAX_LENGTH:
        return key
    import hashlib

    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    readable = re.sub("%[0-9A-F]?$", "", key[: _MAX_LENGTH - len(digest) - 1])
    return f"{readable}~{digest}"


def sample_key(name_or_id: str) -> str:
    """The id itself if it is one already, else the name encoded."""
    is_id = len(name_or_id) <= _MAX_LENGTH and _ENCODED.fullmatch(name_or_id)
    return name_or_id if is_id else encode_sample_id(name_or_id)
