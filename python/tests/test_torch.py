"""Attention on torch tensors."""
import threading
import unittest
import warnings

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
                    if variant.keeps_output:  # numerators are made of it, and rounded once more
                        limit = 8 * np.finfo(dtype).eps * max(1, np.abs(expected[name]).max())
                        np.testing.assert_allclose(tensor.grad.numpy(), expected[name], atol=limit, rtol=0, err_msg=str(variant))
                    else:
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

    def test_compile_with_layout_and_scale(self):
        def with_layout(q, k, v):
            return softrnn.attention(q, k, v, "norm", layout="bthd", scale=0.7)
        inputs = [torch.randn(1, 9, 2, 4) for _ in range(3)]
        torch.testing.assert_close(torch.compile(with_layout, fullgraph=True, backend="aot_eager")(*inputs), with_layout(*inputs))

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
                                ("q is of type", [q.int(), k.int(), v.int()])):
            with self.assertRaises(softrnn.SoftrnnError) as caught:
                torch.ops.softrnn.attention(operands, None, "score=exp", "auto", 0, "", 0, 0, 0, 0.0)
            self.assertIn(words, str(caught.exception))


@needs_torch
class Traced(unittest.TestCase):
    """Tracers, transforms and modes see the operator, or are refused: a call of the library would pass unseen."""

    def setUp(self):
        if not hasattr(torch.library, "custom_op"):
            self.skipTest("needs torch 2.4")
        torch.manual_seed(0)
        self.first, self.other = ([torch.randn(1, 2, 9, 4) for _ in range(3)] for _ in range(2))

    @staticmethod
    def norm(q, k, v):
        return softrnn.attention(q, k, v, "norm")

    def loss(self, q, k, v):
        return self.norm(q, k, v).square().sum()

    def gradients(self, inputs):
        inputs = [x.clone().requires_grad_() for x in inputs]
        return torch.autograd.grad(self.loss(*inputs), inputs)

    def test_tracers_record_the_operator(self):
        from torch.fx.experimental.proxy_tensor import make_fx
        traced = {mode: make_fx(self.norm, tracing_mode=mode)(*self.first) for mode in ("real", "fake", "symbolic")}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced["jit"] = torch.jit.trace(self.norm, tuple(self.first))
        for mode, function in traced.items():
            self.assertTrue(torch.equal(function(*self.other), self.norm(*self.other)), mode)

    def test_flops(self):
        from torch.utils.flop_counter import FlopCounterMode
        def counted(function, T, **options):
            inputs = [torch.randn(2, 3, T, 16, requires_grad=True) for _ in range(3)]
            with FlopCounterMode(display=False) as mode:
                function(*inputs, **options).sum().backward()
            return mode.get_total_flops()
        self.assertEqual(counted(self.norm, 50),
                         counted(torch.nn.functional.scaled_dot_product_attention, 50, is_causal=True))
        chunked = [counted(softrnn.attention, T, attention="order:2", form="chunked", chunk=8) for T in (64, 128)]
        self.assertEqual(2 * chunked[0], chunked[1])

    def test_backward_alone_is_seen(self):
        from torch._dynamo import compiled_autograd
        from torch.utils.flop_counter import FlopCounterMode
        inputs = [x.clone().requires_grad_() for x in self.first]
        o, sdpa = self.norm(*inputs), torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
        expected, flops = torch.autograd.grad(o.sum(), inputs, retain_graph=True), []
        for output in (o, sdpa):
            with FlopCounterMode(display=False) as mode:
                torch.autograd.grad(output.sum(), inputs, retain_graph=True)
            flops.append(mode.get_total_flops())
        self.assertEqual(*flops)
        with self.assertRaisesRegex(softrnn.UnsupportedError, "is_grads_batched"):
            torch.autograd.grad(o, inputs, torch.randn(3, *o.shape), is_grads_batched=True, retain_graph=True)
        if hasattr(compiled_autograd, "_enable"):
            with compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
                o.sum().backward()
            for x, gradient in zip(inputs, expected):
                torch.testing.assert_close(x.grad, gradient)

    def test_forward_mode_is_refused(self):
        def dual():
            with torch.autograd.forward_ad.dual_level():
                return self.norm(torch.autograd.forward_ad.make_dual(self.first[0], self.other[0]), *self.first[1:])
        for call in (dual, lambda: torch.func.jvp(self.norm, tuple(self.first), tuple(self.other)),
                     lambda: torch.func.jacfwd(self.norm)(*self.first)):
            with self.assertRaises(softrnn.UnsupportedError) as caught:
                call()
            self.assertIn("forward-mode", str(caught.exception))

    def test_func_grad(self):
        for a, b in zip(torch.func.grad(self.loss, argnums=(0, 1, 2))(*self.first), self.gradients(self.first)):
            self.assertTrue(torch.equal(a, b))
        with self.assertRaises(softrnn.UnsupportedError):
            torch.func.hessian(self.loss)(*self.first)

    def test_vmap(self):
        stacked = [torch.stack(pair) for pair in zip(self.first, self.other)]
        expected = torch.stack([self.norm(*self.first), self.norm(*self.other)])
        torch.testing.assert_close(torch.vmap(self.norm)(*stacked), expected)
        shared = torch.vmap(self.norm, in_dims=(1, None, None))(stacked[0].transpose(0, 1), *self.first[1:])
        torch.testing.assert_close(shared[1], self.norm(self.other[0], *self.first[1:]))
        gradients = torch.vmap(torch.func.grad(self.loss, argnums=(0, 1, 2)), in_dims=(0, None, 0))(
            stacked[0], self.first[1], stacked[2])
        for a, b in zip(gradients, self.gradients([self.other[0], self.first[1], self.other[2]])):
            torch.testing.assert_close(a[1], b)

    def test_vmap_over_the_last_axis(self):
        """Where rows do not follow each other, also not after B and the mapped axis are one."""
        for B in (1, 2):
            mapped = [torch.randn(B, 2, 6, 4, 3, dtype=torch.float64) for _ in range(3)]
            expected = torch.stack([self.norm(*[x[..., n].contiguous() for x in mapped]) for n in range(3)])
            torch.testing.assert_close(torch.vmap(self.norm, in_dims=-1)(*mapped), expected)

    def test_vmap_of_packed_rows_and_vectors(self):
        inputs = tensors("gated_softmax", "float32", gradient=False, T=7)
        names = list(inputs)
        def packed(*values):
            return softrnn.attention(**dict(zip(names, values)), attention="gated_softmax", documents=[0, 3, 7])
        stacked = [torch.stack((x, x.flip(0) * 2)) for x in inputs.values()]
        expected = torch.stack([packed(*(x[n] for x in stacked)) for n in range(2)])
        torch.testing.assert_close(torch.vmap(packed)(*stacked), expected)
        def loss(*values):
            return packed(*values).square().sum()
        gradients = torch.vmap(torch.func.grad(loss, argnums=tuple(range(len(names)))))(*stacked)
        ones = [x[1].clone().requires_grad_() for x in stacked]
        for name, a, b in zip(names, gradients, torch.autograd.grad(loss(*ones), ones)):
            torch.testing.assert_close(a[1], b, msg=lambda m: f"{name}: {m}")

    def test_vmap_of_gradients_of_shared_vectors(self):
        """Per-sample gradients."""
        inputs = tensors("gated_softmax", "float32", gradient=False, T=7)
        names, stacked = list(inputs), torch.stack([inputs["q"], inputs["q"] * 2])
        def loss(norm_weight, q):
            given = {**inputs, "norm_weight": norm_weight, "q": q}
            return softrnn.attention(**given, attention="gated_softmax").square().sum()
        self.assertIn("norm_weight", names)
        found = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(inputs["norm_weight"], stacked)
        for n in range(2):
            torch.testing.assert_close(found[n], torch.func.grad(loss)(inputs["norm_weight"], stacked[n]))

    def test_jacrev(self):
        jacobian = torch.func.jacrev(self.norm)(*self.first)
        d_o = torch.randn_like(self.first[0])
        q = self.first[0].clone().requires_grad_()
        expected, = torch.autograd.grad(self.norm(q, *self.first[1:]), q, d_o)
        torch.testing.assert_close(torch.einsum("abcd,abcdefgh->efgh", d_o, jacobian), expected)

    def test_sizes_alone(self):
        """Meta and fake tensors, forward and backward."""
        from torch._subclasses import FakeTensorMode
        meta = [x.to("meta").requires_grad_() for x in self.first]
        self.norm(*meta).sum().backward()
        self.assertEqual(meta[1].grad.shape, self.first[1].shape)
        with FakeTensorMode():
            fake = [torch.randn(1, 2, 9, 4, requires_grad=True) for _ in range(3)]
            self.norm(*fake).sum().backward()
        self.assertEqual(fake[1].grad.shape, self.first[1].shape)

    def test_saved_bytes(self):
        from softrnn._saved import numerator_bytes, statistics_bytes
        for dtype in (torch.float32, torch.float64):
            for shape in ((1, 1, 1, 1), (2, 4, 37, 5), (1, 2, 64, 16)):
                q, k, v = (torch.zeros(shape, dtype=dtype) for _ in range(3))
                plan = _torch._take_plan(softrnn.parse("norm"), (q, k, v), softrnn._plans.Options())
                self.assertEqual(numerator_bytes(shape, dtype) + statistics_bytes(shape, dtype), plan.saved_bytes)
                softrnn._plans.pool.give_back(plan)


@needs_torch
class Saved(unittest.TestCase):
    def test_hooks_see_what_backward_needs(self):
        inputs = tensors("norm", "float32", T=64, H=2, Hkv=2, D=16, Dv=16)
        seen = {}
        def pack(tensor):
            seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor.clone()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            o = softrnn.attention(**inputs, attention="norm")
        self.assertGreater(sum(seen.values()), sum(x.numel() * 4 for x in inputs.values()) + o.numel() * 4)
        expected = torch.autograd.grad(softrnn.attention(**inputs, attention="norm").sum(), list(inputs.values()))
        for a, b in zip(torch.autograd.grad(o.sum(), list(inputs.values())), expected):
            self.assertTrue(torch.equal(a, b))

    def test_no_more_is_kept_than_by_torch(self):
        """Operands, output and row statistics; in the operands' type, also where the library computes in a wider one."""
        if not hasattr(torch.nn.functional, "scaled_dot_product_attention"):
            self.skipTest("this torch has no attention of its own")
        def bytes_held(function, inputs, **options):
            seen = {}
            def pack(tensor):
                seen[tensor.untyped_storage().data_ptr()] = (tensor.untyped_storage().nbytes(), tensor)
                return tensor
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                function(*inputs, **options)
            return sum(size for size, _ in seen.values())
        for dtype in (torch.float32, torch.bfloat16):
            inputs = [torch.randn(1, 2, 64, 32, dtype=dtype, requires_grad=True) for _ in range(3)]
            theirs = bytes_held(torch.nn.functional.scaled_dot_product_attention, inputs, is_causal=True)
            for attention in ("softmax", "order:2", "linear_elu", "forget"):
                gates = {"decay": torch.zeros(1, 2, 64, dtype=dtype)} if attention == "forget" else {}
                ours = bytes_held(softrnn.attention, inputs, attention=attention, **gates)
                self.assertLessEqual(ours - sum(x.nbytes for x in gates.values()), theirs + 2 * 64 * 4, attention)

    def test_default_device(self):
        """What is kept lies where the operands do."""
        if not hasattr(torch, "set_default_device"):
            self.skipTest("needs torch 2")
        inputs = tensors("norm", "float32")
        expected = torch.autograd.grad(softrnn.attention(**inputs, attention="norm").sum(), list(inputs.values()))
        with torch.device("meta"):
            found = torch.autograd.grad(softrnn.attention(**inputs, attention="norm").sum(), list(inputs.values()))
        for a, b in zip(found, expected):
            self.assertTrue(torch.equal(a, b))

    def test_a_changed_output_is_noticed(self):
        inputs = tensors("softmax", "float32")
        o = softrnn.attention(**inputs).mul_(2)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            o.sum().backward()

    def test_checkpointing(self):
        from torch.utils.checkpoint import checkpoint
        inputs = tensors("norm", "float32", T=33)
        def loss(*values):
            return softrnn.attention(*values, "norm").square().sum()
        expected = torch.autograd.grad(loss(*inputs.values()), list(inputs.values()))
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x, lambda x: x):
            o = checkpoint(loss, *inputs.values(), use_reentrant=False)
        self.assertFalse(any(x.dtype == torch.uint8 for x in packed))  # what the library keeps is computed again
        for a, b in zip(torch.autograd.grad(o, list(inputs.values())), expected):
            self.assertTrue(torch.equal(a, b))

    def test_nothing(self):
        """No sequence, or no token."""
        for cut in ((slice(0), slice(None)), (slice(None), slice(0))):
            inputs = tensors("gated_softmax", gradient=False)
            given = {n: (x[cut[0], :, cut[1]] if x.dim() > 2 else x).clone().requires_grad_() for n, x in inputs.items()}
            o = softrnn.attention(**given, attention="gated_softmax")
            self.assertEqual(o.shape, (0 if cut[0].stop == 0 else 1, 2, 0 if cut[1].stop == 0 else 5, 3))
            o.sum().backward()
            self.assertEqual(given["norm_weight"].grad.abs().sum(), 0)
            self.assertEqual(given["k"].grad.shape, given["k"].shape)

    def test_expanded_keys(self):
        q, k, v = tensors("softmax", H=4, Hkv=1, Dv=4).values()
        wide = [x.expand(1, 4, 5, 4) for x in (k, v)]
        o = softrnn.attention(q, *wide)
        torch.testing.assert_close(o, softrnn.attention(q, k, v))
        for a, b in zip(torch.autograd.grad(o.sum(), (k, v)), torch.autograd.grad(softrnn.attention(q, k, v).sum(), (k, v))):
            torch.testing.assert_close(a, b)


if __name__ == "__main__":
    unittest.main()
