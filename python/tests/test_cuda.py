"""Attention on tensors of a GPU; skipped where torch or softrnn has none."""
import threading
import unittest

import numpy as np

import softrnn
from helpers import each_variant, operands, torch


def there_is_a_gpu():
    if not torch or not torch.cuda.is_available():
        return False
    try:
        softrnn.State("softmax", H=1, D=8, device="cuda")
    except softrnn.UnsupportedError:
        return False
    return True


@unittest.skipUnless(there_is_a_gpu(), "no GPU, or a build without CUDA")
class Cuda(unittest.TestCase):
    def pair(self, attention, **sizes):
        """The same operands on both sides."""
        found = operands(attention, dtype="float32", **sizes)
        return [{n: torch.from_numpy(x).to(device).requires_grad_() for n, x in found.items()}
                for device in ("cpu", "cuda")]

    def test_every_variant_agrees_with_the_cpu(self):
        tried = 0
        for variant in each_variant():
            host, gpu = self.pair(variant, B=2, H=4, Hkv=2, T=70, D=32, Dv=32)
            try:
                o = softrnn.attention(**gpu, attention=variant)
            except softrnn.UnsupportedError:
                continue
            expected = softrnn.attention(**host, attention=variant)
            d_o = torch.randn_like(expected)
            expected.backward(d_o)
            o.backward(d_o.cuda())
            scale = expected.abs().max().item()
            torch.testing.assert_close(o.cpu(), expected, atol=2e-4 * scale, rtol=2e-4, msg=lambda m: f"{variant}: {m}")
            for name in host:
                a, b = gpu[name].grad.cpu(), host[name].grad
                self.assertLess((a - b).abs().max().item(), 1e-3 * max(1e-3, b.abs().max().item()), f"{variant}: {name}")
            tried += 1
        self.assertGreater(tried, 25)

    def test_bf16_against_torch(self):
        q, k, v = (torch.randn(2, 8, 300, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        o = softrnn.attention(q, k, v)
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.testing.assert_close(o, theirs, atol=2e-2, rtol=2e-2)
        d_o = torch.randn_like(o)
        ours = torch.autograd.grad(o, (q, k, v), d_o)
        for a, b in zip(ours, torch.autograd.grad(theirs, (q, k, v), d_o)):
            torch.testing.assert_close(a, b, atol=6e-2, rtol=6e-2)

    def test_transposed_bf16(self):
        x = torch.randn(2, 200, 3, 4, 64, device="cuda", dtype=torch.bfloat16)
        q, k, v = (x[:, :, n].transpose(1, 2) for n in range(3))
        o = softrnn.attention(q, k, v, "norm")
        plain = softrnn.attention(q.contiguous(), k.contiguous(), v.contiguous(), "norm")
        torch.testing.assert_close(o, plain)
        self.assertTrue(o.transpose(1, 2).is_contiguous())

    def test_streams(self):
        """Work follows what was started on torch's current stream, and what follows there waits for it."""
        base = [torch.randn(1, 4, 512, 64, device="cuda") for _ in range(3)]
        expected = softrnn.attention(*(3 * x for x in base), "norm") + 1
        torch.cuda.synchronize()
        for stream in (torch.cuda.Stream(), torch.cuda.default_stream(), torch.cuda.Stream()):
            for _ in range(5):
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(20_000_000)  # what is computed too early reads the old numbers
                    inputs = [torch.zeros_like(x) for x in base]
                    for to, x in zip(inputs, base):
                        to.copy_(x).mul_(3)
                    o = softrnn.attention(*inputs, "norm").add_(1)
                stream.synchronize()
                self.assertTrue(torch.equal(o, expected))

    def test_threads(self):
        inputs = [[torch.randn(1, 2, 128, 32, device="cuda") for _ in range(3)] for _ in range(4)]
        expected = [softrnn.attention(*x) for x in inputs]
        torch.cuda.synchronize()
        wrong = []

        def work(n):
            stream = torch.cuda.Stream() if n % 2 else torch.cuda.default_stream()
            with torch.cuda.stream(stream):
                for _ in range(50):
                    if not torch.equal(softrnn.attention(*inputs[n]), expected[n]):
                        wrong.append(n)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_state(self):
        for attention, dtype in (("order:2", "float32"), ("softmax", "float32"), ("order:1", "bfloat16")):
            x = {n: torch.from_numpy(a).cuda().to(getattr(torch, dtype))
                 for n, a in operands(attention, dtype="float32", H=2, Hkv=2, T=20, D=16, Dv=16).items()}
            state = softrnn.State(attention, H=2, D=16, dtype=dtype, device="cuda", piece=4)
            parts = [state.feed(**{n: a[:, :, t:t + 5] for n, a in x.items()}) for t in range(0, 20, 5)]
            tolerance = 5e-2 if dtype == "bfloat16" else 1e-3
            torch.testing.assert_close(torch.cat(parts, 2), softrnn.attention(**x, attention=attention), atol=tolerance,
                                       rtol=tolerance)

    def test_pieces_with_states(self):
        """Rows cut into pieces, with gradients through states, as whole ones in float32 on the CPU."""
        plain = "score=linear,normaliser=none,position=none"  # the fastest kernel of which takes no states
        for attention in (plain, "gla", "gated_delta_net"):
            given = {n: torch.from_numpy(a).bfloat16() if a.ndim > 2 else torch.from_numpy(a)
                     for n, a in operands(attention, dtype="float32", B=2, H=2, Hkv=2, T=135, D=64, Dv=64).items()}
            found = []
            for cuts, place in (((0, 37, 101, 135), lambda t: t.cuda()), ((0, 135), lambda t: t.float())):
                x = {n: place(a).requires_grad_() for n, a in given.items()}
                state, outputs = None, []
                for start, end in zip(cuts, cuts[1:]):
                    piece = {n: a[:, :, start:end] if a.ndim > 2 else a for n, a in x.items()}
                    o, state = softrnn.attention(attention=attention, initial_state=state, return_state=True, **piece)
                    outputs.append(o)
                self.assertEqual(state.dtype, torch.float32)
                o = torch.cat(outputs, 2)
                (o.float().sin().sum() + state.cos().sum()).backward()
                found.append({"o": o, "state": state, **{n: a.grad for n, a in x.items()}})
            for name, expected in found[1].items():
                error = (found[0][name].detach().cpu().float() - expected.detach()).norm() / expected.detach().norm()
                self.assertLess(error, 3e-2, f"{attention}: {name}")

    def test_autocast(self):
        x = {n: torch.from_numpy(a).cuda().requires_grad_()
             for n, a in operands("gated_softmax", dtype="float32", T=40, D=32, Dv=32).items()}
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cuda", dtype=dtype):
                o = softrnn.attention(**x, attention="gated_softmax")
            self.assertEqual(o.dtype, dtype)
            o.float().sum().backward()
            self.assertEqual(x["norm_weight"].grad.dtype, torch.float32)

    def test_compile(self):
        if not hasattr(torch.library, "custom_op"):
            self.skipTest("torch.compile needs torch 2.4 here")
        inputs = [torch.randn(1, 2, 64, 32, device="cuda", requires_grad=True) for _ in range(3)]
        compiled = torch.compile(lambda q, k, v: softrnn.attention(q, k, v, "norm").square().sum(), fullgraph=True,
                                 backend="aot_eager")
        expected = softrnn.attention(*inputs, "norm").square().sum()
        got = compiled(*inputs)
        torch.testing.assert_close(got, expected)
        for a, b in zip(*(torch.autograd.grad(x, inputs) for x in (got, expected))):
            torch.testing.assert_close(a, b)

    def test_refused(self):
        q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
        for words, arguments in (("k is on cpu, and q on cuda:0", (q.cuda(), k, v)),
                                 ("double", (q.cuda().double(), k.cuda().double(), v.cuda().double())),
                                 ("k is on cuda:0, and q on cpu", (q, k.cuda(), v))):
            with self.assertRaises(softrnn.SoftrnnError) as caught:
                softrnn.attention(*arguments)
            self.assertIn(words, str(caught.exception))
        state = softrnn.State("softmax", H=2, D=16, device="cuda")
        for arguments in ((q, k, v), tuple(x.numpy() for x in (q, k, v))):
            with self.assertRaises(softrnn.SoftrnnError):
                state.feed(*arguments)

    def test_memory_is_given_back(self):
        for T in range(16, 400):
            softrnn.attention(*(torch.zeros(1, 1, T, 16, device="cuda") for _ in range(3)))
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        for T in range(400, 800):
            softrnn.attention(*(torch.zeros(1, 1, T, 16, device="cuda") for _ in range(3)))
        torch.cuda.synchronize()
        self.assertLess(before - torch.cuda.mem_get_info()[0], 64 << 20)


if __name__ == "__main__":
    unittest.main()
