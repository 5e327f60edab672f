"""What the rollout server remembers over a restart: an SQLite file with one writer."""

from osmosis_server.journal.journal import Journal, JournalFull, Numbered
from osmosis_server.journal.rows import Admission, Ending, Outstanding, Purged, Stored, Unfinished

__all__ = [
    "Admission",
    "Ending",
    "Journal",
    "JournalFull",
    "Numbered",
    "Outstanding",
    "Purged",
    "Stored",
    "Unfinished",
]
