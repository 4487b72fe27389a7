"""Scripts of the page: values under the pointer, tabs, strategies off and on, tables, reloading.

All essentials are on the page without it. It only ever writes text into the page, never markup, and
the page lets no other script run. It is kept in Python for an app bundle takes no other files.
"""

from corsage.app.report.scripts.basics import BASICS, RELOADING
from corsage.app.report.scripts.pointer import POINTER
from corsage.app.report.scripts.sorting import SORTS, TABLE
from corsage.app.report.scripts.toggles import TOGGLES

SCRIPT = '"use strict";\n{\n' + RELOADING + BASICS + TOGGLES + POINTER + TABLE + SORTS + "}\n"
