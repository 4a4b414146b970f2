"""Long calls end soon after a signal: what its handler raises (KeyboardInterrupt, for Ctrl-C) comes out of them."""
import signal
import threading
import time
import unittest

import numpy as np

import softrnn

SOON = 0.2


class Rang(Exception):
    """What the handler raises."""


def ring(*_):
    raise Rang


@unittest.skipUnless(threading.current_thread() is threading.main_thread(), "signals reach the main thread only")
class Signals(unittest.TestCase):
    def setUp(self):
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, ring))

    def seconds_until_it_stops(self, call):
        """Of a call that would last for minutes, after the signal."""
        signal.setitimer(signal.ITIMER_REAL, SOON)
        start = time.monotonic()
        try:
            with self.assertRaises(Rang):
                call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return time.monotonic() - start - SOON

    def test_attention_and_gradients(self):
        q = np.zeros((1, 8, 65536, 64), np.float32)
        for call in (lambda: softrnn.attention(q, q, q), lambda: softrnn.attention(q, q, q, "order:2"),
                     lambda: softrnn.gradients(q, q, q, q)):
            self.assertLess(self.seconds_until_it_stops(call), 1.0)

    def test_states(self):
        state = softrnn.State("softmax", B=1, H=8, D=64, piece=32768)
        q = np.zeros((1, 8, 65536, 64), np.float32)
        self.assertLess(self.seconds_until_it_stops(lambda: state.feed(q, q, q)), 1.0)
        self.assertEqual(state.position, 0)

    def test_a_handler_cannot_use_the_state_of_its_own_thread(self):
        state = softrnn.State("softmax", B=1, H=8, D=64, piece=32768)
        q = np.zeros((1, 8, 65536, 64), np.float32)
        signal.signal(signal.SIGALRM, lambda *_: state.save())
        signal.setitimer(signal.ITIMER_REAL, SOON)
        with self.assertRaisesRegex(softrnn.SoftrnnError, "in use by this thread"):
            state.feed(q, q, q)
        state.save()

    def test_other_threads_are_left_alone(self):
        """A handler runs in the main thread; a call in another thread runs to completion."""
        q = np.random.default_rng(0).normal(size=(1, 2, 4096, 64)).astype("float32")
        found = []
        worker = threading.Thread(target=lambda: found.append(softrnn.attention(q, q, q)))
        worker.start()
        self.seconds_until_it_stops(lambda: time.sleep(5))
        worker.join()
        np.testing.assert_array_equal(found[0], softrnn.attention(q, q, q))


if __name__ == "__main__":
    unittest.main()
