#!/usr/bin/env python3
"""Whole runs of the program: what a person relies on from the command line.

usage: end_to_end_test.py TILEFOLD [MPIEXEC] [unittest arguments]
"""
import json
import os
import signal
import struct
import subprocess
import time
import unittest

from program import COPY, GPT2, MPIEXEC, TILEFOLD, ProgramTest, losses, metrics


def runs(pid):
    """Whether a process is there and not just its exit status."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Runs(ProgramTest):
    def test_resume_continues_with_the_same_bits(self):
        for style, text in (("llama", COPY), ("gpt2", GPT2)):
            with self.subTest(style):
                config = self.write(f"{style}.yaml", text)
                whole, _ = self.train(config, f"{style}-whole")
                half, _ = self.train(config, f"{style}-half", "--set", "train.steps=20")
                # Back to step 10, as a run killed after it would have left things.
                for step in (15, 20):
                    os.remove(os.path.join(half, "checkpoints", f"step-{step:08d}.h5"))
                _, done = self.train(config, f"{style}-half", "--resume")
                self.assertIn("after step 10", done.stderr)
                self.assertEqual(losses(whole), losses(half))
                self.assertSameState(whole, half, 20)

    def test_a_signal_saves_and_resume_goes_on(self):
        text = COPY.replace("steps: 20", "steps: 400").replace("every: 5", "every: 0")
        config = self.write("long.yaml", text)
        whole, _ = self.train(config, "whole")
        out = self.path("stopped")
        run = subprocess.Popen([TILEFOLD, "train", config, "--set", f"run.out={out}"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.time() + 60
        while time.time() < deadline:
            if os.path.exists(os.path.join(out, "metrics.jsonl")) and len(losses(out)) >= 3:
                break
            time.sleep(0.01)
        run.send_signal(signal.SIGTERM)
        _, err = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 128 + signal.SIGTERM, err)
        self.assertIn(b"--resume", err)
        self.train(config, "stopped", "--resume")
        self.assertEqual(losses(whole), losses(out))
        self.assertSameState(whole, out, 400)

    def test_threads_do_not_change_bits(self):
        config = self.write("c.yaml", COPY)
        one, _ = self.train(config, "one", "--set", "run.threads=1")
        three, _ = self.train(config, "three", "--set", "run.threads=3")
        self.assertEqual(losses(one), losses(three))
        self.assertSameState(one, three, 20)

    def test_another_micro_batch_gives_the_same_losses(self):
        config = self.write("c.yaml", COPY)
        a, _ = self.train(config, "a")
        b, _ = self.train(config, "b", "--set", "train.micro_batch=8")
        for (step, x, _), (_, y, _) in zip(losses(a), losses(b)):
            self.assertLessEqual(abs(x - y), 1e-5 * abs(x), f"step {step}")

    @unittest.skipUnless(MPIEXEC, "no mpiexec was given")
    def test_ranks_give_the_losses_of_one(self):
        for style, text in (("llama", COPY), ("gpt2", GPT2)):
            with self.subTest(style):
                config = self.write(f"{style}.yaml", text.replace("threads: 2", "threads: 1"))
                one, _ = self.train(config, f"{style}-1")
                # Each save compares the ranks' weights, bit by bit.
                ranks = 8 if style == "llama" else 4
                four, _ = self.train(config, f"{style}-4", ranks=ranks)
                self.assertEqual(len(losses(one)), 20)
                for (step, x, _), (_, y, _) in zip(losses(one), losses(four)):
                    self.assertLessEqual(abs(x - y), 1e-5 * abs(x), f"step {step}")
                again, _ = self.train(config, f"{style}-4-again", ranks=ranks)
                self.assertEqual(losses(four), losses(again))
                self.assertSameState(four, again, 20)

    @unittest.skipUnless(MPIEXEC, "no mpiexec was given")
    def test_a_rank_that_is_killed_or_stopped_ends_the_run_by_name(self):
        config = self.write("c.yaml", COPY.replace("steps: 20", "steps: 1000000").replace(
            "threads: 2", "threads: 1").replace("every: 5", "every: 0").replace("eval_every: 10", "eval_every: 0"))
        env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   TILEFOLD_HEARTBEAT="4")
        for how in (signal.SIGKILL, signal.SIGSTOP):
            with self.subTest(how.name):
                out = self.path(how.name)
                job = subprocess.Popen(
                    [MPIEXEC, "--oversubscribe", "--bind-to", "none", "-np", "4", TILEFOLD, "train", config,
                     "--set", f"run.out={out}"],
                    env=env, cwd=self.dir, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                self.addCleanup(job.kill)
                lines = os.path.join(out, "metrics.jsonl")
                end = time.monotonic() + 30
                while time.monotonic() < end and not (os.path.exists(lines) and os.path.getsize(lines) > 500):
                    time.sleep(0.1)
                ranks = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True,
                                       text=True).stdout.split()
                self.assertEqual(len(ranks), 4)
                start = time.monotonic()
                os.kill(int(ranks[-1]), how)
                said, _ = job.communicate(timeout=60)
                self.assertLess(time.monotonic() - start, 30)
                self.assertNotEqual(job.returncode, 0)
                self.assertRegex(said, r"tilefold: rank \d of 4: rank \d on|mpirun noticed that process rank \d")
                while any(map(runs, ranks)) and time.monotonic() - start < 30:
                    time.sleep(0.1)  # the launcher may be gone before its last rank
                self.assertFalse(any(map(runs, ranks)), "a process stayed behind")

    @unittest.skipUnless(MPIEXEC, "no mpiexec was given")
    def test_optimizer_state_shared_out_over_ranks(self):
        """The losses of the whole one, its memory over the ranks, and checkpoints that are whole."""
        shard = ("--set", "parallel.shard_optimizer=true")
        for dtype in ("f32", "bf16"):
            with self.subTest(dtype):
                config = self.write(f"{dtype}.yaml", COPY.replace("threads: 2", "threads: 1").replace(
                    "vocab: 40", f"vocab: 40, dtype: {dtype}"))
                whole, _ = self.train(config, f"{dtype}-whole", ranks=2)
                parts, _ = self.train(config, f"{dtype}-parts", *shard, ranks=2)
                again, _ = self.train(config, f"{dtype}-again", *shard, ranks=2)
                self.assertEqual(losses(parts), losses(again))
                self.assertSameState(parts, again, 20)
                for (step, x, _), (_, y, _) in zip(losses(whole), losses(parts)):
                    self.assertLessEqual(abs(x - y), 1e-5 * abs(x), f"step {step}")
                kinds = []
                for out in (whole, parts):
                    with open(os.path.join(out, "memory.json")) as f:
                        memory = json.load(f)
                    self.assertEqual(memory["totals"]["predicted"], memory["totals"]["measured"])
                    kinds.append(memory["kinds"]["optimizer"])
                self.assertAlmostEqual(kinds[1] / kinds[0], 0.5, delta=0.01)
                # Back to step 10, with another number of ranks and the state whole; and the same again.
                for out, args, ranks in ((parts, (), 1), (again, shard, 2)):
                    for step in (15, 20):
                        os.remove(os.path.join(out, "checkpoints", f"step-{step:08d}.h5"))
                    _, done = self.train(config, os.path.basename(out), "--resume", *args, ranks=ranks)
                    self.assertIn("after step 10", done.stderr)
                    self.assertLessEqual(abs(losses(out)[-1][1] - losses(whole)[-1][1]),
                                         1e-5 * losses(whole)[-1][1])
        _, done = self.train(self.path("f32.yaml"), "odd", *shard, "--set", "model.width=36",
                             ranks=2, status=2)
        self.assertIn("do not divide over 2 ranks", done.stderr)

    @unittest.skipUnless(MPIEXEC, "no mpiexec was given")
    def test_ranks_that_do_not_divide_are_refused_once(self):
        config = self.write("c.yaml", COPY)
        _, done = self.train(config, "x", ranks=3, status=2)
        self.assertEqual(done.stderr.count("global_batch"), 1, done.stderr)

    def test_measured_memory_is_the_plan(self):
        config = self.write("c.yaml", COPY)
        for check in ("false", "true"):
            setting = ("--set", f"memory.check={check}")
            out, done = self.train(config, f"check-{check}", *setting)
            with open(os.path.join(out, "memory.json")) as f:
                memory = json.load(f)
            plan = json.loads(self.run_program("plan", config, "--json", *setting).stdout)
            self.assertEqual(memory["totals"]["predicted"], memory["totals"]["measured"])
            self.assertEqual(memory["totals"]["predicted"], plan["arena_bytes"])
            self.assertEqual(sum(plan["totals"].values()), plan["arena_bytes"])
            self.assertEqual(memory["layers"], plan["layers"])
            # Threads' stacks, BLAS buffers and batches: something, but not an arena's worth.
            self.assertGreater(memory["process"]["outside_arenas"], 0)
            self.assertLess(memory["process"]["outside_arenas"], 50 << 20)
            self.assertNotIn("never written", done.stdout)

    def test_packed_documents_are_planned_as_the_data_has_them(self):
        # Documents of 10 to 29 tokens, each ending with 0: 7 at most in 64.
        tokens, length = [], 10
        while len(tokens) < 4000:
            tokens += [1 + (len(tokens) + i) % 30 for i in range(length - 1)] + [0]
            length = 10 + (length * 7) % 20
        with open(self.path("t.bin"), "wb") as f:
            f.write(struct.pack(f"<{len(tokens)}H", *tokens))
        config = self.write("c.yaml", COPY.replace(
            "kind: copy, symbols: 16", f"kind: tokens, path: {self.path('t.bin')}, end_of_document: 0"))
        for check in ("false", "true"):
            setting = ("--set", f"memory.check={check}", "--set", "train.steps=6")
            out, done = self.train(config, f"check-{check}", *setting)
            with open(os.path.join(out, "memory.json")) as f:
                memory = json.load(f)["totals"]
            planned = self.run_program("plan", config, "--json", *setting)
            self.assertEqual(memory["predicted"], memory["measured"])
            self.assertEqual(memory["predicted"], json.loads(planned.stdout)["arena_bytes"])
            self.assertNotIn("planned for as many documents", planned.stderr)
            self.assertNotIn("never written", done.stdout)
            unread = self.run_program("plan", config, "--json", *setting, "--set", "data.path=none.bin")
            self.assertIn("planned for as many documents as tokens", unread.stderr)
            self.assertIn("none.bin", unread.stderr)
            self.assertLess(memory["predicted"], json.loads(unread.stdout)["arena_bytes"])
        self.assertIn("the same bits", self.run_program("checkpoint", "verify", out, "--device", "cpu").stdout)
        last = [m for m in metrics(out) if "val_loss" in m][-1]
        evaluated = json.loads(self.run_program("eval", out, "--json", "--batch", "3").stdout)
        self.assertAlmostEqual(evaluated["val_loss"], last["val_loss"], places=5)
        # Data of more documents is evaluated, and a run goes on with it.
        with open(self.path("short.bin"), "wb") as f:
            f.write(struct.pack("<4000H", *(i % 3 for i in range(4000))))
        other = ("--set", f"data.path={self.path('short.bin')}")
        self.run_program("eval", out, *other)
        self.train(config, "check-true", "--resume", "--set", "train.steps=8", *other)

    def test_an_existing_run_is_refused_kept_or_replaced(self):
        config = self.write("c.yaml", COPY.replace("steps: 20", "steps: 5"))
        out, _ = self.train(config, "run")
        before = losses(out)
        _, done = self.train(config, "run", status=2)
        for word in ("--resume", "--overwrite"):
            self.assertIn(word, done.stderr)
        self.train(config, "run", "--resume")
        self.assertEqual(before, losses(out))
        self.train(config, "run", "--overwrite")
        self.assertEqual(before, losses(out))

    def test_a_resume_with_another_model_is_refused(self):
        config = self.write("c.yaml", COPY.replace("steps: 20", "steps: 5"))
        self.train(config, "run")
        _, done = self.train(config, "run", "--resume", "--set", "model.ffn_width=128", status=2)
        self.assertIn("model.ffn_width", done.stderr)

    def test_a_damaged_checkpoint_is_passed_over(self):
        config = self.write("c.yaml", COPY)
        out, _ = self.train(config, "run")
        whole = losses(out)
        newest = os.path.join(out, "checkpoints", "step-00000020.h5")
        with open(newest, "r+b") as f:
            f.truncate(os.path.getsize(newest) // 2)
        _, done = self.train(config, "run", "--resume")
        self.assertIn("damaged", done.stderr)
        self.assertIn("after step 15", done.stderr)
        self.assertEqual(whole, losses(out))

    def test_eval_generate_inspect_and_verify_read_a_checkpoint(self):
        config = self.write("c.yaml", COPY)
        out, _ = self.train(config, "run")
        evaluated = json.loads(self.run_program("eval", out, "--json").stdout)
        last = [m for m in metrics(out) if "val_loss" in m][-1]
        self.assertAlmostEqual(evaluated["val_loss"], last["val_loss"], places=6)
        text = [self.run_program("generate", out, "--prompt", "1 2 3", "--tokens", "8", "--greedy")
                .stdout for _ in range(2)]
        self.assertEqual(text[0], text[1])
        self.assertEqual(len(text[0].split()), 11)
        self.run_program("generate", out, "--prompt", "1 2 3", "--tokens", "80", status=2)
        self.assertIn("step 20", self.run_program("checkpoint", "inspect", out).stdout)
        verified = self.run_program("checkpoint", "verify", out, "--device", "cpu")
        self.assertIn("the same bits", verified.stdout)

    def test_16_bit_weights_are_read_without_their_masters(self):
        config = self.write("c.yaml", COPY)
        out, _ = self.train(config, "run", "--set", "model.dtype=bf16")
        evaluated = json.loads(self.run_program("eval", out, "--json").stdout)
        last = [m for m in metrics(out) if "val_loss" in m][-1]
        self.assertEqual(evaluated["val_loss"], last["val_loss"])
        self.run_program("generate", out, "--prompt", "1 2 3", "--tokens", "8", "--greedy")
        verified = self.run_program("checkpoint", "verify", out, "--device", "cpu")
        self.assertIn("the same bits", verified.stdout)

    def test_a_plan_over_the_limit_is_refused_by_name(self):
        config = self.write("c.yaml", COPY.replace("context: 64", "context: 4096"))
        _, done = self.train(config, "n", "--set", "attention.strategy=naive", "--set",
                             "memory.limit=64MiB", status=1)
        self.assertRegex(done.stderr, r"layer \d")
        self.assertNotIn("step", done.stdout)

    def test_a_diverging_run_stops_with_its_weights_kept(self):
        config = self.write("c.yaml", COPY)
        _, done = self.train(config, "d", "--set", "train.lr=1e30", "--set", "train.min_lr=1e30",
                             "--set", "train.clip=0", status=1)
        self.assertIn("not both finite", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
