"""The scripts of examples/python, and the first lines of docs/PYTHON.md and of the README's second block."""
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import softrnn

CLONE = Path(__file__).resolve().parents[2]


def has(*modules):
    return all(importlib.util.find_spec(module) for module in modules)


class Scripts(unittest.TestCase):
    def run_python(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            paths = [str(Path(softrnn.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
            done = subprocess.run([sys.executable, *map(str, arguments)], cwd=folder, text=True, capture_output=True,
                                  env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, timeout=280)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def script(self, name):
        return CLONE / "examples" / "python" / name

    def block(self, document):
        return re.search(r"```python\n(.*?)```", (CLONE / document).read_text(), re.S).group(1)

    def test_ten_lines(self):
        lines = self.block("docs/PYTHON.md")
        self.assertLessEqual(len(lines.strip().splitlines()), 10)
        out = self.run_python("-c", lines)
        self.assertLess(float(out.split()[-1]), 1e-4)

    def test_readme(self):
        self.run_python("-c", self.block("README.md"))

    @unittest.skipUnless(has("torch"), "torch is not installed")
    def test_variant_in_torch(self):
        text = CLONE / "README.md"
        self.assertEqual(len(self.run_python(self.script("variant_in_torch.py"), text, 3).splitlines()), 5)

    @unittest.skipUnless(has("pandas", "matplotlib"), "pandas or matplotlib is not installed")
    def test_study(self):
        self.assertIn("baseline", self.run_python(self.script("study.py")))

    @unittest.skipUnless(has("torch", "transformers"), "torch or transformers is not installed")
    def test_orders(self):
        out = self.run_python(self.script("orders.py"))
        losses = [float(loss) for loss in re.findall(r"loss (\S+)", out)]
        self.assertLess(abs(losses[-1] - losses[0]), 0.02)  # order 16 is softmax, nearly
        self.assertGreater(losses[1], losses[0] + 0.1)      # order 1 is not


if __name__ == "__main__":
    unittest.main()
