#!/usr/bin/env python3
"""Data parallel training on several GPUs of this machine: speed, equal losses and bits, failures.

usage: train_scaling.py TILEFOLD OUT [--ranks 2] [--device cuda] [--config configs/llama-124m.yaml]
                        [--steps 40]

Weak scaling at 32 and 4 sequences a rank against one rank of the same call, with whole and with shared-
out optimizer state; losses over 50 steps against one rank with the same global batch (largest
difference); two runs' checkpoints compared bit by bit (each save compares the ranks' weights); a rank
killed and one stopped: how long the job takes to end, and what it says. One JSON object a line to
OUT/scaling.jsonl, a table to stdout; logs beside it. Exit status 1 if something did not hold.
"""
import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time

TOLERANCE = 1e-3  # of losses in bfloat16, over 50 steps
SECONDS = 30      # until a job with a failed rank has ended


def still_there(pids):
    """Which of them have not ended within some seconds of their launcher's end."""
    end = time.monotonic() + 10
    while time.monotonic() < end and any(os.path.exists(f"/proc/{pid}") for pid in pids):
        time.sleep(0.1)
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def children(pid):
    """Its child processes, the youngest last."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as stat:
                parent = stat.read().rsplit(")", 1)[1].split()[1]
        except OSError:
            continue  # it has ended
        if parent == str(pid):
            found.append(int(name))
    return sorted(found)


def gpu_memory_in_use():
    """MiB on all GPUs of this machine; 0 without the driver's tool."""
    try:
        said = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True).stdout
    except FileNotFoundError:
        return 0
    return sum(map(int, said.split()))


class Bench:
    def __init__(self, options):
        self.options = options
        self.env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        self.failed = False
        os.makedirs(options.out, exist_ok=True)
        self.rows = open(os.path.join(options.out, "scaling.jsonl"), "w")

    def row(self, holds=True, **values):
        self.failed |= not holds
        self.rows.write(json.dumps(values | {"holds": holds}) + "\n")
        self.rows.flush()
        print(" ".join(f"{k} {v}" for k, v in values.items()), "" if holds else "  DOES NOT HOLD", flush=True)

    def command(self, name, ranks, per_rank, steps, micro=None, shard=False):
        out = os.path.join(self.options.out, name)
        settings = {"run.device": self.options.device, "run.out": out, "train.steps": steps,
                    "train.global_batch": per_rank * ranks, "train.micro_batch": micro or per_rank,
                    "train.eval_samples": ranks, "parallel.shard_optimizer": str(shard).lower()}
        command = ["mpirun", "--bind-to", "none", "-np", str(ranks), self.options.tilefold, "train",
                   self.options.config, "--overwrite"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        return out, command

    def train(self, name, *args, **kwargs):
        """The run's folder, milliseconds a step (median without the first 8) and losses."""
        out, command = self.command(name, *args, **kwargs)
        with open(out + ".log", "w") as log:
            status = subprocess.run(command, env=self.env, stdout=log, stderr=subprocess.STDOUT,
                                    timeout=300).returncode
        if status != 0:
            self.row(False, case=name, status=status, log=out + ".log")
            return out, None, None
        with open(os.path.join(out, "metrics.jsonl")) as f:
            steps = [m for m in map(json.loads, f) if "loss" in m]
        return out, statistics.median(m["ms"] for m in steps[8:]), [m["loss"] for m in steps]

    def weak_scaling(self):
        for per_rank in (4, 32):
            _, one, _ = self.train(f"one-{per_rank}", 1, per_rank, self.options.steps)
            for shard in (False, True):
                name = f"weak-{per_rank}" + ("-shard" if shard else "")
                _, ms, _ = self.train(name, self.options.ranks, per_rank, self.options.steps, shard=shard)
                if one and ms:
                    self.row(case=name, ranks=self.options.ranks, ms_one=round(one, 3), ms=round(ms, 3),
                             efficiency=round(one / ms, 4))

    def same_losses(self):
        ranks = self.options.ranks
        _, _, one = self.train("losses-one", 1, 4 * ranks, 50, micro=4)
        for shard in (False, True):
            name = "losses" + ("-shard" if shard else "")
            first, _, losses = self.train(name, ranks, 4, 50, shard=shard)
            second, _, _ = self.train(name + "-again", ranks, 4, 50, shard=shard)
            if one and losses:
                worst = max(abs(x - y) for x, y in zip(one, losses))
                self.row(worst <= TOLERANCE, case=name, largest_difference=worst, last=losses[-1])
            paths = [os.path.join(run, "checkpoints", "step-00000050.h5") for run in (first, second)]
            same = subprocess.run([self.options.tilefold, "checkpoint", "compare", *paths],
                                  stdout=subprocess.DEVNULL).returncode == 0
            self.row(same, case=name + " twice", equal_bits=same)

    def failing_rank(self, how):
        out, command = self.command(f"fail-{how.name}", self.options.ranks, 4, 100000)
        metrics = os.path.join(out, "metrics.jsonl")
        shutil.rmtree(out, ignore_errors=True)
        before = gpu_memory_in_use()
        with open(out + ".log", "w") as log:
            job = subprocess.Popen(command, env=self.env, stdout=log, stderr=subprocess.STDOUT)
            end = time.monotonic() + 60
            while time.monotonic() < end and job.poll() is None:
                if os.path.exists(metrics) and os.path.getsize(metrics) > 2000:
                    break
                time.sleep(0.2)
            ranks = children(job.pid)
            start = time.monotonic()
            os.kill(ranks[-1], how)
            try:
                status = job.wait(timeout=60)
            except subprocess.TimeoutExpired:
                job.kill()
                status = None
        seconds = time.monotonic() - start
        with open(out + ".log", errors="replace") as log:
            said = [line.strip() for line in log if "tilefold: rank" in line]
        left = still_there(ranks)
        memory = gpu_memory_in_use()
        self.row(status not in (0, None) and seconds < SECONDS and bool(said) and not left and
                 memory <= before + 64, case=f"{how.name} of a rank", status=status,
                 seconds=round(seconds, 1), said=said[:1], processes_left=len(left),
                 gpu_mib_left=memory - before)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tilefold")
    parser.add_argument("out")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--config", default="configs/llama-124m.yaml")
    parser.add_argument("--steps", type=int, default=40)
    bench = Bench(parser.parse_args())
    bench.weak_scaling()
    bench.same_losses()
    bench.failing_rank(signal.SIGKILL)
    bench.failing_rank(signal.SIGSTOP)
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
