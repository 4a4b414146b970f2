"""Bad input of every kind: an exception that names the argument, never a crash."""
import unittest

import numpy as np

import softrnn
from helpers import needs_torch, operands, torch


class Refused(unittest.TestCase):
    def refused(self, words, *arguments, kind=softrnn.SoftrnnError, **named):
        with self.assertRaises(kind) as caught:
            softrnn.attention(*arguments, **named)
        for word in words.split("|"):
            self.assertIn(word, str(caught.exception))

    def setUp(self):
        self.x = operands("softmax", H=2, Hkv=2, D=4, Dv=4)

    def test_shapes(self):
        x = self.x
        self.refused("k has the shape", **{**x, "k": x["k"][:, :, :3]})
        self.refused("v has the shape", **{**x, "v": x["v"][:, :1]})
        self.refused("q has the shape|four axes", **{**x, "q": x["q"][0]})
        self.refused("q has the shape|empty", **{n: a[:, :0] for n, a in x.items()})
        self.refused("B and T must be the same", **{**x, "q": x["q"][:, :, :0]})
        self.refused("k has the shape", **{**x, "k": x["k"][..., :3].copy()})
        self.refused("heads cannot share", **{**operands("softmax", H=3, Hkv=3), **{
            n: a for n, a in operands("softmax", H=2, Hkv=2).items() if n != "q"}})
        self.refused("2 query heads cannot share 3", **{**x, **{n: a for n, a in operands("softmax", H=3, Hkv=3, D=4, Dv=4).items()
                                                                if n != "q"}})
        self.refused("v has the shape (1, 3,|(1, 2,", **{**x, "v": operands("softmax", H=3, Hkv=3, Dv=4)["v"]})
        wide = {n: np.zeros((1, 1, 2, 300)) for n in "qkv"}
        self.refused("300|256", **wide)

    def test_types(self):
        x = self.x
        self.refused("q is of type int64", kind=TypeError, **{n: a.astype(int) for n, a in x.items()})
        self.refused("k is of type float32", kind=TypeError, **{**x, "k": x["k"].astype("float32")})
        self.refused("q is of type", **{n: a.astype(">f8") for n, a in x.items()})
        self.refused("q must be an array, not list", **{**x, "q": x["q"].tolist()})
        self.refused("v must be an array, not NoneType", **{**x, "v": None})
        self.refused("q is of type complex128", **{n: a.astype(complex) for n, a in x.items()})
        self.refused("q is of type object", **{n: a.astype(object) for n, a in x.items()})

    def test_strides(self):
        x = self.x
        odd = np.zeros(x["k"].size * 8 + 1, np.uint8)[1:].view("float64").reshape(x["k"].shape)
        self.refused("multiples of their size", **{**x, "k": odd})
        self.refused("v: numbers of the last axis", **{**x, "v": np.repeat(x["v"], 2, axis=3)[..., ::2]})

    def test_operands(self):
        x = self.x
        self.refused("reads output_gate, which was not given", **x, attention="gate")
        self.refused("output_gate is not read by softmax", **x, output_gate=x["q"][..., 0])
        self.refused("no argument gates", kind=TypeError, **x, gates=x["q"])
        self.refused("output_gate has the shape", **x, attention="gate", output_gate=x["q"][:, :1, :, 0])
        self.refused("norm_weight has the shape", **x, attention="score=exp,norm=rms", norm_weight=np.ones(3))
        self.refused("output_gate must be an array", **x, attention="gate", output_gate=1.0)

    def test_words(self):
        x = self.x
        self.refused("did you mean", **x, attention="sofmax")
        self.refused("attention must be a text", kind=TypeError, **x, attention=7)
        self.refused("NUL", **x, attention="soft\0max")
        self.refused("form must be one of auto", **x, form="serial")
        self.refused("form must be a text", **x, form=["auto"])
        self.refused("chunk must be a whole number", **x, chunk="many")
        self.refused("threads", **x, threads=-1)
        self.refused("chunk must be a number that fits", **x, chunk=1 << 40)
        self.refused("kernel", **x, kernel="nonesuch")
        self.refused("no fixed-size state", **x, form="chunked", kind=NotImplementedError)
        self.refused("over the limit", **x, attention="order:4", form="chunked", state_limit=10)

    def test_documents(self):
        x = self.x
        self.refused("document", **x, documents=[0, 3])
        self.refused("document", **x, documents=[0, 4, 2, 5])
        self.refused("documents must be", **x, documents=[0.5, 5])
        self.refused("documents must be", **x, documents="all")
        self.refused("documents must be", **x, documents=[[0, 5]])

    def test_states(self):
        state = softrnn.State("softmax", H=2, D=4, dtype="float64")
        for words, change in (("k has the shape", {"k": self.x["k"][:, :1]}),
                              ("v is of type float32", {"v": self.x["v"].astype("float32")}),
                              ("output_gate is not read", {"output_gate": self.x["q"]}),
                              ("q has the shape", {"q": self.x["q"][0]})):
            with self.assertRaises(softrnn.SoftrnnError) as caught:
                state.feed(**{**self.x, **change})
            self.assertIn(words, str(caught.exception))
        for words, arguments in (("dtype must be one of", {"dtype": "int8"}), ("H", {"H": 0}), ("piece|T", {"piece": -1}),
                                 ("D", {"D": 1000}), ("form", {"form": 3}), ("cuda", {"device": "cuda:7"}),
                                 ("device", {"device": "tpu"})):
            with self.assertRaises(softrnn.SoftrnnError) as caught:
                softrnn.State(**{"H": 2, "D": 4, **arguments})
            self.assertTrue(any(word in str(caught.exception) for word in words.split("|")), str(caught.exception))
        with self.assertRaises(TypeError):
            state.load(3)

    def test_gradient_of_output(self):
        for words, d_o in (("d_o has the shape", np.zeros((1, 2, 5, 3))), ("d_o", np.zeros((1, 2, 5, 4), "f")),
                           ("d_o must be an array", 1)):
            with self.assertRaises(softrnn.SoftrnnError) as caught:
                softrnn.gradients(d_o, **self.x)
            self.assertIn(words, str(caught.exception))

    @needs_torch
    def test_torch(self):
        x = {n: torch.from_numpy(a) for n, a in self.x.items()}
        self.refused("k must be a tensor like q, not ndarray", **{**x, "k": self.x["k"]})
        self.refused("k is of type torch.float32", kind=TypeError, **{**x, "k": x["k"].float()})
        self.refused("q is of type torch.int64", kind=TypeError, **{n: a.long() for n, a in x.items()})
        self.refused("v has the layout", **{**x, "v": x["v"].to_sparse()})
        self.refused("q is nested", **{**x, "q": torch.nested.nested_tensor([x["q"][0]])})
        self.refused("v: numbers of the last axis", **{**x, "v": x["v"].repeat_interleave(2, 3)[..., ::2]})
        self.refused("k has the shape", **{**x, "k": x["k"][:, :, :3]})
        self.refused("k is on meta, and q on cpu", **{**x, "k": x["k"].to("meta")})
        self.refused("output_gate must be a tensor", **x, attention="gate", output_gate=1.0)
        with self.assertRaises(softrnn.SoftrnnError) as caught:
            softrnn.State("softmax", H=2, D=4, dtype="float64").feed(**{**x, "q": x["q"].clone().requires_grad_()})
        self.assertIn("q requires a gradient", str(caught.exception))
        with self.assertRaises(TypeError):
            softrnn.gradients(x["q"], **x)

    @needs_torch
    def test_cuda_tensors_without_cuda(self):
        """A GPU's tensor where the library has no CUDA; without a GPU the tensor is a pretended one."""
        from softrnn import _torch
        with self.assertRaises(softrnn.UnsupportedError) as caught:
            _torch._open_place(torch.device("cuda", 99), 1)
        self.assertIn("q is on cuda:99", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
