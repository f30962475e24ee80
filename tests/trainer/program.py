"""What tests of the whole program share: its paths, small configs, a directory for each test.

usage of a test that imports this: TEST.py TILEFOLD [MPIEXEC] [unittest arguments]
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

TILEFOLD = os.path.abspath(sys.argv.pop(1))
MPIEXEC = sys.argv.pop(1) if len(sys.argv) > 1 and "mpi" in os.path.basename(sys.argv[1]) else None

COPY = """
run: {name: copy, seed: 3, device: cpu, threads: 2}
model: {style: llama, layers: 2, width: 32, heads: 2, kv_heads: 1, ffn_width: 64, context: 64, vocab: 40}
data: {kind: copy, symbols: 16}
train: {steps: 20, global_batch: 8, micro_batch: 2, lr: 3e-3, min_lr: 3e-4, warmup_steps: 4,
        eval_every: 10, eval_samples: 8}
checkpoint: {every: 5, keep: 10}
"""
GPT2 = COPY.replace("style: llama", "style: gpt2").replace("kv_heads: 1", "kv_heads: 2").replace(
    "vocab: 40}", "vocab: 40, dropout: 0.1, bias: true, tie_embeddings: false}")


def metrics(out):
    with open(os.path.join(out, "metrics.jsonl")) as f:
        return [json.loads(line) for line in f]


def losses(out):
    return [(m["step"], m["loss"], m["grad_norm"]) for m in metrics(out) if "loss" in m]


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="tilefold_test_")
        self.addCleanup(shutil.rmtree, self.dir)

    def path(self, name):
        return os.path.join(self.dir, name)

    def write(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)
        return self.path(name)

    def run_program(self, *args, ranks=None, status=0):
        command = [TILEFOLD, *args]
        env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        if ranks:
            command = [MPIEXEC, "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *command]
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=self.dir)
        self.assertEqual(done.returncode, status, f"{command}\n{done.stdout}\n{done.stderr}")
        return done

    def train(self, config, name, *args, **kwargs):
        out = self.path(name)
        return out, self.run_program("train", config, "--set", f"run.out={out}", *args, **kwargs)

    def assertSameState(self, a, b, step):
        name = f"checkpoints/step-{step:08d}.h5"
        self.run_program("checkpoint", "compare", os.path.join(a, name), os.path.join(b, name))
