"""The scripts of examples/python, and the first lines of docs/PYTHON.md and of the README's second block."""
import importlib.util
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import softrnn.lab

CLONE = Path(__file__).resolve().parents[2]


def has(*modules):
    return all(importlib.util.find_spec(module) for module in modules)


class Scripts(unittest.TestCase):
    def run_python(self, *arguments):
        done = self.try_python(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def try_python(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            paths = [str(Path(softrnn.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
            return subprocess.run([sys.executable, *map(str, arguments)], cwd=folder, text=True, capture_output=True,
                                  env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, timeout=280)

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

    @unittest.skipUnless(has("torch", "transformers"), "torch or transformers is not installed")
    def test_orders_with_the_tokenizer_of_the_model(self):
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
        with tempfile.TemporaryDirectory() as name:
            folder, text = Path(name), Path(name) / "text.txt"
            text.write_text("the cat sat on the mat. " * 9)
            model = LlamaForCausalLM(LlamaConfig(vocab_size=262, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                                                 num_attention_heads=2, max_position_embeddings=256))
            model.save_pretrained(folder)
            done = self.try_python(self.script("orders.py"), folder, text)
            self.assertIn("tokenizer", done.stderr)  # not read as bytes
            pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % byte for byte in range(256)), b"th", b"e ", b"cat"]
            (folder / "tokenizer.bin").write_bytes(struct.pack("<i", 8) + b"".join(
                struct.pack("<fi", 0, len(piece)) + piece for piece in pieces))
            tokenizer = softrnn.lab.Tokenizer(folder)
            ids = torch.tensor([[tokenizer.begin, *tokenizer.encode(text.read_text())][:256]])
            with torch.no_grad():
                expected = float(model(ids, labels=ids).loss)
            out = self.run_python(self.script("orders.py"), folder, text)
            self.assertAlmostEqual(float(re.search(r"loss (\S+)", out).group(1)), expected, places=3)


if __name__ == "__main__":
    unittest.main()
