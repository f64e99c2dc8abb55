"""A method is a class, a line in the catalogue and a golden test: no page and no other test wants an entry.

What runs here are the tests of the catalogue, in a process of their own whose catalogue has three methods more.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from support.newcomers import NEWCOMERS

TESTS = Path(__file__).parent
FILES = (
    "test_contract.py",
    "test_types.py",
    "test_docs.py",
    "runs/test_config.py",
    "engines/test_method_settings.py",
    "engines/test_trl_groups.py",
    "engines/test_trl_losses.py",
)
CHOSEN = "newcomer_ or methods_page or catalogue or who_adds or only_an_even or differ_in_sign"


def test_no_page_and_no_test_wants_an_entry_for_a_new_method():
    words = ["-p", "support.with_newcomers", "-p", "no:cacheprovider", "-k", CHOSEN, "--no-header", "-rN"]
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *(str(TESTS / file) for file in FILES)],
        capture_output=True, text=True, check=False, cwd=TESTS.parent, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 20 * len(NEWCOMERS), "each of them goes through the whole contract"
