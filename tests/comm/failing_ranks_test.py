"""One rank fails in some way: all end, with a non-zero status and a reason, within 30 seconds.

usage: failing_ranks_test.py MPIRUN RANKS_PROGRAM
"""
import os
import subprocess
import sys
import time
import unittest

MPIRUN, PROGRAM = sys.argv[1:3]


def run(command, **variables):
    start = time.monotonic()
    result = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True,
                            timeout=60)
    return result, time.monotonic() - start


class FailingRanks(unittest.TestCase):
    def check(self, how, message, rank="1", **variables):
        """`message`: a text to be found, or several of which one must be."""
        result, seconds = run([MPIRUN, "-np", "4", PROGRAM, how, rank], **variables)
        self.assertNotEqual(result.returncode, 0, how)
        self.assertLess(seconds, 30, how)
        texts = (message,) if isinstance(message, str) else message
        said = result.stdout + result.stderr
        self.assertTrue(any(text in said for text in texts), said)

    def test_exception(self):
        self.check("throw", "rank 1 of 4: planted failure")

    def test_exception_that_nobody_catches_in_time(self):
        self.check("unwind", "stopped by an exception, while others go on")

    def test_an_exception_on_all_ranks_needs_no_abort(self):
        result, seconds = run([MPIRUN, "-np", "4", PROGRAM, "leave"])
        self.assertEqual(result.returncode, 7)
        self.assertLess(seconds, 30)
        self.assertNotIn("ending all ranks", result.stderr)

    def test_exit(self):
        self.check("exit", "")

    def test_a_stopped_rank_is_named(self):
        for rank in ("0", "1"):  # whom all listen to, and one of those that it listens to
            self.check("stop", f"rank {rank} on {os.uname().nodename} is silent for 15 s", rank=rank)

    def test_a_killed_rank_is_named(self):
        for rank in ("0", "3"):
            self.check("kill", rank=rank, message=(
                f"rank {rank} on {os.uname().nodename} ended without a word",
                f"process rank {rank} "))

    def test_a_busy_rank_is_not_taken_for_a_stopped_one(self):
        result, _ = run([MPIRUN, "-np", "4", PROGRAM, "busy"], TILEFOLD_HEARTBEAT="3")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_rank_that_goes_on_in_time_is_no_fault(self):
        result, _ = run([MPIRUN, "-np", "4", PROGRAM, "pause"], TILEFOLD_HEARTBEAT="8")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_without_the_heartbeat_the_limit_of_a_wait_holds(self):
        self.check("stop", "no answer from other ranks for 2 s: a sum of gradients",
                   TILEFOLD_COMM_TIMEOUT="2", TILEFOLD_HEARTBEAT="0")

    def test_a_bad_heartbeat_is_refused(self):
        self.check("check", "TILEFOLD_HEARTBEAT is '1', not a number", TILEFOLD_HEARTBEAT="1")

    def test_a_rank_that_makes_another_call(self):
        self.check("skip", "no answer from other ranks for 2 s", TILEFOLD_COMM_TIMEOUT="2")

    def test_a_bad_limit_is_refused(self):
        self.check("check", "TILEFOLD_COMM_TIMEOUT is 'soon'", TILEFOLD_COMM_TIMEOUT="soon")

    def test_launcher_of_another_mpi(self):
        result, _ = run([PROGRAM, "check"], PMI_SIZE="3")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("started 3 ranks", result.stderr)
        self.assertIn("sees 1", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
