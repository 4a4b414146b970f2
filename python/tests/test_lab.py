"""The laboratory: models, tokenizers, training, studies, records."""
import copy
import gc
import importlib.util
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

import softrnn
import softrnn.lab
from softrnn._library import ffi, owned

needs_pandas = unittest.skipUnless(importlib.util.find_spec("pandas"), "pandas is not installed")
needs_matplotlib = unittest.skipUnless(importlib.util.find_spec("matplotlib") and importlib.util.find_spec("pandas"),
                                       "pandas or matplotlib is not installed")
SMALL = dict(steps=4, batch=2, length=32, layers=2, hidden=32, heads=4, kv_heads=2, validate_every=2, threads=1)
STUDY = """\
name: tiny
seeds: [1]
variants: {softmax: softmax, linear: linear_elu}
settings: {layers: 1, heads: 2, hidden: 16, mlp-hidden: 32}
tasks:
  recall:
    measure: accuracy
    settings: {data: "recall:pairs=2,vocab=16,length=12", batch: 4, steps: 4, validate-every: 2}
"""
GARBAGE = """\
import gc, sys
import softrnn, softrnn.lab

class Talk:
    def __init__(self, where):
        self.myself = self
        self.model = softrnn.lab.Model(where)
        self.session = self.model.session(2)
        self.tokenizer = self.model.tokenizer
        self.state = softrnn.State("order:2", H=2, D=8)

    def __del__(self):  # the handles can still be used
        print(self.session.position, self.state.position, self.tokenizer.decode([97]), len(self.model.attention))

for _ in range(5):
    Talk(sys.argv[1])
    gc.collect()
session = softrnn.lab.Model(sys.argv[1]).session()
gc.collect()
session.feed([[97]])
at_exit = Talk(sys.argv[1])
"""


class Lab(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp())
        cls.text = cls.folder / "text.txt"
        cls.text.write_text("the cat sat on the mat; the dog sat on the log. " * 60)
        cls.steps = []
        cls.run_ = softrnn.lab.train(cls.folder / "run", cls.steps.append, data=cls.text, attention="order:2", **SMALL)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def test_training_is_followed(self):
        self.assertEqual([step.step for step in self.steps], [1, 2, 3, 4])
        self.assertTrue(all(math.isfinite(step.loss) for step in self.steps))
        self.assertTrue(math.isfinite(self.steps[-1].validation))

    def test_callback_stops_and_resume_goes_on(self):
        where = self.folder / "stopped"
        softrnn.lab.train(where, lambda step: step.step < 2, data=self.text, attention="order:2", **SMALL)
        rest = []
        softrnn.lab.train(where, rest.append, resume=True)
        self.assertEqual([step.step for step in rest], [3, 4])
        self.assertEqual(rest[-1].loss, self.steps[-1].loss)  # the same bits as without a stop

    def test_model(self):
        model = self.run_.model
        ids = np.arange(40).reshape(2, 20) % model.vocabulary
        logits = model.logits(ids)
        self.assertEqual(logits.shape, (2, 20, model.vocabulary))
        targets = np.roll(ids, -1, axis=1)
        targets[:, -1] = -1
        losses = model.losses(ids, targets)
        expected = -(logits - np.log(np.exp(logits.astype("float64")).sum(-1, keepdims=True)))
        expected = np.take_along_axis(expected, np.maximum(targets, 0)[..., None], 2)[..., 0] * (targets >= 0)
        np.testing.assert_allclose(losses, expected, atol=1e-4)
        self.assertEqual([str(variant) for variant in model.attention], ["score=taylor:2"] * 2)
        self.assertIn("score=taylor:2", repr(model))

    def test_model_without_attention(self):
        model = softrnn.lab.train(self.folder / "avey", data=self.text, attention="avey_causal,chunk=8", **SMALL).model
        self.assertIn("2 layers of avey_causal,chunk=8", repr(model))
        self.assertEqual(model.attention, [])

    def test_what_leaks_says_so(self):
        with self.assertWarnsRegex(UserWarning, "avey is not causal"):
            run = softrnn.lab.train(self.folder / "leaking", data=self.text, attention="avey,chunk=8", **SMALL)
        with self.assertWarnsRegex(UserWarning, "avey is not causal"):
            run.model

    def test_session(self):
        model = self.run_.model
        ids = np.arange(10)[None]
        session = model.session()
        self.assertIsNone(session.feed(ids[:, :6]))
        last = session.feed(ids[:, 6:], logits=True)
        np.testing.assert_allclose(last, model.logits(ids)[:, -1], atol=1e-5)
        token = session.next()
        self.assertEqual(token[0], last[0].argmax())
        self.assertTrue(session.is_fixed)
        self.assertEqual(session.position, 11)
        self.assertGreater(session.nbytes, 0)
        session.reset()
        self.assertEqual(session.position, 0)

    def test_garbage_in_any_order(self):
        """Neither a cycle nor the end of the program frees a model before its sessions."""
        package = str(Path(softrnn.__file__).parents[1])
        done = subprocess.run([sys.executable, "-c", GARBAGE, str(self.folder / "run")], text=True, capture_output=True,
                              env={**os.environ, "PYTHONPATH": package, "MALLOC_PERTURB_": "165", "MALLOC_CHECK_": "3"})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, "0 0 a 2\n" * 6)

    def test_handles_are_freed(self):
        """In order: a session before its model, which outlives what refers to it."""
        freed = []
        model = owned(ffi.new("int **"), lambda handle: freed.append("model"))
        session = owned(ffi.new("int **"), lambda handle: freed.append("session"), model)
        self.assertFalse(gc.is_tracked(session))
        del model
        self.assertEqual(freed, [])
        del session
        self.assertEqual(freed, ["session", "model"])

    def test_text(self):
        model = self.run_.model
        tokenizer = model.tokenizer
        self.assertEqual(tokenizer.decode(tokenizer.encode("the cat é")), "the cat é")
        self.assertEqual(tokenizer.encode(""), [])
        self.assertTrue(model.generate("the cat", tokens=5).startswith("the cat"))
        self.assertEqual(model.generate("the", 5, temperature=1, seed=3), model.generate("the", 5, temperature=1, seed=3))

    def test_save(self):
        where = self.folder / "saved"
        where.mkdir()
        model = self.run_.model
        model.save(where)
        ids = np.arange(8)[None]
        np.testing.assert_array_equal(softrnn.lab.Model(where).logits(ids), model.logits(ids))
        self.assertEqual(json.loads((where / "config.json").read_text())["model_type"], "softrnn")

    def test_chat_template(self):
        try:
            import jinja2  # noqa: F401
        except ImportError:
            self.skipTest("jinja2 is not installed")
        run = softrnn.lab.train(self.folder / "chat", data=self.text, **SMALL)
        model = run.model
        with self.assertRaisesRegex(softrnn.ArgumentError, "no chat template"):
            model.chat_prompt("hi")
        folder = Path(model.where)
        (folder / "chat_template.jinja").write_text(
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
            "{% if messages|length > 2 %}{{ raise_exception('too many') }}{% endif %}<assistant>"
            "{% generation %}{{ [1, 2]|tojson(separators=(',', ':')) }}{% endgeneration %}")
        self.assertEqual(model.chat_prompt("hi"), "<user>hi<assistant>[1,2]")
        self.assertIsInstance(model.chat("hi", tokens=3), str)
        with self.assertRaisesRegex(softrnn.ArgumentError, "too many"):
            model.chat_prompt([{"role": "user", "content": "x"}] * 3)

    def test_parts_of_published_families(self):
        run = softrnn.lab.train(self.folder / "parts", data=self.text, attention="1*softmax,qk_norm=head,1*norm", **SMALL)
        self.assertIn("qk_norm=head", run.model.attention[0].text)

    def test_two_mixers_side_by_side(self):
        run = softrnn.lab.train(self.folder / "pair", data=self.text, attention="softmax+gla,norm_epsilon=1e-05", **SMALL)
        first, second = run.model.attention[0]
        self.assertEqual(first.text, "score=exp")
        self.assertIn("layer=gla", second.text)
        self.assertIn("+score=linear", repr(run.model))

    def test_prefix_tokens(self):
        run = softrnn.lab.train(self.folder / "front", data=self.text, attention="linear_elu,prefix_tokens=3", **SMALL)
        model = run.model
        self.assertEqual(model.prefix_tokens, 3)
        self.assertEqual(model.logits([1, 2, 3]).shape[1], 3)
        session = model.session()
        np.testing.assert_allclose(session.feed([[1, 2, 3]], logits=True), model.logits([1, 2, 3])[:, -1], atol=1e-5)

    def test_refused(self):
        model = self.run_.model
        for words, call in (
                ("nowhere", lambda: softrnn.lab.Model(self.folder / "nowhere")),
                ("where must be a path", lambda: softrnn.lab.Model(3)),
                ("ids must be token ids", lambda: model.logits([0.5])),
                ("ids must be from 0", lambda: model.logits([[model.vocabulary]])),
                ("targets must have the shape", lambda: model.losses([1, 2], [1])),
                ("nonesuch", lambda: softrnn.lab.train(self.folder / "x", nonesuch=1)),
                ("keep", lambda: softrnn.lab.train(self.folder / "run", resume=True, steps=9)),
                ("resume=True", lambda: softrnn.lab.train(self.folder / "run", data=self.text)),
                ("device", lambda: softrnn.lab.Model(self.folder / "run", device="tpu")),
                ("no run.yaml", lambda: softrnn.lab.Run(self.folder)),
                ("no study.json", lambda: softrnn.lab.Study(self.folder)),
                ("rows", lambda: model.session(2).feed([[1]])),
                ("dtype|float32", lambda: model.save(self.folder, "int3")),
                ("text", lambda: model.tokenizer.encode(5))):
            with self.assertRaises(softrnn.SoftrnnError, msg=words) as caught:
                call()
            self.assertTrue(any(word in str(caught.exception) for word in words.split("|")), str(caught.exception))

    def test_numbers_that_c_cannot_hold_are_refused(self):
        model = self.run_.model
        session, bits = model.session(), softrnn.ArgumentError
        session.feed([[97]])
        for kind, call in ((bits, lambda: model.logits([[2 ** 40]])), (bits, lambda: session.feed([[2 ** 40]])),
                           (bits, lambda: session.next(seed=-1)), (bits, lambda: model.tokenizer.decode([2 ** 40])),
                           (softrnn.ArgumentTypeError, lambda: session.next(temperature=1.0, top_k=2.5)),
                           (softrnn.ArgumentTypeError, lambda: session.next(temperature="warm")),
                           (softrnn.ArgumentTypeError, lambda: model.tokenizer.decode(["a"])),
                           (softrnn.ArgumentTypeError, lambda: model.session("2")),
                           (bits, lambda: softrnn.lab.Model(self.run_.folder, threads=-1)),
                           (bits, lambda: model.tokenizer.encode("\ud800"))):
            with self.assertRaises(kind):
                call()

    def test_models_are_pickled_and_copied(self):
        """As the place from which they are loaded again."""
        model, ids = self.run_.model, [[1, 2, 3]]
        for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            np.testing.assert_array_equal(other.logits(ids), model.logits(ids))
        self.assertEqual(pickle.loads(pickle.dumps(model.tokenizer)).encode("cat"), model.tokenizer.encode("cat"))

    def test_result(self):
        """What a training leaves is its result, also without a study around it."""
        result = self.run_.result
        self.assertEqual((result["status"], result["step"]), ("finished", 4))
        self.assertAlmostEqual(result["loss"], self.steps[-1].loss, places=5)
        stopped = softrnn.lab.train(self.folder / "early", lambda step: step.step < 2, data=self.text, attention="order:2", **SMALL)
        self.assertEqual((stopped.result["status"], stopped.result["step"]), ("stopped", 2))

    def test_result_of_a_run_that_diverged(self):
        """Of the last step, whose loss is not finite, and not of the last one that had a loss."""
        folder = self.folder / "diverged"
        folder.mkdir()
        (folder / "run.yaml").write_text("steps: 5\nbad-steps: 2\n", encoding="utf-8")
        losses = (2.5, 2.25, None, None)
        (folder / "metrics.jsonl").write_text("".join(
            json.dumps({"step": n + 1, "loss": loss, "skipped": max(0, n - 1), "validation_loss": loss}) + "\n"
            for n, loss in enumerate(losses)), encoding="utf-8")
        result = softrnn.lab.Run(folder).result
        self.assertEqual((result["status"], result["step"], result["loss"]), ("diverged", 4, None))
        self.assertIsNone(result["validation_loss"])

    def test_other_names_of_settings(self):
        values = {**SMALL, "steps": 1}
        values["dim"] = values.pop("hidden")
        run = softrnn.lab.train(self.folder / "named", data=self.text, attention="order:2", lr=0.01, **values)
        written = (run.folder / "run.yaml").read_text()
        self.assertRegex(written, r"(?m)^hidden: 32$")
        self.assertRegex(written, r"(?m)^learning-rate: 0.01$")
        with self.assertRaises(softrnn.ArgumentError) as caught:
            softrnn.lab.train(self.folder / "twice", data=self.text, lr=1, learning_rate=1)
        self.assertIn("given twice", str(caught.exception))

    def test_from_text_to_a_converted_model(self):
        tokenizer = softrnn.lab.Tokenizer.train(self.folder / "tokenizer.json", self.text, vocabulary=270)
        self.assertEqual(tokenizer.vocabulary, 270)
        data = softrnn.lab.prepare(self.folder / "tokens", self.text, tokenizer=self.folder / "tokenizer.json", validation=0)
        run = softrnn.lab.train(self.folder / "tokens_run", data=data, attention="norm", **{**SMALL, "validate_every": 0})
        where = softrnn.lab.convert(run.folder, self.folder / "converted", type="bfloat16")
        self.assertEqual(softrnn.lab.Model(where).tokenizer.encode("the cat"), tokenizer.encode("the cat"))
        with self.assertRaises(softrnn.SoftrnnError) as caught:
            softrnn.lab.convert(self.folder / "nowhere", self.folder / "x")
        self.assertIn("nowhere", str(caught.exception))
        with self.assertRaises(softrnn.ArgumentError):
            softrnn.lab.prepare(self.folder / "y", self.text, nonesuch=3)
        with self.assertRaises(softrnn.SoftrnnError):  # a file, not an option
            softrnn.lab.prepare(self.folder / "z", "--help")

    def test_student(self):
        options = dict(length=16, batch=2, validate_every=0, align_steps=2, distil_steps=2, threads=1)
        student = softrnn.lab.distil(self.folder / "student", self.run_.folder, "gla", self.text, keep="0", stages="align,distil", **options)
        self.assertEqual(list(student.stages), ["align", "distil"])
        model, teacher = student.model(), softrnn.lab.Model(self.run_.folder)
        self.assertEqual(str(model.attention[0]), str(teacher.attention[0]))
        self.assertNotEqual(str(model.attention[1]), str(teacher.attention[1]))
        again = softrnn.lab.distil(self.folder / "student", resume=True)
        self.assertEqual(again.checkpoint, student.checkpoint)
        self.assertIn("align, distil", repr(again))
        with self.assertRaisesRegex(softrnn.SoftrnnError, "not a known variant"):
            softrnn.lab.distil(self.folder / "s", self.run_.folder, "nonesuch", self.text)
        for useless in ({"state_bytes": 4}, {"lora_rank": 4}):
            with self.assertRaisesRegex(softrnn.ArgumentError, "goes with"):
                softrnn.lab.distil(self.folder / "s", self.run_.folder, "gla", self.text, **useless, **options)
        with self.assertRaises(softrnn.ArgumentTypeError):
            softrnn.lab.distil(self.folder / "s", self.run_.folder)
        with self.assertRaises(softrnn.FileError):
            softrnn.lab.Student(self.folder)

    def test_shown(self):
        self.assertEqual(dir(softrnn.lab), sorted(softrnn.lab.__all__))

    @needs_pandas
    def test_records(self):
        metrics = self.run_.metrics
        self.assertEqual(list(metrics["step"]), [1, 2, 3, 4])
        self.assertAlmostEqual(metrics["loss"].iloc[-1], self.steps[-1].loss, places=5)
        self.assertEqual(len(self.run_.timings), 4)

    @needs_matplotlib
    def test_figure_of_a_run(self):
        self.assertIn("<svg", self.run_._repr_html_())

    def make_study(self, name, **options):
        file = self.folder / f"{name}.yaml"
        file.write_text(STUDY)
        return softrnn.lab.study(self.folder / name, file, jobs=1, **options)

    def test_study(self):
        seen = []
        study = self.make_study("study", callback=lambda ended, runs: seen.append((ended, runs)))
        self.assertEqual(seen[-1][1], 2)
        self.assertEqual(len(study.plan["runs"]), 2)
        self.assertIn("2 runs", repr(study))
        if importlib.util.find_spec("pandas"):
            self.assertEqual(set(study.runs["status"]), {"finished"})
            self.assertEqual(list(study.summary["variant"]), ["softmax", "linear"])
            self.assertEqual(len(study.metrics), 8)
        if importlib.util.find_spec("pandas") and importlib.util.find_spec("matplotlib"):
            shown = study._repr_html_()
            self.assertIn("<table", shown)
            self.assertIn("<svg", shown)

    def test_study_is_stopped(self):
        with self.assertRaises(softrnn.Interrupted):
            self.make_study("stopped_study", callback=lambda ended, runs: False)

        def fails(ended, runs):
            raise KeyError("mine")

        with self.assertRaises(KeyError):
            self.make_study("failing_study", callback=fails)


if __name__ == "__main__":
    unittest.main()
