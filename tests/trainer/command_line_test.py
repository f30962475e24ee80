#!/usr/bin/env python3
"""Command lines at the edges: each ends with its status, in time, and with one short line.

usage: command_line_test.py TILEFOLD [MPIEXEC] [unittest arguments]
"""
import os
import unittest

from program import COPY, ProgramTest

HUGE = str(2**32)
MOST = str(2**63 - 1)


class CommandLines(ProgramTest):
    def refused(self, *args, status=2, says=""):
        with self.subTest(" ".join(args)):
            done = self.run_program(*args, status=status)
            lines = [x for x in done.stderr.splitlines() if x.startswith("tilefold: ")]
            self.assertEqual(len(lines), 1, done.stderr)
            self.assertLess(len(lines[0]), 400)
            self.assertIn(says, lines[0])

    def test_attention(self):
        for huge in (["--seq", str(2**40), "--strategy", "naive"],
                     ["--seq", str(2**40), "--batch", str(2**40), "--heads", str(2**40)]):
            self.refused("attention", "explain", "--device", "cpu", *huge, says="beyond every memory")
            self.refused("attention", "explain", "--device", "h200", *huge, says="up to 2^30")
        for command in ("explain", "bench"):
            self.refused("attention", command, "--seq", "64", "--heads", "3", "--kv-heads", "2",
                         says="divisor of --heads 3")
            self.refused("attention", command, "--seq", "0", says="--seq")
            self.refused("attention", command, "--seq", "8", "--d", "257", says="--d")
            self.refused("attention", command, "--seq", "8", "--window", "-2", "0", says="--window")

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "this machine has an NVIDIA driver")
    def test_a_gpu_where_there_is_none(self):
        config = self.write("c.yaml", COPY)
        for command in (["train", config, "--set", "run.device=cuda"],
                        ["attention", "bench", "--seq", "64", "--device", "cuda"],
                        ["attention", "explain", "--seq", "64", "--device", "cuda"]):
            self.refused(*command, says="no NVIDIA driver was found on this machine; device cpu works")

    def test_plans_beyond_every_memory(self):
        config = self.write("c.yaml", COPY)
        size = ["--set", f"model.context={HUGE}"]
        done = self.run_program("plan", config, *size)
        self.assertIn("with naive attention the scores are larger than every memory", done.stdout)
        self.refused("plan", config, *size, "--set", "attention.strategy=naive", says="every memory")
        self.refused("train", config, *size, "--set", "attention.strategy=naive", says="every memory")
        self.refused("train", config, *size, status=1, says="does not fit")
        batch = ["--set", f"train.micro_batch={2**30}", "--set", f"train.global_batch={2**30}"]
        self.refused("plan", config, *batch, says="train.micro_batch")
        self.refused("plan", config, "--set", "model.layers=1000", "--set", "model.width=1048576",
                     "--set", "model.heads=8192", "--set", "model.kv_heads=8192", "--set",
                     "model.ffn_width=16777216", *size, says="than every memory")

    def test_a_trained_model(self):
        config = self.write("c.yaml", COPY.replace("steps: 20", "steps: 4"))
        out, _ = self.train(config, "run")
        generate = ("generate", out, "--prompt", "1 2")
        for tokens in ("0", "-1", MOST):
            self.refused(*generate, "--tokens", tokens, says="--tokens")
        self.refused(*generate, "--tokens", "63", says="62 tokens at most")
        self.refused("generate", out, "--prompt", "1 x", says="'x' at byte 2 is no token")
        self.refused("generate", out, "--prompt", "", says="--prompt is empty")
        self.refused("generate", out, "--prompt-file", self.dir, status=1, says="regular file")
        self.refused("generate", out, "--prompt-file", "/dev/zero", status=1, says="regular file")
        for batch in ("0", "-1", MOST):
            self.refused("eval", out, "--batch", batch, says="--batch")
        for threads in ("-1", "100000"):
            self.refused("checkpoint", "verify", out, "--threads", threads, says="--threads")

    def test_settings_files_without_an_end(self):
        for path in ("/dev/zero", "/proc/self/mem", "/", "/nonexistent"):
            self.refused("plan", path, says=path)


if __name__ == "__main__":
    unittest.main(verbosity=1)
