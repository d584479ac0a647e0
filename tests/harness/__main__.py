"""`./x test`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
sys.dont_write_bytecode = True

from harness.runner import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
