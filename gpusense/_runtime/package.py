"""What this package is called and where it lies, also as a copy inside another one."""

import os

NAME = __name__.rpartition("._runtime")[0]
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
