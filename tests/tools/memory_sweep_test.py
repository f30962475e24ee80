"""memory_sweep fits, measures and complains rightly, with a program of known bytes in the planner's
place. Given the real program and a config, fits its planned bytes too."""
import csv
import os
import stat
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "..", "..", "tools", "memory_sweep")
REAL = sys.argv[1:3] if len(sys.argv) > 2 else None
# Plans 100 n + 40 bytes of attention and, naive, 8 n^POWER more; a run measures that plus OFF.
FAKE = """#!{python}
import json, os, sys
settings = dict(word.split("=", 1) for word in sys.argv if "=" in word)
n = int(settings["model.context"])
naive = settings["attention.strategy"] == "naive"
tensors = [{{"name": "qkv", "kind": "saved", "bytes": 100 * n + 40}},
           {{"name": "qkv", "kind": "weight", "bytes": 999}},
           {{"name": "hidden", "kind": "saved", "bytes": 7 * n * n}}]
if naive:
    tensors.append({{"name": "probabilities", "kind": "saved", "bytes": int(8 * n ** {power})}})
arena = sum(t["bytes"] for t in tensors)
if sys.argv[1] == "plan":
    assert "--json" in sys.argv
    print(json.dumps({{"layers": [{{"name": "layer 0", "tensors": tensors}}], "arena_bytes": arena}}))
elif sys.argv[1] == "train":
    out = settings["run.out"]
    os.makedirs(out)
    with open(os.path.join(out, "memory.json"), "w") as file:
        json.dump({{"totals": {{"predicted": arena, "measured": arena + {off}}},
                   "process": {{"resident_start": 5, "resident_peak": 105}}}}, file)
"""


class MemorySweep(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = os.path.join(self.folder.name, "out")

    def sweep(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, *arguments, "--out", self.out],
                              capture_output=True, text=True)

    def fake(self, power=2, off=0):
        path = os.path.join(self.folder.name, "fake")
        with open(path, "w", encoding="utf-8") as file:
            file.write(FAKE.format(python=sys.executable, power=power, off=off))
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def rows(self):
        with open(os.path.join(self.out, "memory_sweep.csv"), encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def test_fits_and_measures(self):
        done = self.sweep("any.yaml", "--program", self.fake(), "--runs", "512,1024")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("tiled: the attention part grows as n^1.0000", done.stdout)
        self.assertIn("naive: the attention part grows as n^2.0", done.stdout.replace("1.99", "2.0"))
        rows = self.rows()
        self.assertEqual(len(rows), 2 * (2 + 7))  # 16k .. 1M and two runs
        measured = [row for row in rows if row["measured_arena_bytes"]]
        self.assertEqual(len(measured), 4)
        for row in measured:
            self.assertEqual(row["measured_arena_bytes"], row["planned_arena_bytes"])
            self.assertEqual(row["resident_above_start_bytes"], "100")
        tiled = next(row for row in rows if row["context"] == "16384")
        self.assertEqual(tiled["attention_bytes"], str(100 * 16384 + 40))

    def test_another_exponent_fails(self):
        done = self.sweep("any.yaml", "--program", self.fake(power=1.9), "--runs", "none")
        self.assertEqual(done.returncode, 1)
        self.assertIn("naive: exponent 1.", done.stderr)

    def test_another_measurement_fails(self):
        done = self.sweep("any.yaml", "--program", self.fake(off=1), "--runs", "512")
        self.assertEqual(done.returncode, 1)
        self.assertIn("tiled at 512", done.stderr)

    def test_usage(self):
        for arguments in (["any.yaml", "--program", "not-there"],
                          ["any.yaml", "--program", self.fake(), "--from", "9", "--to", "10"],
                          ["any.yaml", "--program", self.fake(), "--runs", "a few"]):
            self.assertEqual(self.sweep(*arguments).returncode, 2)

    @unittest.skipIf(REAL is None, "no program given")
    def test_the_program(self):
        program, config = REAL
        done = self.sweep(config, "--program", program, "--runs", "none")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.rows()), 14)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
