"""python_call.py: the cost of a call from Python, compared with the C call it makes and with torch's attention.

    PYTHONPATH=python python bench/python_call.py

Each figure is the minimum of many rounds in which all of them alternate, under the same conditions.
"""
import time

import numpy as np

import softrnn
from softrnn import _numpy
from softrnn._library import check, ffi, lib
from softrnn._plans import Options

try:
    import torch
except ImportError:
    torch = None


def c_call(arrays, gradient):
    """The call alone, with everything prepared; with gradients it also saves what backward needs."""
    plan = _numpy._take_plan(softrnn.parse("softmax"), arrays, Options())
    o = np.empty(plan.shape, arrays[0].dtype)
    output = ffi.new("srnn_tensor *", {"data": ffi.cast("void *", o.ctypes.data)})[0]
    memory = np.empty(plan.saved_bytes + 64, "uint8")  # the saved buffer is aligned to 64 bytes
    saved = ffi.cast("void *", memory.ctypes.data + -memory.ctypes.data % 64) if gradient else ffi.NULL
    check(lib.srnn_attention_forward(plan.plan, output, plan.inputs.struct, saved))
    return lambda alive=(arrays, o, memory): lib.srnn_attention_forward(plan.plan, output, plan.inputs.struct, saved)


def least(functions, rounds, calls):
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            function()
            start = time.perf_counter()
            for _ in range(calls):
                function()
            best[name] = min(best[name], (time.perf_counter() - start) / calls)
    return best


def measure(shape, rounds, calls):
    arrays = list(np.random.default_rng(0).normal(size=(3,) + shape).astype("float32"))
    functions = {"C": c_call(arrays, False), "C for a gradient": c_call(arrays, True), "NumPy": lambda: softrnn.attention(*arrays)}
    if torch:
        tensors = [torch.from_numpy(array) for array in arrays]
        wanted = [tensor.clone().requires_grad_() for tensor in tensors]
        functions["torch"] = lambda: softrnn.attention(*tensors)
        functions["torch with gradient"] = lambda: softrnn.attention(*wanted)
        if hasattr(torch.nn.functional, "scaled_dot_product_attention"):
            functions["torch's own"] = lambda: torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)
    best = least(functions, rounds, calls)
    print("B%d H%d T%d D%d" % shape)
    for name, seconds in best.items():
        call = best["C for a gradient" if "gradient" in name else "C"]
        more = seconds - call
        print(f"  {name:20} {seconds * 1e6:12.1f} us   {more * 1e6:+10.1f} us   {100 * more / call:+6.1f} %")


if __name__ == "__main__":
    measure((1, 4, 32, 32), 200, 50)
    measure((1, 16, 4096, 64), 4, 1)
