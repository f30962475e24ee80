"""check_arrows passes a small clean tree and names each fault planted into it."""
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "check_arrows")
CLEAN = {
    "src/base/error.h": "#include <string>\n",
    "src/memory/plan.h": '#include "base/error.h"\n',
    "src/device/arena.h": '#include "memory/plan.h"\n',
    "src/cpu/blas.cc": '#include <cblas.h>\n#include "device/arena.h"\n',
    "kernels/attention/select.h": '#include "base/error.h"\n',
    "kernels/attention/forward.h": "",
    "kernels/backend.cc": '#include "kernels/attention/forward.h"\n',
    "src/ops/ops.h": '#include "kernels/attention/select.h"\n',
    "trainer/main.cc": '#include "ops/ops.h"\n',
    "tests/ops/ops_test.cc": '#include "cpu/blas.h"\n',
    "src/memory/CMakeLists.txt": "tilefold_room(memory SOURCES plan.cc LINKS base)\n",
    "trainer/CMakeLists.txt": "tilefold_room(trainer_logs SOURCES a.cc LINKS io trainer_data)\n",
    "src/ops/CMakeLists.txt": "tilefold_room(ops SOURCES a.cc LINKS base select PRIVATE_LINKS x)\n",
}
# What is planted: file, content, what the report says of it.
PLANTED = [
    ("src/base/error.h", '#include "memory/plan.h"\n', "src/base may not include src/memory/plan.h"),
    ("src/memory/plan.h", '#  include "device/arena.h"\n', "src/memory may not include"),
    ("src/ops/ops.h", '#include "kernels/attention/forward.h"\n', "src/ops may not include kernels"),
    ("trainer/main.cc", '#include "cpu/blas.cc"\n', "trainer may not include src/cpu"),
    ("trainer/main.cc", '#include "kernels/attention/select.h"\n', "trainer may not include kernels"),
    ("kernels/attention/forward.h", '#include "kernels/backend.cc"\n', "may not include kernels/"),
    ("src/base/error.h", '#include "tests/ops/ops_test.cc"\n', "nobody includes tests"),
    ("src/base/error.h", '#include "base/absent.h"\n', "not in the project"),
    ("trainer/main.cc", "#include <mpi.h>\n", "<mpi.h> is at home in src/comm/mpi.cc"),
    ("src/ops/ops.h", "#include <cuda_runtime.h>\n", "at home in kernels"),
    ("src/memory/CMakeLists.txt", "tilefold_room(memory SOURCES plan.cc\n  LINKS base device)\n",
     "room memory links device"),
    ("trainer/CMakeLists.txt", "tilefold_room(trainer_model SOURCES a.cc LINKS cpu)\n",
     "room trainer_model links cpu"),
    ("src/base/long.cc", "\n" * 451, "451 lines"),
    ("README.md", "data in /" + "home/somebody/data.txt\n", "line 1 names a path of one machine"),
]


def run(files):
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)
        return subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)


class CheckArrows(unittest.TestCase):
    def test_clean_tree_passes(self):
        result = run(CLEAN)
        self.assertEqual((result.returncode, result.stdout), (0, "13 files checked, 0 faults\n"))

    def test_each_planted_fault_is_named(self):
        for path, text, report in PLANTED:
            with self.subTest(path=path, text=text[:60]):
                result = run(CLEAN | {path: text})
                self.assertEqual(result.returncode, 1, result.stdout)
                self.assertIn(f"{path}: ", result.stdout)
                self.assertIn(report, result.stdout)
                self.assertIn(" 1 faults", result.stdout)

    def test_a_long_file_may_say_why(self):
        text = "// longer than 450 lines because it is one table\n" + "\n" * 460
        self.assertEqual(run(CLEAN | {"src/base/long.cc": text}).returncode, 0)

    def test_an_empty_tree_is_no_success(self):
        self.assertEqual(run({}).returncode, 1)


if __name__ == "__main__":
    unittest.main()
