"""Ranks on several hosts, which are one machine under two names: each its own launcher daemon, in a
namespace of its own, so that MPI, NCCL and the program take them for two and talk over TCP.

usage: several_hosts_test.py TILEFOLD MPIEXEC COMM_RANKS PLAIN_MPI [OnCpus | OnAGpu]

OnAGpu lets two ranks share one GPU: slow, but all that training on several GPUs does, its speed aside.
Prints SKIPPED: and why where a machine cannot do that (giving names needs root and Open MPI 4).
"""
import os
import re
import signal
import subprocess
import sys
import time
import unittest

from program import COPY, MPIEXEC, TILEFOLD, ProgramTest, losses

COMM_RANKS = os.path.abspath(sys.argv.pop(1))
PLAIN_MPI = os.path.abspath(sys.argv.pop(1))
AGENT = """#!/bin/sh
host=$1
shift
exec unshare --uts sh -c "echo $host >/proc/sys/kernel/hostname; $*"
"""
# Few channels, for the two halves of a sum take turns on one GPU.
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   CUDA_VISIBLE_DEVICES="0", NCCL_MIN_CTAS="2", NCCL_MAX_CTAS="2")
# Whole layers of 28 MB, so that each is a bucket of its own; at COPY's learning rate this width is not stable, and
# roundings grow to 3e-3 of loss.
LARGE = COPY.replace("width: 32", "width: 768, dtype: bf16").replace("heads: 2, kv_heads: 1", "heads: 12").replace(
    "ffn_width: 64", "ffn_width: 2048").replace("lr: 3e-3, min_lr: 3e-4", "lr: 3e-4, min_lr: 3e-5").replace(
    "every: 5", "every: 20")


def skip(test, why):
    print("SKIPPED:", why, flush=True)  # for ctest
    test.skipTest(why)


def on_two_hosts(agent, per_host, *command):
    # The launcher is named, for without an `ssh` on the machine it would not be chosen.
    return [MPIEXEC, "--bind-to", "none", "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent,
            "-H", f"one:{per_host},two:{per_host}", "-np", str(2 * per_host), *command]


def processes(text):
    """Rank by process id of the ranks with this text on their command line."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as f:
                arguments = f.read().split("\0")
            with open(f"/proc/{pid}/environ") as f:
                environment = f.read().split("\0")
        except OSError:
            continue
        if os.path.basename(arguments[0]) == "tilefold" and any(text in a for a in arguments):
            found.update((int(pid), int(v.split("=")[1])) for v in environment if v.startswith("OMPI_COMM_WORLD_RANK="))
    return found


class SeveralHosts(ProgramTest):
    def setUp(self):
        super().setUp()
        self.agent = self.write("agent", AGENT)
        os.chmod(self.agent, 0o755)
        done = self.mpirun(1, "uname", "-n", status=None)
        if sorted(done.stdout.split()) != ["one", "two"]:
            skip(self, f"this machine cannot be two hosts: {done.stdout} {done.stderr}")

    def mpirun(self, per_host, *command, status=0, **variables):
        done = subprocess.run(on_two_hosts(self.agent, per_host, *command), env=ENVIRONMENT | variables,
                              capture_output=True, text=True, cwd=self.dir, timeout=50)
        if status is not None:
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def train_on_two(self, config, name, *args):
        out = self.path(name)
        self.mpirun(1, TILEFOLD, "train", config, "--set", f"run.out={out}", *args)
        return out

    def failing(self, config, how, victim, per_host):
        """Train without an end; rank `victim` fails; the job ends, names it, and leaves nobody."""
        out = self.path(f"{how.name}-{victim}")
        job = subprocess.Popen(
            on_two_hosts(self.agent, per_host, TILEFOLD, "train", config, "--set", f"run.out={out}",
                         "--set", "train.steps=1000000", "--set", "checkpoint.every=0", "--set", "train.eval_every=0"),
            env=ENVIRONMENT | {"TILEFOLD_HEARTBEAT": "4"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, cwd=self.dir)
        self.addCleanup(job.kill)
        lines, end = os.path.join(out, "metrics.jsonl"), time.monotonic() + 60
        while time.monotonic() < end and not (os.path.exists(lines) and os.path.getsize(lines) > 500):
            time.sleep(0.1)
        ranks = processes(out)
        self.assertEqual(sorted(ranks.values()), list(range(2 * per_host)))
        start = time.monotonic()
        os.kill(next(pid for pid, rank in ranks.items() if rank == victim), how)
        said, _ = job.communicate(timeout=60)
        self.assertLess(time.monotonic() - start, 30)
        self.assertNotEqual(job.returncode, 0)
        named = {int(rank) for rank in re.findall(r"tilefold: rank \d of \d: rank (\d) on", said)}
        self.assertIn(named, ({victim}, set()), said)  # nobody else is blamed
        if not named:
            self.assertIn(f"process rank {victim} ", said)
        while processes(out) and time.monotonic() - start < 30:
            time.sleep(0.1)  # the launcher may be gone before its last rank
        self.assertEqual(processes(out), {}, "a process stayed behind")


class OnCpus(SeveralHosts):
    connects = None  # whether MPI alone does what these tests need of it; asked once

    def setUp(self):
        super().setUp()
        if OnCpus.connects is None:
            try:
                OnCpus.connects = self.mpirun(2, PLAIN_MPI, status=None).returncode == 0
            except subprocess.TimeoutExpired:
                OnCpus.connects = False
        if not OnCpus.connects:
            skip(self, "four processes of MPI under two names do not reach each other here")

    def test_sums(self):
        self.mpirun(2, COMM_RANKS, "check", "2")

    def test_the_rank_that_died_is_named_and_no_other(self):
        for victim in (0, 1, 3):
            with self.subTest(victim):
                said = self.mpirun(2, COMM_RANKS, "kill", str(victim), status=None)
                self.assertNotEqual(said.returncode, 0)
                said = said.stdout + said.stderr
                named = set(re.findall(r"tilefold: rank \d of 4: rank (\d) on", said))
                self.assertIn(named, ({str(victim)}, set()), said)
                self.assertRegex(said, f"rank {victim} ")

    def test_training_on_cpus(self):
        config = self.write("c.yaml", COPY.replace("threads: 2", "threads: 1"))
        here, _ = self.train(config, "here", ranks=2)
        self.assertSameState(here, self.train_on_two(config, "there"), 20)
        for how, victim in ((signal.SIGKILL, 3), (signal.SIGSTOP, 0)):
            with self.subTest(how.name):
                self.failing(config, how, victim, 2)


class OnAGpu(SeveralHosts):
    def setUp(self):
        doctor = subprocess.run([TILEFOLD, "doctor"], capture_output=True, text=True).stdout
        if not re.search(r"(?m)^gpu \d", doctor) or not re.search(r"(?m)^nccl +NCCL", doctor):
            skip(self, "no GPU, or a build without NCCL")
        super().setUp()
        # NCCL does not promise that two ranks may share a GPU.
        self.config = self.write("f32.yaml", COPY.replace("device: cpu", "device: cuda"))
        try:
            done = self.mpirun(1, TILEFOLD, "train", self.config, "--set", f"run.out={self.path('try')}", status=None)
        except subprocess.TimeoutExpired:
            skip(self, "two ranks on one GPU do not get on")
        if done.returncode != 0 and "ncclCommInit" in done.stderr:
            skip(self, "NCCL refuses two ranks on one GPU: " + done.stderr.splitlines()[-1])

    def compare(self, name, config, bound):
        one, _ = self.train(config, f"{name}-one")
        two = self.train_on_two(config, f"{name}-two")
        again = self.train_on_two(config, f"{name}-again")
        parts = self.train_on_two(config, f"{name}-parts", "--set", "parallel.shard_optimizer=true")
        for other in (two, parts):
            largest = max(abs(x - y) for (_, x, _), (_, y, _) in zip(losses(one), losses(other)))
            print(f"{os.path.basename(other)}: losses within {largest:.2e} of one rank's", flush=True)
            self.assertEqual(len(losses(other)), 20)
            self.assertLessEqual(largest, bound)
        self.assertEqual(losses(two), losses(again))
        self.assertSameState(two, again, 20)

    def test_losses_and_bits(self):
        self.compare("f32", self.config, 1e-4)
        self.compare("bf16", self.write("bf16.yaml", LARGE.replace("device: cpu", "device: cuda")), 1e-3)

    def test_a_rank_that_is_killed_or_stopped(self):
        for how in (signal.SIGKILL, signal.SIGSTOP):
            with self.subTest(how.name):
                self.failing(self.config, how, 1, 1)


if __name__ == "__main__":
    unittest.main()
