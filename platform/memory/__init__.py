"""Files whose bytes lie in memory alone, in huge pages where the system makes them.

Light processes import it, so that it imports only the standard library. What lies in the files does not belong here.
"""

from elastrec.platform.memory.pages import HUGE_PAGE_BYTES, AlignedMap, make_pages

__all__ = ["HUGE_PAGE_BYTES", "AlignedMap", "make_pages"]
