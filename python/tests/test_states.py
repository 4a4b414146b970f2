"""Rows cut into pieces: initial and final states, and their gradients."""
import unittest

import numpy as np

import softrnn
from helpers import needs_torch, operands, torch

VARIANTS = ("linear_elu", "order:2", "power:2,normaliser=row_sum", "mamba2", "gla", "gated_delta_net", "rwkv7")
CUTS = (0, 1, 6, 17, 23)


def pieces(given):
    """The arguments of every piece; learned vectors belong to all of them."""
    tensors = [name for name, value in given.items() if value.ndim > 2]
    return [{name: value[:, :, start:end] if name in tensors else value for name, value in given.items()}
            for start, end in zip(CUTS, CUTS[1:])]


def in_pieces(attention, given):
    """o of each piece, and the last state."""
    state, outputs = None, []
    for piece in pieces(given):
        o, state = softrnn.attention(attention=attention, initial_state=state, return_state=True, **piece)
        outputs.append(o)
    return outputs, state


class Arrays(unittest.TestCase):
    def test_pieces_are_the_whole(self):
        for attention in VARIANTS:
            with self.subTest(attention):
                given = operands(attention, B=2, H=2, Hkv=1, T=CUTS[-1], D=4, Dv=4)
                outputs, state = in_pieces(attention, given)
                whole, last = softrnn.attention(attention=attention, return_state=True, **given)
                np.testing.assert_allclose(np.concatenate(outputs, axis=2), whole, rtol=1e-9, atol=1e-9)
                np.testing.assert_allclose(state, last, rtol=1e-9, atol=1e-9)
                self.assertEqual(state.dtype, np.float64)

    def test_layout_and_documents(self):
        given = operands("gla", B=1, H=2, Hkv=2, T=9, D=4, Dv=4)
        o, state = softrnn.attention(attention="gla", documents=[0, 4, 9], return_state=True, **given)
        swapped = {name: value.swapaxes(1, 2) if value.ndim > 2 else value for name, value in given.items()}
        again, same = softrnn.attention(attention="gla", documents=[0, 4, 9], return_state=True, layout="bthd", **swapped)
        np.testing.assert_array_equal(o, again.swapaxes(1, 2))
        np.testing.assert_array_equal(state, same)
        alone = {name: value[:, :, 4:] if value.ndim > 2 else value for name, value in given.items()}
        _, last = softrnn.attention(attention="gla", return_state=True, **alone)  # of the last document
        np.testing.assert_allclose(state, last, rtol=1e-12)

    def test_refused(self):
        given = operands("linear_elu", T=5)
        _, state = softrnn.attention(attention="linear_elu", return_state=True, **given)
        for wrong, error, words in ((state[:, :, 1:], ValueError, "is needed"), (state.astype("float32"), TypeError, "float64")):
            with self.assertRaisesRegex(error, words):
                softrnn.attention(attention="linear_elu", initial_state=wrong, **given)
        for attention, words in (("softmax", "no fixed-size state"), ("log_linear_mamba2", "a state for each level")):
            with self.assertRaisesRegex(NotImplementedError, words):
                softrnn.attention(attention=attention, return_state=True, **operands(attention, T=5))
        with self.assertRaisesRegex(NotImplementedError, "SRNN_FORM_CHUNKED"):
            softrnn.attention(attention="linear_elu", form="parallel", return_state=True, **given)


@needs_torch
class Tensors(unittest.TestCase):
    def test_gradients_pass_through_states(self):
        for attention in VARIANTS:
            with self.subTest(attention):
                given = operands(attention, B=2, H=2, Hkv=1, T=CUTS[-1], D=4, Dv=4)
                found = []
                for function in (in_pieces, lambda a, g: softrnn.attention(attention=a, return_state=True, **g)):
                    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in given.items()}
                    o, state = function(attention, leaves)
                    o = torch.cat(o, dim=2) if isinstance(o, list) else o
                    (o.sin().sum() + state.cos().sum()).backward()
                    found.append({"o": o, "state": state, **{name: leaf.grad for name, leaf in leaves.items()}})
                for name, value in found[1].items():
                    torch.testing.assert_close(found[0][name], value, rtol=1e-8, atol=1e-8, msg=f"{attention}: {name}")

    def test_gradcheck(self):
        for attention in ("order:2", "gated_delta_net"):
            given = {name: torch.tensor(value, requires_grad=True)
                     for name, value in operands(attention, B=1, H=2, Hkv=1, T=5, D=3, Dv=3).items()}
            _, state = softrnn.attention(attention=attention, return_state=True, **given)
            initial = torch.randn_like(state).requires_grad_()

            def function(initial, *values, attention=attention, names=tuple(given)):
                found = dict(zip(names, values))
                return softrnn.attention(attention=attention, initial_state=initial, return_state=True, **found)

            self.assertTrue(torch.autograd.gradcheck(function, (initial, *given.values())))

    def test_one_of_the_results(self):
        given = {name: torch.tensor(value, requires_grad=True) for name, value in operands("gla", T=7, D=4, Dv=4).items()}
        o, state = softrnn.attention(attention="gla", return_state=True, **given)
        from_state, = torch.autograd.grad(state.sum(), given["k"], retain_graph=True)
        from_o, = torch.autograd.grad(o.sum(), given["k"], retain_graph=True)
        both, = torch.autograd.grad(o.sum() + state.sum(), given["k"])
        torch.testing.assert_close(from_state + from_o, both)
        with torch.no_grad():
            torch.testing.assert_close(softrnn.attention(attention="gla", initial_state=torch.zeros_like(state), **given), o)

    def test_refused(self):
        given = {name: torch.tensor(value) for name, value in operands("gla", dtype="float32", T=7, D=4, Dv=4).items()}
        half = {name: value.half() for name, value in given.items()}
        with self.assertRaisesRegex(TypeError, "with states float32 or float64"):
            softrnn.attention(attention="gla", return_state=True, **half)
        with self.assertRaisesRegex(NotImplementedError, "outside"):
            torch.vmap(lambda q: softrnn.attention(attention="gla", return_state=True, **{**given, "q": q})[0])(given["q"][None])
        leaf = given["v"].requires_grad_()
        o, _ = softrnn.attention(attention="gla", return_state=True, **given)
        gradient, = torch.autograd.grad(o.square().sum(), leaf, create_graph=True)
        with self.assertRaises(RuntimeError):
            gradient.sum().backward()


if __name__ == "__main__":
    unittest.main()
