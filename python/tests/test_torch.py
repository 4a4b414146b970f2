"""Attention on torch tensors."""
import threading
import unittest

import numpy as np

import softrnn
from helpers import each_variant, needs_torch, operands, torch

if torch:
    from softrnn import _torch


def tensors(attention, dtype="float64", gradient=True, **sizes):
    found = operands(attention, dtype=dtype, **sizes)
    return {name: torch.from_numpy(x).requires_grad_(gradient) for name, x in found.items()}


def check_gradients(attention, inputs, **options):
    names = list(inputs)
    return torch.autograd.gradcheck(
        lambda *values: softrnn.attention(**dict(zip(names, values)), attention=attention, **options),
        tuple(inputs.values()))


@needs_torch
class Gradients(unittest.TestCase):
    def test_every_variant(self):
        checked = 0
        for variant in each_variant():
            if not variant.detach:  # whose gradient is not the function's: see below
                self.assertTrue(check_gradients(variant, tensors(variant)), str(variant))
                checked += 1
        self.assertGreater(checked, 20)

    def test_detached_normaliser(self):
        """The gradient is that of the same variant with the normaliser's value as a constant."""
        for variant in each_variant():
            if not variant.detach:
                continue
            inputs = tensors(variant, H=2, Hkv=2, T=5, D=4, Dv=4)
            q, k, v = (inputs[name] for name in "qkv")
            s = (q @ k.transpose(2, 3) / 2).clamp(max=variant.clamp or float("inf"))
            w = torch.exp(s) * torch.ones(5, 5, dtype=torch.float64).tril()
            total = w.sum(3, keepdim=True).detach()
            if variant.normaliser == "row_sum_min1":
                total = total.clamp(min=1)
            expected = w @ v / (total + variant.epsilon)
            if "output_gate" in inputs:
                expected = expected * torch.sigmoid(inputs["output_gate"])[..., None]
            o = softrnn.attention(**inputs, attention=variant)
            torch.testing.assert_close(o, expected)
            d_o = torch.randn_like(o)
            ours = torch.autograd.grad(o, list(inputs.values()), d_o)
            theirs = torch.autograd.grad(expected, list(inputs.values()), d_o)
            for name, a, b in zip(inputs, ours, theirs):
                torch.testing.assert_close(a, b, msg=f"{variant}: {name}")

    def test_chunked_form(self):
        self.assertTrue(check_gradients("order:2", tensors("order:2", T=9), form="chunked", chunk=4))

    def test_documents(self):
        self.assertTrue(check_gradients("norm", tensors("norm", T=9), documents=[0, 4, 9]))
        self.assertTrue(check_gradients("norm", tensors("norm", T=9), documents=torch.tensor([0, 4, 9])))

    def test_some_inputs_only(self):
        inputs = tensors("gate")
        for name in ("q", "k"):
            inputs[name].requires_grad_(False)
        softrnn.attention(**inputs, attention="gate").sum().backward()
        self.assertIsNone(inputs["q"].grad)
        self.assertIsNotNone(inputs["output_gate"].grad)

    def test_strides(self):
        """Inputs as a projection leaves them: (B, T, heads, D); the output lies in the same way."""
        x = torch.randn(2, 7, 3, 3, 4, dtype=torch.float64, requires_grad=True)
        q, k, v = (x[:, :, n].transpose(1, 2) for n in range(3))
        o = softrnn.attention(q, k, v, "norm")
        self.assertTrue(o.transpose(1, 2).is_contiguous())
        plain = softrnn.attention(q.contiguous(), k.contiguous(), v.contiguous(), "norm")
        self.assertTrue(torch.equal(o, plain))
        d_o = torch.randn_like(plain)
        self.assertTrue(torch.equal(torch.autograd.grad(o, x, d_o)[0], torch.autograd.grad(plain, x, d_o)[0]))

    def test_twice_is_refused(self):
        inputs = tensors("softmax")
        gradient, = torch.autograd.grad(softrnn.attention(**inputs).sum(), inputs["q"], create_graph=True)
        with self.assertRaises(softrnn.UnsupportedError) as caught:
            gradient.sum().backward()
        self.assertIn("no second derivative", str(caught.exception))

    def test_recurrent_form_has_none(self):
        with self.assertRaises(softrnn.UnsupportedError) as caught:
            softrnn.attention(**tensors("order:1"), attention="order:1", form="recurrent").sum().backward()
        self.assertIn("backward", str(caught.exception))


@needs_torch
class Calls(unittest.TestCase):
    def test_same_bits_as_numpy(self):
        for dtype in ("float32", "float64"):
            for variant in each_variant():
                inputs = operands(variant, dtype=dtype, T=19, H=4, Hkv=2, D=8, Dv=8)
                d_o = np.random.default_rng(5).normal(size=(1, 4, 19, 8)).astype(dtype)
                expected = softrnn.gradients(d_o, **inputs, attention=variant)
                given = {n: torch.from_numpy(x).requires_grad_() for n, x in inputs.items()}
                o = softrnn.attention(**given, attention=variant)
                o.backward(torch.from_numpy(d_o))
                np.testing.assert_array_equal(o.detach().numpy(), expected["o"], err_msg=str(variant))
                for name, tensor in given.items():
                    np.testing.assert_array_equal(tensor.grad.numpy(), expected[name], err_msg=f"{variant}: {name}")

    def test_inputs_are_not_copied(self):
        from softrnn._library import ffi
        from softrnn._plans import Options
        inputs = tensors("gated_softmax")
        variant = softrnn.parse("gated_softmax")
        given = [inputs[name] for name in variant.operands]
        softrnn.attention(**inputs, attention=variant)
        plan = _torch._waiting_plan(variant, given, Options())  # of the call before
        for name in variant.operands:
            member = getattr(plan.inputs.struct, name)
            address = member.data if ffi.typeof(member).kind == "struct" else member
            self.assertEqual(int(ffi.cast("intptr_t", address)), inputs[name].data_ptr(), name)

    def test_half_types(self):
        inputs = tensors("gated_softmax", "float32", gradient=False)
        exact = softrnn.attention(**inputs, attention="gated_softmax")
        for dtype in (torch.bfloat16, torch.float16):
            half = {n: x.to(dtype).requires_grad_() for n, x in inputs.items()}
            o = softrnn.attention(**half, attention="gated_softmax")
            self.assertEqual(o.dtype, dtype)
            torch.testing.assert_close(o.float(), exact, atol=0.1, rtol=0.1)
            o.float().sum().backward()
            self.assertEqual(half["q"].grad.dtype, dtype)

    def test_autocast(self):
        inputs = tensors("gated_softmax", "float32")
        inputs["k"] = inputs["k"].detach().bfloat16().requires_grad_()  # as a projection under autocast gives it
        with torch.autocast("cpu", dtype=torch.bfloat16):
            o = softrnn.attention(**inputs, attention="gated_softmax")
        self.assertEqual(o.dtype, torch.bfloat16)
        o.float().sum().backward()
        self.assertEqual(inputs["q"].grad.dtype, torch.float32)
        self.assertEqual(inputs["norm_weight"].grad.dtype, torch.float32)

    def test_threads(self):
        inputs = tensors("norm", T=40, H=2, Hkv=2, D=8, Dv=8)
        def gradients():
            o = softrnn.attention(**inputs, attention="norm")
            return torch.autograd.grad(o.sum(), list(inputs.values()))
        expected, wrong = gradients(), []
        def work():
            for _ in range(30):
                wrong.extend(1 for a, b in zip(gradients(), expected) if not torch.equal(a, b))
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_state(self):
        inputs = tensors("order:2", "float32", gradient=False, T=12, H=2, Hkv=2, D=8, Dv=8)
        state = softrnn.State("order:2", H=2, D=8, dtype=torch.float32)
        parts = [state.feed(**{n: x[:, :, t:t + 4] for n, x in inputs.items()}) for t in range(0, 12, 4)]
        torch.testing.assert_close(torch.cat(parts, 2), softrnn.attention(**inputs, attention="order:2"))

    def test_agrees_with_torch(self):
        if not hasattr(torch.nn.functional, "scaled_dot_product_attention"):
            self.skipTest("this torch has no attention of its own")
        inputs = tensors("softmax", "float32", T=65, H=4, Hkv=4, D=16, Dv=16)
        theirs = torch.nn.functional.scaled_dot_product_attention(*(inputs[n] for n in "qkv"), is_causal=True)
        torch.testing.assert_close(softrnn.attention(**inputs), theirs)


@needs_torch
class Compiled(unittest.TestCase):
    def setUp(self):
        if not hasattr(torch.library, "custom_op"):
            self.skipTest("torch.compile needs torch 2.4 here")

    def test_compile(self):
        def loss(q, k, v, output_gate):
            return softrnn.attention(q * 2, k, v, "gate", output_gate=output_gate).square().sum()
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        for T in (9, 6, 5):  # the second length makes torch think of lengths as variable
            inputs = tensors("gate", "float32", T=T)
            expected = loss(**inputs)
            got = compiled(**inputs)
            torch.testing.assert_close(got, expected)
            for a, b in zip(*(torch.autograd.grad(x, list(inputs.values())) for x in (got, expected))):
                torch.testing.assert_close(a, b)

    def test_compile_where_heads_share_queries(self):
        variant = next(variant for variant in softrnn.variants() if variant.name == "mamba2")
        inputs = tensors(variant, "float32", H=4, Hkv=2)
        self.assertEqual((inputs["q"].shape[1], inputs["v"].shape[1]), (2, 4))

        def by_head(**operands):
            o = softrnn.attention(attention=variant.text, **operands)
            return o * torch.arange(o.shape[1])[:, None, None]
        compiled = torch.compile(by_head, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(**inputs), by_head(**inputs))

    def test_compiled_second_derivative_is_refused(self):
        inputs = tensors("softmax")
        o = _torch.traced("softmax", (inputs["q"], inputs["k"], inputs["v"], {}), None, softrnn._plans.Options())
        gradient, = torch.autograd.grad(o.sum(), inputs["q"], create_graph=True)
        with self.assertRaises(softrnn.UnsupportedError):
            gradient.sum().backward()

    def test_operator_is_registered_properly(self):
        for attention in ("norm", "order:2"):
            inputs = tensors(attention, "float32")
            torch.library.opcheck(torch.ops.softrnn.attention.default,
                                  ([inputs[n] for n in "qkv"], None, softrnn.parse(attention).text, "auto", 0, "", 0, 0, 0,
                                   0.0))

    def test_operator_checks_its_operands(self):
        q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
        for words, operands in (("operands were given", [q, k]), ("k is of type", [q, k.double(), v]),
                                ("q is of type", [q.half(), k.half(), v.half()])):
            with self.assertRaises(softrnn.SoftrnnError) as caught:
                torch.ops.softrnn.attention(operands, None, "score=exp", "auto", 0, "", 0, 0, 0, 0.0)
            self.assertIn(words, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
