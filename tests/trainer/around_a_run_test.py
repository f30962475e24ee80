#!/usr/bin/env python3
"""What goes wrong around a run: another run, streams that are closed or full, leftovers, other data.

usage: around_a_run_test.py TILEFOLD [MPIEXEC] [unittest arguments]
"""
import os
import random
import signal
import subprocess
import time
import unittest

from program import COPY, MPIEXEC, TILEFOLD, ProgramTest, losses, metrics

SHORT = COPY.replace("steps: 20", "steps: 6").replace("every: 5", "every: 2")


class AroundARun(ProgramTest):
    def start_long_run(self, name, **streams):
        """A run that goes on until it is stopped, past its third step."""
        config = self.write(f"{name}.yaml", COPY.replace("steps: 20", "steps: 1000000"))
        out = self.path(name)
        run = subprocess.Popen([TILEFOLD, "train", config, "--set", f"run.out={out}"], **streams)
        self.addCleanup(run.kill)
        deadline = time.time() + 60
        while time.time() < deadline:
            if os.path.exists(os.path.join(out, "metrics.jsonl")) and len(losses(out)) >= 3:
                return config, out, run
            time.sleep(0.01)
        self.fail("the run did not start")

    def files(self, out):
        return sorted(os.path.relpath(os.path.join(at, name), out)
                      for at, _, names in os.walk(out) for name in names)

    def test_a_running_run_is_not_overwritten(self):
        quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        config, out, run = self.start_long_run("busy", **quiet)
        for flag in ("--overwrite", "--resume"):
            _, done = self.train(config, "busy", flag, status=1)
            self.assertIn("in use by another run", done.stderr)
        before = len(losses(out))
        self.assertGreaterEqual(before, 3)
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(60), 128 + signal.SIGTERM)
        self.assertGreaterEqual(len(losses(out)), before)
        self.run_program("checkpoint", "inspect", out)

    def test_a_reader_of_the_messages_that_goes_away_does_not_end_the_run(self):
        _, out, run = self.start_long_run("deaf", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        run.stderr.close()
        seen = len(losses(out))
        time.sleep(1.5)  # more than the gap between two lines of progress
        self.assertIsNone(run.poll())
        self.assertGreater(len(losses(out)), seen)
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(60), 128 + signal.SIGINT)
        self.run_program("checkpoint", "verify", out)

    def shell(self, command, status):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=self.dir)
        self.assertEqual(done.returncode, status, f"{command}\n{done.stdout}\n{done.stderr}")
        return done

    def test_closed_and_full_streams(self):
        config = self.write("c.yaml", SHORT)
        whole, _ = self.train(config, "whole")
        for number, (streams, status) in enumerate(
            [("2>&-", 0), ("2>/dev/full", 0), (">&-", 1), (">/dev/full", 1), ("<&- >&- 2>&-", 1)]):
            with self.subTest(streams):
                out = self.path(f"run{number}")
                self.shell(f"exec {TILEFOLD} train {config} --set run.out={out} {streams}", status)
                self.assertEqual(self.files(whole), self.files(out))
                self.assertEqual(losses(whole), losses(out))
                self.assertEqual(os.path.getsize(os.path.join(out, "checkpoints", "lock")), 0)
                self.assertSameState(whole, out, 6)
        for command in (f"plan {config}", f"eval {whole}", "doctor", "--help", "--help-config",
                        f"checkpoint inspect {whole}", "attention explain --seq 9"):
            for streams in (">/dev/full", ">&-"):
                with self.subTest(command + streams):
                    self.shell(f"exec {TILEFOLD} {command} {streams}", 1)

    def test_leftovers_of_a_killed_run_are_removed_and_other_files_kept(self):
        config = self.write("c.yaml", SHORT)
        out, _ = self.train(config, "run")
        for name in ("checkpoints/step-00000006.h5.77.partial", "config.yaml.78.partial"):
            self.write(os.path.join(out, name), "half")
        kept = ["mine.partial", "checkpoints/notes.txt"]
        for name in kept:
            self.write(os.path.join(out, name), "mine")
        for flag in ("--resume", "--overwrite"):
            self.train(config, "run", flag)
            self.assertEqual(self.files(out), sorted(kept + [
                "checkpoints/lock", "config.yaml", "memory.json", "metrics.jsonl"] + [
                f"checkpoints/step-{step:08d}.h5" for step in (2, 4, 6)]))

    def test_a_run_taken_up_after_its_end(self):
        config = self.write("c.yaml", SHORT)
        out, _ = self.train(config, "run")
        before = metrics(out)
        self.train(config, "run", "--resume")
        self.assertEqual(before, metrics(out))
        _, done = self.train(config, "run", "--resume", "--set", "train.steps=5", status=2)
        self.assertIn("is after step 6, train.steps is 5", done.stderr)
        self.assertEqual(before, metrics(out))

    def test_places_that_cannot_hold_a_run_are_named(self):
        config = self.write("c.yaml", SHORT)
        for out in (config, os.path.join(config, "x"), "/dev/null", "/proc/x"):
            done = self.run_program("train", config, "--set", f"run.out={out}", status=1)
            self.assertIn("run.out: " + out, done.stderr)

    def test_characters_keep_their_ids(self):
        random.seed(1)
        for name in ("abcd", "bcd", "wxyz"):
            self.write(name, "".join(random.choice(name) for _ in range(8000)))
        config = self.write("c.yaml", SHORT.replace("kind: copy, symbols: 16", "kind: text, "
                            f"unit: characters, path: {self.path('abcd')}").replace("40", "0"))
        out, _ = self.train(config, "run")
        self.run_program("eval", out, "--set", f"data.path={self.path('bcd')}")
        done = self.run_program("eval", out, "--set", f"data.path={self.path('wxyz')}", status=1)
        self.assertIn("not among the 4 characters", done.stderr)
        done = self.run_program("eval", out, "--set", "data.unit=bytes", status=2)
        self.assertIn("trained on characters", done.stderr)
        _, done = self.train(config, "run", "--resume", "--set", f"data.path={self.path('wxyz')}",
                             status=2)
        self.assertIn("other token ids", done.stderr)

    @unittest.skipIf(os.geteuid() == 0, "root may read everything")
    def test_a_checkpoint_that_may_not_be_read_is_not_called_damaged(self):
        config = self.write("c.yaml", SHORT)
        out, _ = self.train(config, "run")
        for name in os.listdir(os.path.join(out, "checkpoints")):
            os.chmod(os.path.join(out, "checkpoints", name), 0)
        done = self.run_program("eval", out, status=1)
        self.assertIn("Permission denied", done.stderr)
        self.assertNotIn("damaged", done.stderr)

    def test_the_number_of_keys_read_is_printed(self):
        config = self.write("c.yaml", "train: {steps: 2, warmup_steps: 1}\nmodel: {context: 64}\n")
        done = self.run_program("plan", config, "--set", "model.layers=1")
        self.assertIn("c.yaml: 4 keys read", done.stderr)

    @unittest.skipUnless(MPIEXEC, "no mpiexec was given")
    def test_ranks_that_are_refused_leave_with_one_line(self):
        config = self.write("c.yaml", SHORT)
        self.train(config, "run")
        _, done = self.train(config, "run", ranks=2, status=2)
        self.assertEqual(done.stderr.count("tilefold:"), 1, done.stderr)
        self.assertIn("already holds a run", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
