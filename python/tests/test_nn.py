"""Layers for torch."""
import copy
import pickle
import unittest

import softrnn
from helpers import each_variant, needs_torch, torch

if torch:
    import softrnn.nn


@needs_torch
class Layers(unittest.TestCase):
    def test_every_variant_learns(self):
        for variant in each_variant():
            torch.manual_seed(0)
            if variant.layer == "rwkv7":
                with self.assertRaisesRegex(softrnn.UnsupportedError, "token shifts"):
                    softrnn.nn.Attention(16, heads=4, kv_heads=4, attention=variant)
                continue
            layer = softrnn.nn.Attention(16, heads=4, kv_heads=2, attention=variant)
            y = layer(torch.randn(2, 9, 16))
            self.assertEqual(y.shape, (2, 9, 16))
            y.square().sum().backward()
            for name, parameter in layer.named_parameters():
                self.assertIsNotNone(parameter.grad, f"{variant}: {name}")

    def test_pieces(self):
        own = [variant for variant in softrnn.variants() if variant.layer not in ("plain", "rwkv7")]
        self.assertGreater(len(own), 10)
        for attention in ["softmax", "order:2", "gate,short_conv=4", "gated_softmax", "linear_elu", *own]:
            torch.manual_seed(0)
            layer = softrnn.nn.Attention(16, heads=2, attention=attention).double()
            x = torch.randn(3, 11, 16, dtype=torch.float64)
            with torch.no_grad():
                whole = layer(x)
                state = layer.new_state(3)
                parts = [layer(x[:, a:b], state=state) for a, b in ((0, 1), (1, 6), (6, 11))]
            torch.testing.assert_close(torch.cat(parts, 1), whole, msg=lambda m: f"{attention}: {m}")
            self.assertEqual(state.position, 11)

    def test_refused_pieces_leave_the_state(self):
        layer = softrnn.nn.Attention(16, heads=2, attention="gate,short_conv=4").double()
        x = torch.randn(1, 9, 16, dtype=torch.float64)
        state = layer.new_state(1)
        with torch.no_grad():
            whole = layer(x)
            first = layer(x[:, :4], state=state)
        with self.assertRaises(softrnn.ArgumentError):
            layer(x[:, 5:], state=state)  # with gradients
        with torch.no_grad():
            torch.testing.assert_close(torch.cat((first, layer(x[:, 4:], state=state)), 1), whole)

    def test_states_are_copied(self):
        layer = softrnn.nn.Attention(16, heads=2, attention="gate,short_conv=4").double()
        x = torch.randn(1, 9, 16, dtype=torch.float64)
        with torch.no_grad():
            whole, state = layer(x), layer.new_state(1)
            layer(x[:, :4], state=state)
            for other in (state.copy(), copy.deepcopy(state)):
                torch.testing.assert_close(layer(x[:, 4:], state=other), whole[:, 4:])
            model, kept = pickle.loads(pickle.dumps((layer, state)))
            torch.testing.assert_close(model(x[:, 4:], state=kept), whole[:, 4:])
            model, kept = copy.deepcopy((layer, state))
            torch.testing.assert_close(model(x[:, 4:], state=kept), whole[:, 4:])
        self.assertEqual(state.position, 4)

    def test_functional_call(self):
        """Per-sample gradients of every parameter, learned vectors included."""
        if not hasattr(torch.library, "custom_op"):
            self.skipTest("needs torch 2.4")
        for attention in ("gla", "gate,short_conv=3"):
            torch.manual_seed(0)
            layer, x = softrnn.nn.Attention(16, heads=2, attention=attention).double(), torch.randn(3, 7, 16, dtype=torch.float64)
            def loss(parameters, row):
                return torch.func.functional_call(layer, parameters, (row[None],)).square().sum()
            found = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(dict(layer.named_parameters()), x)
            layer(x[1:2]).square().sum().backward()
            for name, parameter in layer.named_parameters():
                torch.testing.assert_close(found[name][1], parameter.grad, msg=lambda m: f"{attention}, {name}: {m}")

    def test_documents(self):
        layer = softrnn.nn.Attention(16, heads=2, attention="gate,short_conv=3").double()
        x = torch.randn(1, 10, 16, dtype=torch.float64)
        with torch.no_grad():
            packed = layer(x, documents=[0, 4, 10])
            torch.testing.assert_close(packed[:, :4], layer(x[:, :4]))
            torch.testing.assert_close(packed[:, 4:], layer(x[:, 4:]))

    def test_names(self):
        names = dict(softrnn.nn.Attention(16, heads=4, kv_heads=2,
                                          attention="gated_softmax,short_conv=4,normaliser=value_power").named_parameters())
        shapes = {name: tuple(parameter.shape) for name, parameter in names.items()}
        self.assertEqual(shapes, {
            "qkv_proj.weight": (32, 16), "conv1d.weight": (32, 1, 4), "o_proj.weight": (16, 16),
            "in_gate_proj.weight": (2, 16), "in_gate_proj.bias": (2,), "out_gate_proj.weight": (4, 16),
            "out_gate_proj.bias": (4,), "out_norm.weight": (4,), "out_norm.bias": (4,), "norm_const": (1, 2, 1, 1)})

    def test_layers_of_their_own(self):
        """Names, sizes and first values are those of softrnn train."""
        torch.manual_seed(0)
        layer = softrnn.nn.Attention(32, heads=4, attention="mamba2", sizes={"key_size": 8})
        self.assertEqual({name: tuple(parameter.shape) for name, parameter in layer.named_parameters()}, {
            "in_proj.weight": (152, 32), "conv1d.weight": (80, 1, 4), "conv1d.bias": (80,), "out_proj.weight": (32, 64),
            "norm.weight": (64,), "A_log": (8,), "dt_bias": (8,), "D": (8,)})
        self.assertTrue(bool(((layer.A_log.exp() >= 1) & (layer.A_log.exp() <= 16)).all()))
        steps = torch.nn.functional.softplus(layer.dt_bias)
        self.assertTrue(bool(((steps > 0.0009) & (steps < 0.11)).all()))
        torch.manual_seed(0)
        again = softrnn.nn.Attention(32, heads=4, attention="mamba2", sizes={"key_size": 8})
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(layer.parameters(), again.parameters())))
        x = torch.randn(1, 6, 32)
        self.assertTrue(torch.equal(layer(x), copy.deepcopy(layer)(x)))

    def test_refused(self):
        for words, arguments in (("even", dict(dim=15, heads=5)), ("did you mean", dict(dim=16, heads=2, attention="norn"))):
            with self.assertRaises(softrnn.SoftrnnError) as caught:
                softrnn.nn.Attention(**arguments)
            self.assertIn(words, str(caught.exception))
        for words, sizes in (("no size 'width'", {"width": 3}), ("rank is -1", {"rank": -1}), ("fits", {"heads": "two"})):
            with self.assertRaises(softrnn.SoftrnnError) as caught:
                softrnn.nn.Attention(16, heads=2, attention="gla", sizes=sizes)
            self.assertIn(words, str(caught.exception))
        layer = softrnn.nn.Attention(16, heads=2)
        with self.assertRaises(softrnn.ArgumentError):
            layer(torch.randn(1, 4, 16), documents=[0, 4], state=layer.new_state())

    def test_refused_when_made(self):
        for words, arguments in (
                ("unexpected keyword argument 'causal'", dict(causal=False)),
                ("unexpected keyword argument 'device'", dict(device="cuda")),
                ("did you mean heads?", dict(num_heads=4)), ("did you mean dim?", dict(hidden_size=4)),
                ("form must be one of", dict(form="serial")), ("chunk must be a whole number", dict(chunk="many")),
                ("among 5 heads: give head_dim", dict(heads=5)), ("among 5 heads", dict(heads=5, attention="mamba2")),
                ("heads is 0", dict(heads=0)), ("whole model", dict(attention="avey_causal")),
                ("whole model", dict(attention="avey,chunk=4"))):
            with self.assertRaises((softrnn.SoftrnnError, TypeError)) as caught:
                softrnn.nn.Attention(**{"dim": 64, "heads": 4, **arguments})
            self.assertIn(words, str(caught.exception))
        self.assertEqual(softrnn.nn.Attention(64, heads=5, head_dim=8).o_proj.in_features, 40)

    def test_refused_inputs(self):
        layer, other = (softrnn.nn.Attention(16, heads=2, attention=name) for name in ("norm,short_conv=3", "order:2"))
        x = torch.randn(1, 4, 16)
        with torch.no_grad():
            for words, call in (
                    ("another layer", lambda: other(x, state=layer.new_state())),
                    ("another layer", lambda: copy.deepcopy(layer)(x, state=layer.new_state())),
                    ("x has 1 sequences, and the state 2", lambda: layer(x, state=layer.new_state(2))),
                    ("x has the shape (4, 16); a tensor (B, T, 16)", lambda: layer(x[0])),
                    ("x has the shape (1, 4, 8)", lambda: layer(x[..., :8])),
                    ("x has the type list", lambda: layer([1.0]))):
                with self.assertRaises(softrnn.ArgumentError) as caught:
                    call()
                self.assertIn(words, str(caught.exception))

    def test_shown(self):
        shown = repr(softrnn.nn.Attention(16, heads=4, kv_heads=2, attention="linear_elu"))
        self.assertIn("attention=linear_elu, heads=4, kv_heads=2, head_dim=4", shown)
        self.assertEqual(dir(softrnn.nn), sorted(softrnn.nn.__all__))

    def test_bf16(self):
        layer = softrnn.nn.Attention(16, heads=2, attention="gated_softmax").to(torch.bfloat16)
        x = torch.randn(1, 6, 16, dtype=torch.bfloat16)
        y = layer(x)
        self.assertEqual(y.dtype, torch.bfloat16)
        y.float().sum().backward()
        with torch.no_grad():
            torch.testing.assert_close(layer(x, state=layer.new_state()), y, atol=0.05, rtol=0.05)


if __name__ == "__main__":
    unittest.main()
