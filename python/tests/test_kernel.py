"""The layout of Hugging Face's `kernels`: loaded from a local folder, it gives what the package gives."""

import sys
import tempfile
import unittest
from pathlib import Path

import helpers
import softrnn
from softrnn import _library

try:
    import kernels
    import torch
except ImportError:
    raise unittest.SkipTest("kernels, or torch, is not installed")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))
from kernel import make_variant  # noqa: E402


class Kernel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        library = (_library._library_folder() / "libsoftrnn.so").read_bytes()
        make_variant(Path(cls.folder.name), "cpu", library)
        cls.kernel = kernels.get_local_kernel(Path(cls.folder.name), backend="cpu")

    def operands(self, variant, dtype="float32", **sizes):
        made = helpers.operands(variant, dtype=dtype, **dict(dict(B=2, H=2, Hkv=2, T=20, D=8, Dv=8), **sizes))
        return {name: torch.from_numpy(value).requires_grad_() for name, value in made.items()}

    def test_it_agrees_with_the_package(self):
        for variant in helpers.each_variant():
            given = self.operands(variant, "float64")
            results = []
            for attention, name in ((softrnn.attention, variant), (self.kernel.attention, variant.text)):
                o = attention(attention=name, **given)
                results.append([o, *torch.autograd.grad(o.square().sum(), list(given.values()))])
            for ours, theirs in zip(*results):
                self.assertTrue(torch.equal(ours, theirs), variant)

    def test_documents_types_and_strides(self):
        given = self.operands("softmax")
        documents = torch.tensor([0, 7, 20, 40])
        expected = softrnn.attention(**given, documents=documents)
        self.assertTrue(torch.equal(self.kernel.attention(**given, documents=documents), expected))
        swapped = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in given.items()}
        self.assertTrue(torch.equal(self.kernel.attention(**swapped, documents=documents), expected))
        half = {name: x.detach().half() for name, x in given.items()}
        self.assertEqual(self.kernel.attention(**half).dtype, torch.float16)

    def test_the_operator_is_one_of_torch(self):
        given = [x.detach().requires_grad_() for x in self.operands("softmax", B=1, T=5).values()]
        operator = sys.modules[self.kernel.__name__ + "._operators"].forward
        torch.library.opcheck(operator, (given, None, "softmax", "auto", 0, 0))

    def test_refusals(self):
        given = self.operands("softmax")
        with self.assertRaisesRegex(ValueError, "did you mean 'norm'"):
            self.kernel.attention(**given, attention="nrom")
        with self.assertRaisesRegex(ValueError, "gate reads output_gate"):
            self.kernel.attention(**given, attention="gate")
        with self.assertRaisesRegex(ValueError, "decay is not read by softmax"):
            self.kernel.attention(**given, decay=given["q"])
        with self.assertRaisesRegex(ValueError, "k has the shape"):
            self.kernel.attention(given["q"], given["k"][:, :, 1:], given["v"])
        with self.assertRaisesRegex(ValueError, "k is of type torch.int64"):
            self.kernel.attention(given["q"], given["k"].long(), given["v"])
        with self.assertRaisesRegex(ValueError, "v is on meta, and q on cpu"):
            self.kernel.attention(given["q"], given["k"], given["v"].to("meta"))
        for setting in (dict(chunk=-5), dict(chunk=2**40), dict(threads=10**12)):
            with self.assertRaisesRegex(ValueError, f"{next(iter(setting))} must be from 0"):
                self.kernel.attention(**given, **setting)

    def test_it_needs_nothing_beside_torch(self):
        folder = Path(sys.modules[self.kernel.__name__].__file__).parent
        for path in folder.glob("*.py"):
            for line in path.read_text(encoding="utf-8").splitlines():
                if line.startswith(("import ", "from ")):
                    module = line.split()[1].split(".")[0]
                    self.assertTrue(module in ("", "torch") or module in sys.stdlib_module_names, line)
        self.assertIn("softmax", self.kernel.variants())


if __name__ == "__main__":
    unittest.main()
