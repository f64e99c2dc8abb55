"""Children that answer, hang, die and fill their memory; the next request is answered all the same."""

import os
import subprocess
import sys

import pytest

from gear_rl.data.rewards.children import Children, children

ECHO = "data.echo:handler"


@pytest.fixture(autouse=True)
def path(monkeypatch):
    """A child finds the tests."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


@pytest.fixture
def pool():
    made = Children(ECHO, limit_s=1.0, most=2)
    yield made
    made.close()


def test_replies_come_in_order_from_several_processes_and_chatter_is_no_reply(pool):
    requests = [*range(16), "é\n\u2028", "\ud800", "\x00", ""]
    replies = pool.ask(requests)
    assert [reply["echo"] for reply in replies] == requests
    assert os.getpid() not in {reply["pid"] for reply in replies}


@pytest.mark.parametrize(
    ("request_", "failed"),
    [
        ({"power": 9}, "timeout"),
        ({"exit": 3}, "crash"),
        ({"raise": "no"}, "error"),
        ({"fill": 6 << 30}, "error"),
    ],
)
def test_a_failure_is_named_and_the_next_request_is_answered(pool, request_, failed):
    first, second, third = pool.ask(["a", request_, "b"])
    assert (first["echo"], third["echo"]) == ("a", "b")
    assert second["failed"] == failed
    # A child that answered for itself lives on; one that was lost is replaced.
    assert (first["pid"] == third["pid"]) == (failed == "error")


def test_the_limit_counts_processor_time(pool):
    """A busy machine takes no reward away: a child that waits for longer than the limit still answers."""
    assert pool.ask([{"sleep": 1.5}]) == [{"slept": 1.5}]


def test_a_training_script_is_not_run_again_and_its_children_end_with_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "print('began')\n"
        "from gear_rl.data.rewards.children import children\n"
        "print(children('data.echo:handler', limit_s=5.0, most=1).ask(['a'])[0]['pid'])\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    began, pid = done.stdout.split()
    assert began == "began"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_a_forked_process_has_children_of_its_own():
    pid = children(ECHO, limit_s=1.0, most=1).ask(["a"])[0]["pid"]
    read, write = os.pipe()
    forked = os.fork()
    if forked == 0:
        try:
            other = children(ECHO, limit_s=1.0, most=1).ask(["b"])[0]["pid"]
            os.write(write, str(other).encode())
        finally:
            os._exit(0)
    os.waitpid(forked, 0)
    assert int(os.read(read, 32)) != pid
    os.close(read)
    os.close(write)
    assert children(ECHO, limit_s=1.0, most=1).ask(["c"])[0] == {"echo": "c", "pid": pid}
