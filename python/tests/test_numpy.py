"""Attention and states on NumPy arrays."""
import copy
import gc
import math
import pickle
import resource
import sys
import threading
import time
import unittest
import warnings

import numpy as np

import softrnn
from helpers import each_variant, operands, softmax
from softrnn._library import ffi, lib
from softrnn._plans import CPU, Options, Sizes, make_problem


def in_c(attention, inputs, **options):
    """The same attention by nothing but calls of C."""
    q, k, v = (inputs[name] for name in "qkv")
    H = max(q.shape[1], v.shape[1])  # q and k, or k and v, are shared
    sizes = Sizes(q.dtype.name, q.shape[0], H, k.shape[1], q.shape[2], q.shape[3], v.shape[3])
    problem, _ = make_problem(softrnn.parse(attention), sizes, Options(**options), CPU)
    plan, struct, output = ffi.new("srnn_plan **"), ffi.new("srnn_operands *"), ffi.new("srnn_tensor *")
    assert lib.srnn_plan_create(plan, problem) == 0
    for name, array in inputs.items():
        address = ffi.cast("void *", array.ctypes.data)
        if isinstance(getattr(struct, name), ffi.CData) and ffi.typeof(getattr(struct, name)).kind == "struct":
            getattr(struct, name).data = address
        else:
            setattr(struct, name, address)
    o = np.empty((q.shape[0], H, q.shape[2], v.shape[3]), q.dtype)
    output.data = ffi.cast("void *", o.ctypes.data)
    assert lib.srnn_attention_forward(plan[0], output[0], struct, ffi.NULL) == 0
    lib.srnn_plan_free(plan[0])
    return o


class Attention(unittest.TestCase):
    def test_softmax_is_softmax(self):
        inputs = operands("softmax", H=4, Hkv=2, T=33, D=8, Dv=5)
        np.testing.assert_allclose(softrnn.attention(**inputs), softmax(**inputs), atol=1e-12)

    def test_same_bits_as_c(self):
        for dtype in ("float32", "float64"):
            for variant in each_variant():
                inputs = operands(variant, dtype=dtype, B=2, H=4, Hkv=2, T=37, D=16, Dv=16)
                ours = softrnn.attention(**inputs, attention=variant)
                np.testing.assert_array_equal(ours, in_c(variant, inputs), err_msg=str(variant))

    def test_forms_agree(self):
        inputs = operands("order:2", T=50, H=2, Hkv=2, D=8)
        whole = softrnn.attention(**inputs, attention="order:2", form="parallel")
        for options in ({"form": "chunked", "chunk": 16}, {"form": "recurrent"}):
            np.testing.assert_allclose(softrnn.attention(**inputs, attention="order:2", **options), whole, atol=1e-10)

    def test_documents(self):
        inputs = operands("gate", T=10)
        o = softrnn.attention(**inputs, attention="gate", documents=[0, 4, 10])
        second = {name: x[:, :, 4:] for name, x in inputs.items()}
        np.testing.assert_array_equal(o[:, :, 4:], softrnn.attention(**second, attention="gate"))
        # The same kind of call without documents, after one with them.
        whole = softrnn.attention(**inputs, attention="gate")
        self.assertGreater(np.abs(whole - o).max(), 1e-3)

    def test_strides(self):
        inputs = operands("softmax", B=2, H=3, Hkv=3, T=9, D=8, Dv=8)
        expected = softrnn.attention(**inputs)
        swapped = {name: np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
                  for name, x in inputs.items()}
        np.testing.assert_array_equal(softrnn.attention(**swapped), expected)
        wide = {name: np.concatenate([x, x], axis=3)[..., :8] for name, x in inputs.items()}
        np.testing.assert_array_equal(softrnn.attention(**wide), expected)
        backwards = {name: x[:, ::-1].copy()[:, ::-1] for name, x in inputs.items()}
        np.testing.assert_array_equal(softrnn.attention(**backwards), expected)

    def test_interfaces_of_other_arrays(self):
        class Interface:
            def __init__(self, array):
                self.array = array
                self.__array_interface__ = array.__array_interface__

        class Exchange:
            def __init__(self, array):
                self.array = array

            def __dlpack__(self, **options):
                return self.array.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

        inputs = operands("softmax")
        for kind in (Interface, Exchange):
            if kind is Exchange and not hasattr(np, "from_dlpack"):
                continue
            o = softrnn.attention(*(kind(inputs[name]) for name in "qkv"))
            np.testing.assert_array_equal(o, softrnn.attention(**inputs))

    def test_half_is_computed_in_float(self):
        inputs = operands("norm", dtype="float16")
        o = softrnn.attention(**inputs, attention="norm")
        self.assertEqual(o.dtype, np.float16)
        wide = softrnn.attention(**{n: x.astype("float32") for n, x in inputs.items()}, attention="norm")
        np.testing.assert_array_equal(o, wide.astype("float16"))

    def test_inputs_are_not_copied(self):
        """What C reads is the caller's memory."""
        from softrnn import _numpy
        inputs = operands("gated_softmax")
        variant = softrnn.parse("gated_softmax")
        values = [inputs[name] for name in variant.operands]
        plan = _numpy._take_plan(variant, _numpy._arrays(variant, values)[0], Options())
        for name, value in zip(variant.operands, values):
            member = getattr(plan.inputs.struct, name)
            address = member.data if ffi.typeof(member).kind == "struct" else member
            self.assertEqual(int(ffi.cast("intptr_t", address)), value.ctypes.data, name)

    def test_gradients(self):
        for variant in each_variant():
            if variant.detach:
                continue
            inputs = operands(variant, seed=3)
            d_o = np.random.default_rng(1).normal(size=(1, 2, 5, 3))
            results = softrnn.gradients(d_o, **inputs, attention=variant)
            for name, value in inputs.items():
                step = np.random.default_rng(2).normal(size=value.shape) * 1e-6
                ends = [np.sum(d_o * softrnn.attention(**{**inputs, name: value + sign * step}, attention=variant))
                        for sign in (1, -1)]
                np.testing.assert_allclose(np.sum(results[name] * step), (ends[0] - ends[1]) / 2, rtol=1e-4, atol=1e-10,
                                           err_msg=f"{variant}: {name}")

    def test_no_leak(self):
        inputs = operands("softmax", dtype="float32", T=64, H=4, Hkv=4, D=32, Dv=32)
        def calls(count):
            for _ in range(count):
                softrnn.attention(**inputs)

        def held():
            gc.collect()
            return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

        calls(2000)
        before = held()
        calls(10000)
        self.assertLess(held() - before, 2000000, "bytes after 10,000 calls")

    def test_plans_are_bounded(self):
        from softrnn._plans import pool
        for T in range(1, 200):
            inputs = operands("softmax", T=T)
            softrnn.attention(**inputs)
        self.assertLessEqual(pool._count, pool.MOST_PLANS)
        self.assertEqual(pool._count, sum(map(len, pool._waiting.values())))


class Threads(unittest.TestCase):
    def test_many_threads(self):
        inputs = [operands("norm", seed=seed, T=40, H=2, Hkv=2, D=16) for seed in range(4)]
        expected = [softrnn.attention(**x, attention="norm") for x in inputs]
        wrong = []

        def work(n):
            for _ in range(100):
                if not np.array_equal(softrnn.attention(**inputs[n], attention="norm"), expected[n]):
                    wrong.append(n)

        threads = [threading.Thread(target=work, args=(n % 4,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_interpreter_runs_on(self):
        """While one thread is in a kernel, Python runs in another."""
        inputs = operands("softmax", dtype="float32", B=1, H=16, Hkv=16, T=2048, D=64, Dv=64)
        softrnn.attention(**inputs, threads=1)
        inside, ticks = threading.Event(), []

        def tick():
            while not inside.is_set():
                ticks.append(time.perf_counter())
                time.sleep(0.001)

        ticker = threading.Thread(target=tick)
        old = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)
        try:
            ticker.start()
            start = time.perf_counter()
            softrnn.attention(**inputs, threads=1)
            end = time.perf_counter()
            inside.set()
            ticker.join()
        finally:
            sys.setswitchinterval(old)
        middle = [t for t in ticks if start + 0.2 * (end - start) < t < end - 0.2 * (end - start)]
        self.assertGreater(len(middle), 3, f"ticks while a kernel ran for {end - start:.3f} s")


class Edges(unittest.TestCase):
    def test_nothing(self):
        """No sequence, or no token."""
        inputs = operands("gate", B=2)
        for cut in (np.s_[:0], np.s_[:, :, :0]):
            given = {n: x[cut] for n, x in inputs.items()}
            o = softrnn.attention(**given, attention="gate")
            self.assertEqual(o.shape, (*given["q"].shape[:3], 3))
            found = softrnn.gradients(o, **given, attention="gate")
            self.assertEqual({n: x.shape for n, x in found.items() if n != "o"}, {n: x.shape for n, x in given.items()})

    def test_expanded(self):
        """An axis of stride 0 is copied out."""
        x = operands("softmax", H=4, Hkv=1, D=4, Dv=4)
        wide = {n: np.broadcast_to(x[n], (1, 4, 5, 4)) for n in "kv"}
        np.testing.assert_allclose(softrnn.attention(x["q"], **wide), softrnn.attention(**x), atol=1e-12)

    def test_a_row_sum_over_thousands_of_features(self):
        """Through a state a row sum has as many terms as the state has rows, 12341 here, most of them positive."""
        variant = "score=power:3,feature=norm_cosine"
        x = operands(variant, T=128, D=20, dtype="float32")
        exact = softrnn.attention(**{name: value.astype("float64") for name, value in x.items()}, attention=variant)
        for form in ("chunked", "recurrent"):
            error = np.linalg.norm(softrnn.attention(**x, attention=variant, form=form) - exact) / np.linalg.norm(exact)
            self.assertLess(error, 1e-6, form)

    def test_scale(self):
        x = operands("softmax", H=2, Hkv=2, D=4, Dv=4)
        expected = softmax(x["q"] * 0.3 * 2, x["k"], x["v"])  # 2 = sqrt(D)
        np.testing.assert_allclose(softrnn.attention(**x, scale=0.3), expected, atol=1e-12)
        np.testing.assert_allclose(softrnn.attention(**x, scale=np.float32(0.3)), expected, atol=1e-7)
        linear = operands("gla", H=2, Hkv=2, D=4, Dv=4)
        np.testing.assert_allclose(softrnn.attention(**linear, attention="gla", scale=4 ** -0.5),
                                   softrnn.attention(**linear, attention="gla"), atol=1e-12)
        for words, call in (("feature=", lambda: softrnn.attention(**x, attention="linear_elu", scale=0.3)),
                            ("scale must be a number", lambda: softrnn.attention(**x, scale="large")),
                            ("scale must be finite, not nan", lambda: softrnn.attention(**x, scale=math.nan)),
                            ("scale must be finite, not inf", lambda: softrnn.attention(**x, scale=np.float32(np.inf)))):
            with self.assertRaises(softrnn.SoftrnnError) as caught:
                call()
            self.assertIn(words, str(caught.exception))

    def test_layout(self):
        """Tokens before heads: everything that has tokens is swapped, and vectors are not."""
        for attention in ("gated_softmax", "gla", "mamba2"):
            x = operands(attention, B=2, H=4, Hkv=2, T=6)
            vectors = softrnn.parse(attention).vectors
            swapped = {n: a if n in vectors else a.swapaxes(1, 2) for n, a in x.items()}
            o = softrnn.attention(**swapped, attention=attention, layout="bthd")
            np.testing.assert_array_equal(o.swapaxes(1, 2), softrnn.attention(**x, attention=attention), err_msg=attention)
        with self.assertRaises(softrnn.ArgumentError):
            softrnn.attention(**operands("softmax"), layout="thd")

    def test_gradients_with_layout_and_scale(self):
        x = operands("gate", H=2, Hkv=2, T=5, D=4, Dv=4)
        d_o = np.random.default_rng(5).normal(size=(1, 2, 5, 4))
        scaled = softrnn.gradients(d_o, **x, attention="gate", scale=0.3)
        own = softrnn.gradients(d_o, **{**x, "q": x["q"] * 0.6}, attention="gate")  # 0.3 sqrt(D) times as large
        np.testing.assert_allclose(scaled.pop("q"), 0.6 * own.pop("q"), atol=1e-15)
        for name in scaled:
            np.testing.assert_array_equal(scaled[name], own[name], err_msg=name)
        swapped = softrnn.gradients(d_o.swapaxes(1, 2), **{name: value.swapaxes(1, 2) for name, value in x.items()}, attention="gate",
                                   scale=0.3, layout="bthd")
        for name in scaled:
            np.testing.assert_array_equal(swapped[name].swapaxes(1, 2), scaled[name], err_msg=name)

    def test_swapped_axes_are_told(self):
        swapped = np.ones((3, 1, 300, 4, 8))
        with self.assertWarnsRegex(UserWarning, "300 heads of 4 tokens.*bthd"):
            softrnn.attention(*swapped)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            softrnn.attention(*swapped, layout="bthd")
            softrnn.attention(*np.ones((3, 1, 300, 1, 8)))  # the next token of many heads

    def test_shapes_are_documented(self):
        for name in softrnn._plans.ALL_OPERANDS:
            self.assertRegex(softrnn.attention.__doc__, rf"\n    {name} +(\(|the same)")

    def test_names_of_others_are_hinted(self):
        x = operands("softmax")
        for name, words in (("cu_seqlens", "documents="), ("beta", "write_gate"), ("causal", "always causal")):
            with self.assertRaises(TypeError) as caught:
                softrnn.attention(**x, **{name: x["q"]})
            self.assertIn(words, str(caught.exception))

    def test_modules_are_there(self):
        self.assertTrue(callable(softrnn.lab.train))
        with self.assertRaises(AttributeError):
            softrnn.nonesuch

    def test_pool_forgets_shapes(self):
        from softrnn._plans import pool
        for T in range(1, 200):
            softrnn.attention(*np.ones((3, 1, 1, T, 2)))
        self.assertLessEqual(len(pool._waiting), pool.MOST_PLANS)

    def test_pool_takes_back_what_it_forgot(self):
        from softrnn._plans import CPU, Options, Plan, Pool, Sizes
        pool = Pool()
        pool.MOST_PLANS = 1
        variant = softrnn.parse("softmax")
        made = [Plan(key, variant, Sizes("float64", 1, 1, 1, 1, 1, 1), Options(), CPU) for key in ("a", "a", "b")]
        out, *others = made
        pool.give_back(out)
        self.assertIs(pool.take("a"), out)
        for plan in others:
            pool.give_back(plan)  # the second one drops the key of the first
        pool.give_back(out)
        self.assertIs(pool.take("a"), out)


def recurrence(q, k, v, g, beta=None, scale=None):
    """S = exp(g) S + k v, or the delta rule's k (v - k S) beta: what flash-linear-attention's operators compute, plainly.
    g (B, H, T) or (B, H, T, D)."""
    scale = q.shape[3] ** -0.5 if scale is None else scale
    S = np.zeros((*q.shape[:2], q.shape[3], v.shape[3]))
    out = np.empty((*q.shape[:3], v.shape[3]))
    for t in range(q.shape[2]):
        decay = np.exp(g[:, :, t])
        S = S * (decay[..., None] if decay.ndim == 3 else decay[..., None, None])
        new = v[:, :, t] if beta is None else (v[:, :, t] - np.einsum("bhd,bhde->bhe", k[:, :, t], S)) * beta[:, :, t, None]
        S = S + k[:, :, t, :, None] * new[:, :, None]
        out[:, :, t] = np.einsum("bhd,bhde->bhe", q[:, :, t], S) * scale
    return out


class Porting(unittest.TestCase):
    """The table of docs/PYTHON.md for those who come from flash-linear-attention."""

    def setUp(self):
        random = np.random.default_rng(1)
        self.q, self.k, self.v = random.normal(size=(3, 2, 2, 9, 4))
        self.gate, self.beta = random.normal(size=(2, 2, 2, 9))
        self.wide = random.normal(size=(2, 2, 9, 4))

    def check(self, expected, attention, **operands):
        o = softrnn.attention(self.q, self.k, self.v, "score=linear,normaliser=none" + attention, **operands)
        np.testing.assert_allclose(o, expected, atol=1e-5)

    def test_linear(self):
        self.check(recurrence(self.q, self.k, self.v, 0 * self.gate), "")
        self.check(recurrence(self.q, self.k, self.v, 0 * self.gate, scale=1.5), "", scale=1.5)

    def test_gla(self):
        log_sigmoid = lambda x: -np.log1p(np.exp(-x))
        self.check(recurrence(self.q, self.k, self.v, log_sigmoid(self.gate)), ",decay=log_sigmoid", decay=self.gate)
        self.check(recurrence(self.q, self.k, self.v, log_sigmoid(self.wide)), ",decay=log_sigmoid,decay_width=channel",
                   decay=self.wide)

    def test_delta_rules(self):
        sigmoid = lambda x: 1 / (1 + np.exp(-x))
        unit = lambda x: x / np.sqrt((x ** 2).sum(-1, keepdims=True) + 1e-6)
        q, k, beta = unit(self.q), unit(self.k), sigmoid(self.beta)
        self.check(recurrence(q, k, self.v, 0 * self.gate, beta), ",feature=unit_smooth,write=delta", write_gate=self.beta)
        a_log, dt_bias = np.array([0.1, -0.3]), np.array([0.2, 0.5])
        g = -np.exp(a_log)[:, None] * np.log1p(np.exp(self.gate + dt_bias[:, None]))
        self.check(recurrence(q, k, self.v, g, beta), ",feature=unit_smooth,write=delta,decay=softplus", write_gate=self.beta,
                   decay=self.gate, a_log=a_log, dt_bias=dt_bias)


    def test_numbers_that_are_given(self):
        unit = lambda x: x / np.sqrt((x ** 2).sum(-1, keepdims=True))
        self.q, self.k = unit(self.q), unit(self.k)
        g, wide, beta = -np.abs(self.gate), -np.abs(self.wide), np.abs(np.tanh(self.beta))
        self.check(recurrence(self.q, self.k, self.v, g), ",decay=given", decay=g)
        self.check(recurrence(self.q, self.k, self.v, wide), ",decay=given,decay_width=channel", decay=wide)
        given = ",write=delta,write_gate=given"
        self.check(recurrence(self.q, self.k, self.v, 0 * g, beta), given, write_gate=beta)
        self.check(recurrence(self.q, self.k, self.v, g, beta), ",decay=given" + given, decay=g, write_gate=beta)

    def test_gradients_of_numbers_that_are_given(self):
        text = "score=linear,normaliser=none,decay=given,write=delta,write_gate=given,feature=unit"
        numbers = dict(decay=-np.abs(self.gate), write_gate=np.abs(np.tanh(self.beta)))
        found = softrnn.gradients(self.v, self.q, self.k, self.v, text, **numbers)
        loss = lambda values: (softrnn.attention(self.q, self.k, self.v, text, **values) * self.v).sum()
        for name, array in numbers.items():
            step = np.zeros_like(array)
            step[1, 0, 3] = 1e-5
            slope = (loss({**numbers, name: array + step}) - loss({**numbers, name: array - step})) / 2e-5
            self.assertAlmostEqual(found[name][1, 0, 3], slope, places=6)


class Sinks(unittest.TestCase):
    def test_a_key_without_a_value(self):
        """A sink is one more logit of softmax, whose value is 0."""
        q, k, v = np.random.default_rng(2).normal(size=(3, 1, 2, 9, 4))
        sinks = np.array([0.3, -1.2])
        s = np.where(np.tril(np.ones((9, 9), bool)), q @ k.swapaxes(2, 3) / 2, -np.inf)
        w = np.exp(s)
        for text, term in (("sink=learned", np.exp(sinks)[:, None, None]), ("sink=zero", 1)):
            operands = {"sinks": sinks} if text == "sink=learned" else {}
            np.testing.assert_allclose(softrnn.attention(q, k, v, text, **operands),
                                       w @ v / (w.sum(3, keepdims=True) + term), atol=1e-12)
        with self.assertRaises(softrnn.ArgumentError):
            softrnn.attention(q, k, v, "sink=learned")

    def test_windows_hide_older_keys(self):
        q, k, v = np.random.default_rng(2).normal(size=(3, 1, 2, 9, 4))
        o = softrnn.attention(q, k, v, "window=3")
        np.testing.assert_allclose(o[:, :, 8], softmax(q[:, :, 6:], k[:, :, 6:], v[:, :, 6:])[:, :, 2], atol=1e-12)


class States(unittest.TestCase):
    def test_every_variant(self):
        for variant in each_variant():
            if variant.feature == "unit_heads" or variant.order > 8:
                continue
            inputs = operands(variant, B=2, H=2, Hkv=2, T=11, D=4, Dv=4)
            state = softrnn.State(variant, B=2, H=2, D=4, dtype="float64", piece=3)
            parts, vectors = [], {n: inputs[n] for n in variant.vectors}
            for start, end in ((0, 1), (1, 9), (9, 11)):
                piece = {n: x[:, :, start:end] for n, x in inputs.items() if n not in vectors}
                parts.append(state.feed(**piece, **vectors))
            whole = softrnn.attention(**inputs, attention=variant)
            np.testing.assert_allclose(np.concatenate(parts, axis=2), whole, atol=1e-9, err_msg=str(variant))
            self.assertEqual(state.position, 11)

    def test_what_a_state_is_made_of(self):
        for dtype in (np.float64, np.dtype("float64"), "float64"):
            self.assertEqual(softrnn.State("softmax", H=2, D=4, dtype=dtype).dtype, "float64")
        with self.assertRaisesRegex(softrnn.ArgumentTypeError, "not int8"):
            softrnn.State("softmax", H=2, D=4, dtype=np.int8)
        with self.assertRaisesRegex(softrnn.ArgumentError, "piece is 0"):
            softrnn.State("softmax", H=2, D=4, piece=0)
        x = operands("softmax", H=2, Hkv=1, T=5, D=4, Dv=4)
        wide = {name: np.broadcast_to(x[name], (1, 2, 5, 4)) for name in "kv"}
        np.testing.assert_array_equal(softrnn.State("softmax", H=2, D=4, dtype="float64").feed(**{**x, **wide}),
                                      softrnn.attention(**x))

    def test_save_and_load(self):
        inputs = operands("order:2", T=8, H=2, Hkv=2, D=4, Dv=4)
        one = softrnn.State("order:2", H=2, D=4, dtype="float64")
        first, second = ({n: x[:, :, part] for n, x in inputs.items()} for part in (slice(0, 5), slice(5, 8)))
        one.feed(**first)
        other = one.copy()
        np.testing.assert_array_equal(one.feed(**second), other.feed(**second))
        self.assertTrue(one.is_fixed)
        self.assertGreater(one.nbytes, 0)
        with self.assertRaises(softrnn.SoftrnnError):
            softrnn.State("order:3", H=2, D=4, dtype="float64").load(one.save())
        with self.assertRaises(softrnn.SoftrnnError):
            one.load(b"short")
        for again in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
            self.assertEqual((again.position, again.save()), (one.position, one.save()))
        one.reset()
        self.assertEqual(one.position, 0)


if __name__ == "__main__":
    unittest.main()
