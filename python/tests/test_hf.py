"""transformers: softrnn as an attention implementation, and models of any variant."""
import copy
import json
import os
import pickle
import tempfile
import unittest
from pathlib import Path

import numpy as np

import softrnn
import softrnn.lab
from helpers import torch

try:
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    import softrnn.hf
except ImportError:
    transformers = None

REAL = Path(os.environ.get("SOFTRNN_REAL_DATA", "/nowhere")) / "models" / "tinystories-656K-hf"
SMALL = dict(steps=3, batch=2, length=32, layers=2, hidden=32, heads=4, kv_heads=2, threads=1)
VARIANTS = ["norm", "gate", "gated_softmax,short_conv=4", "order:2", "softmax", "linear_elu,prefix_tokens=2",
            "0:norm,1-:order:2", "gated_softmax_decay,normaliser=value_power", "0:gla,1-:mamba2", "avey_causal"]
VARIANTS += [variant.name for variant in softrnn.variants() if variant.layer != "plain"]


@unittest.skipUnless(torch and transformers, "torch or transformers is not installed")
class Transformers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.temporary.name)
        cls.made = {}  # checkpoints of models_with_states
        (cls.folder / "text.txt").write_text("the cat sat on the mat; the dog sat on the log. " * 60)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def checkpoint(self, attention, **more):
        where = self.folder / str(len(list(self.folder.iterdir())))
        model = softrnn.lab.train(where / "run", data=self.folder / "text.txt", attention=attention,
                                  **{**SMALL, **more}).model
        (where / "model").mkdir()
        model.save(where / "model")
        return model, where / "model"

    def test_models_of_every_kind(self):
        ids = np.arange(18).reshape(2, 9) * 7 % 200
        for attention in VARIANTS:
            shared = {} if attention in VARIANTS[:8] else {"kv_heads": 4}
            mlp = {"norm": "gelu", "gate": "none"}.get(attention, "swiglu")
            ours, folder = self.checkpoint(attention, mlp=mlp, **shared)
            theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
            with torch.no_grad():
                logits = theirs(torch.tensor(ids)).logits.numpy()
            np.testing.assert_allclose(logits, ours.logits(ids), atol=1e-5, err_msg=attention)
            session = ours.session()
            session.feed(ids[:1])
            expected = [int(session.next()[0]) for _ in range(8)]
            made = theirs.generate(torch.tensor(ids[:1]), max_new_tokens=8, do_sample=False)[0, 9:].tolist()
            self.assertEqual(made, expected, attention)

    def test_students(self):
        """RNNs and hybrids that softrnn.lab.distil made of a Llama."""
        ids = np.arange(18).reshape(2, 9) * 7 % 200
        options = dict(data=self.folder / "text.txt", length=16, batch=2, align_steps=2, distil_steps=2, validate_every=0,
                       threads=1)
        _, teacher = self.checkpoint("softmax", kv_heads=4)
        for attention, keep, learn in (("gla", "", "all"), ("gla", "", "lora"), ("gated_delta_net", "0", "all"),
                                       ("order:2", "1", "all"), ("softmax,window=3", "", "all")):
            where = self.folder / str(len(list(self.folder.iterdir())))
            student = softrnn.lab.distil(where, teacher, attention, keep=keep, learn=learn, **options)
            theirs = transformers.AutoModelForCausalLM.from_pretrained(student.checkpoint)
            with torch.no_grad():
                logits = theirs(torch.tensor(ids)).logits.numpy()
            np.testing.assert_allclose(logits, student.model().logits(ids), atol=1e-5, err_msg=attention)

    def test_divergences(self):
        """The loss of the first step of distil, and the KL of validation, are torch's for the models that transformers load."""
        _, teacher = self.checkpoint("softmax", kv_heads=4, initial_range=0.2, steps=30)
        (self.folder / "same.txt").write_text("the cat " * 500)  # all rows are equal
        ids = torch.tensor([list(b"the cat " * 2)])
        for kl, temperature in (("forward", 1), ("forward", 2.5), ("reverse", 0.5)):
            student = softrnn.lab.distil(self.folder / f"{kl}{temperature}", teacher, "linear_elu", self.folder / "same.txt",
                                         stages="distil", distil_steps=1, kl=kl, temperature=temperature, length=16, batch=3,
                                         validate_every=1, validate_batches=2, threads=1)
            def log_p(folder, t):
                with torch.no_grad():
                    return (transformers.AutoModelForCausalLM.from_pretrained(folder)(ids).logits[0].double() / t).log_softmax(-1)
            divergence = torch.nn.functional.kl_div
            p, q = log_p(teacher, temperature), log_p(self.folder / f"{kl}{temperature}" / "copy", temperature)
            first, second = (q, p) if kl == "forward" else (p, q)
            want = temperature**2 * divergence(first, second, log_target=True, reduction="batchmean").item()
            record = json.loads((student.folder / "distil" / "metrics.jsonl").read_text().splitlines()[-1])
            self.assertGreater(want, 1e-4)
            self.assertAlmostEqual(record["loss"], want, delta=1e-5 * max(want, 1))
            want = divergence(log_p(student.checkpoint, 1), log_p(teacher, 1), log_target=True, reduction="batchmean").item()
            self.assertAlmostEqual(record["validation_kl"], want, delta=1e-5 * max(want, 1))

    def test_state_has_a_fixed_size(self):
        _, folder = self.checkpoint("order:2")
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        cache = softrnn.hf.StateCache(model, 1)
        with torch.no_grad():
            model(torch.arange(5)[None], past_key_values=cache)
            before = cache.nbytes
            model(torch.arange(20)[None], past_key_values=cache)
        self.assertEqual(cache.nbytes, before)
        self.assertEqual(cache.get_seq_length(), 25)

    def test_logits_token_by_token(self):
        """What a state gives is what the whole sequence gives, front tokens and their positions included."""
        ids = torch.arange(12)[None] * 7 % 200
        for attention in ("norm", "softmax,prefix_tokens=2", "linear_elu,prefix_tokens=3"):
            _, folder = self.checkpoint(attention, steps=30)
            model = transformers.AutoModelForCausalLM.from_pretrained(folder)
            cache = softrnn.hf.StateCache(model, 1)
            with torch.no_grad():
                whole = model(ids).logits
                parts = [model(ids[:, :5], past_key_values=cache).logits]
                parts += [model(ids[:, t:t + 1], past_key_values=cache).logits for t in range(5, 12)]
            np.testing.assert_allclose(torch.cat(parts, dim=1).numpy(), whole.numpy(), atol=2e-5, err_msg=attention)
            with self.assertRaises(softrnn.UnsupportedError) as caught:
                cache.crop(1)
            self.assertIn("rewinds=True", str(caught.exception))
            with self.assertRaises(softrnn.UnsupportedError):
                cache.reorder_cache(torch.tensor([1, 0]))
            cache.reset()
            with torch.no_grad():
                torch.testing.assert_close(model(ids, past_key_values=cache).logits, whole, atol=2e-5, rtol=1e-4)

    def models_with_states(self):
        """Models that generate with states, by name."""
        yield "softmax", self.llama(attn_implementation="softrnn").eval()
        linear = self.llama(attn_implementation="softrnn").eval()
        linear.config.softrnn_attention = "linear_elu"
        yield "linear_elu", linear
        for attention in ("order:2", "gated_softmax,short_conv=4", "linear_elu,prefix_tokens=2", "0:gla,1-:mamba2"):
            shared = {} if attention != "0:gla,1-:mamba2" else {"kv_heads": 4}
            if attention not in self.made:
                self.made[attention] = self.checkpoint(attention, steps=20, **shared)[1]
            folder = self.made[attention]
            yield attention, transformers.AutoModelForCausalLM.from_pretrained(folder).eval()

    def padded(self, ids, lengths):
        """The first tokens of ids (B, T), the given number of each, with padding on the left."""
        T = max(lengths)
        rows, mask = torch.zeros(len(lengths), T, dtype=torch.long), torch.zeros(len(lengths), T, dtype=torch.long)
        for b, length in enumerate(lengths):
            rows[b, T - length:], mask[b, T - length:] = ids[b, :length], 1
        return rows, mask

    def test_several_samples_of_one_prompt(self):
        """Each sampled sequence has a state of its own, and a cache of other sequences is refused."""
        model = transformers.AutoModelForCausalLM.from_pretrained(self.checkpoint("avey_causal")[1])
        torch.manual_seed(1)
        prompt = torch.tensor([[3, 1, 4, 1, 5]])
        samples = model.generate(prompt, max_new_tokens=12, do_sample=True, temperature=5.0, num_return_sequences=3)
        self.assertEqual(samples.shape, (3, 17))
        self.assertGreater(len({tuple(row.tolist()) for row in samples}), 1)
        with self.assertRaisesRegex(softrnn.ArgumentError, "3 sequences are fed to a cache of 1"):
            model(samples, past_key_values=softrnn.hf.SessionCache(model.lab_model, 1))
        with self.assertRaisesRegex(softrnn.UnsupportedError, "without beams"):
            model.generate(prompt, max_new_tokens=3, num_beams=2)

    def test_padded_batches(self):
        """Sequences of different lengths generate side by side what each generates alone."""
        ids, lengths = torch.randint(1, 97, (4, 9)), (9, 3, 1, 6)
        rows, mask = self.padded(ids, lengths)
        models = [*self.models_with_states(), ("avey_causal", transformers.AutoModelForCausalLM.from_pretrained(
            self.checkpoint("avey_causal")[1]))]
        for name, model in models:
            made = model.generate(rows, attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=-1)
            for b, length in enumerate(lengths):
                alone = model.generate(ids[b:b + 1, :length], max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=-1)
                self.assertEqual(made[b, 9:].tolist(), alone[0, length:].tolist(), f"{name}: {length}")

    def test_padding_with_prefix_tokens(self):
        model = transformers.AutoModelForCausalLM.from_pretrained(self.checkpoint("softmax,prefix_tokens=2", steps=20)[1])
        ids = torch.randint(1, 97, (2, 6))
        rows, mask = self.padded(ids, (6, 1))
        with torch.no_grad():
            padded = model(rows, attention_mask=mask).logits
            torch.testing.assert_close(padded[1, 5:], model(ids[1:, :1]).logits[0], atol=1e-5, rtol=1e-4)

    def test_beams(self):
        ids = torch.randint(1, 97, (2, 7))
        rows, mask = self.padded(ids, (7, 4))
        for name, model in self.models_with_states():
            settings = dict(max_new_tokens=5, do_sample=False, num_beams=3, pad_token_id=0)
            made = model.generate(rows, attention_mask=mask, **settings)
            expected = model.generate(rows, attention_mask=mask, use_cache=False, **settings)
            self.assertTrue(torch.equal(made, expected), name)

    def test_assistants(self):
        """A draft model with states, and a model with states that is assisted: what is generated does not change."""
        ids = torch.randint(1, 97, (1, 7))
        for name, model in self.models_with_states():
            if name in ("softmax", "linear_elu"):
                draft = self.llama(attn_implementation="softrnn").eval()
                draft.config.softrnn_attention = "order:2"
            else:
                draft = transformers.AutoModelForCausalLM.from_pretrained(self.made["order:2"]).eval()
            expected = model.generate(ids, max_new_tokens=14, do_sample=False, pad_token_id=0)
            made = model.generate(ids, max_new_tokens=14, do_sample=False, pad_token_id=0, assistant_model=draft)
            self.assertTrue(torch.equal(made, expected), name)

    def test_caches_are_copied_and_cut(self):
        for name, model in self.models_with_states():
            ids = torch.randint(1, 97, (2, 12))
            cache = (softrnn.hf.AttentionCache(rewinds=True) if isinstance(model, transformers.LlamaForCausalLM) and
                     not isinstance(model, softrnn.hf.SoftrnnForCausalLM) else softrnn.hf.StateCache(model, 2, rewinds=True))
            with torch.no_grad():
                whole = model(ids).logits
                model(ids[:, :8], past_key_values=cache)
                # a StateCache is that of its model, which pickle would copy too
                other = pickle.loads(pickle.dumps(cache)) if name == "linear_elu" else copy.deepcopy(cache)
                model(ids.flip(1)[:, :3], past_key_values=cache)
                cache.crop(-5)
                self.assertEqual((cache.get_seq_length(), other.get_seq_length()), (6, 8), name)
                for used, start in ((cache, 6), (other, 8)):
                    rest = model(ids[:, start:], past_key_values=used).logits
                    torch.testing.assert_close(rest, whole[:, start:], atol=2e-5, rtol=1e-4, msg=lambda m: f"{name}: {m}")

    def test_models_outside_the_interface_are_refused(self):
        """They would compute without a causal mask, or crash."""
        small = dict(vocab_size=97, attn_implementation="softrnn")
        for kind, config in (
                ("Bloom", transformers.BloomConfig(hidden_size=32, n_layer=1, n_head=4, **small)),
                ("CodeGen", transformers.CodeGenConfig(n_embd=32, n_layer=1, n_head=4, rotary_dim=4, **small)),
                ("GPTJ", transformers.GPTJConfig(n_embd=32, n_layer=1, n_head=4, rotary_dim=4, **small))):
            with self.assertRaises(softrnn.UnsupportedError) as caught:
                getattr(transformers, f"{kind}ForCausalLM")(config)
            self.assertIn(f"{kind}ForCausalLM computes its attention itself", str(caught.exception))

    def test_chunked_attention_is_refused(self):
        torch.manual_seed(0)
        model = transformers.Llama4ForCausalLM(transformers.Llama4TextConfig(
            vocab_size=97, hidden_size=32, intermediate_size=64, intermediate_size_mlp=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, attention_chunk_size=4, num_local_experts=2,
            num_experts_per_tok=1, pad_token_id=0)).eval()
        ids = torch.randint(1, 97, (1, 9))
        with torch.no_grad():
            expected = model(ids[:, :4]).logits
            model.set_attn_implementation("softrnn")
            torch.testing.assert_close(model(ids[:, :4]).logits, expected, atol=1e-5, rtol=1e-4)
            with self.assertRaises(softrnn.UnsupportedError) as caught:
                model(ids)
        self.assertIn("within chunks of 4 tokens", str(caught.exception))

    def test_configuration_names_the_implementation(self):
        model = self.llama(attn_implementation="softrnn").eval()
        model.config.softrnn_attention = "linear_elu"
        model.save_pretrained(self.folder / "linear")
        ids = torch.arange(9)[None]
        again = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "linear")
        with torch.no_grad():
            torch.testing.assert_close(again(ids).logits, model(ids).logits)
        plain = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "linear", attn_implementation="sdpa")
        self.assertEqual(plain.config._attn_implementation, "sdpa")

    def test_weights_are_refused(self):
        softrnn_model = transformers.AutoModelForCausalLM.from_pretrained(self.checkpoint("norm")[1])
        for model in (self.llama(attn_implementation="softrnn"), softrnn_model):
            with self.assertRaises(softrnn.UnsupportedError) as caught:
                model(torch.arange(5)[None], output_attentions=True)
            self.assertIn("output_attentions", str(caught.exception))

    def test_states_of_any_model(self):
        """generate() with attn_implementation="softrnn" keeps states; the text is that of keys and values."""
        for attention in ("softmax", "order:2", "linear_elu"):
            model = self.llama(attn_implementation="softrnn")
            model.config.softrnn_attention = attention
            ids = torch.randint(1, 97, (2, 9))
            made = model.generate(ids, max_new_tokens=8, do_sample=False, return_dict_in_generate=True)
            cache = made.past_key_values
            self.assertIsInstance(cache, softrnn.hf.AttentionCache)
            self.assertEqual(cache.get_seq_length(), 16)
            expected = model.generate(ids, max_new_tokens=8, do_sample=False,
                                      past_key_values=transformers.DynamicCache())
            self.assertTrue(torch.equal(made.sequences, expected), attention)
            before = cache.nbytes
            with torch.no_grad():
                model(torch.full((2, 5), 3), past_key_values=cache)
            self.assertEqual(cache.nbytes == before, attention != "softmax")
            with self.assertRaises(softrnn.UnsupportedError):
                cache.crop(3)

    def test_masks_with_holes_are_refused(self):
        model = self.llama(attn_implementation="softrnn")
        mask = torch.tensor([[1, 1, 0, 1, 1]])
        with self.assertRaises(softrnn.UnsupportedError) as caught:
            model(torch.arange(5)[None], attention_mask=mask)
        self.assertIn("inside a sequence", str(caught.exception))

    def test_new_models_start_as_train_starts_them(self):
        config = softrnn.hf.SoftrnnConfig(vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                          num_attention_heads=4, num_key_value_heads=4, softrnn_attention="mamba2")
        model = softrnn.hf.SoftrnnForCausalLM(config)
        attention = model.model.layers[0].self_attn
        self.assertTrue(bool((attention.A_log.exp() >= 1).all()))
        self.assertLess(attention.in_proj.weight.abs().max().item(), 32 ** -0.5 + 1e-6)
        self.assertGreater(attention.in_proj.weight.abs().max().item(), 0.9 * 32 ** -0.5)
        model.save_pretrained(self.folder / "new")
        again = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "new")
        ids = torch.arange(9)[None]
        with torch.no_grad():
            torch.testing.assert_close(again(ids).logits, model.eval()(ids).logits)
        np.testing.assert_allclose(softrnn.lab.Model(self.folder / "new").logits(ids.numpy()),
                                   again(ids).logits.detach().numpy(), atol=1e-5)

    def test_padding(self):
        """Padding changes nothing, on either side."""
        _, folder = self.checkpoint("norm")
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        ids, pad = torch.arange(6)[None], torch.zeros(1, 3, dtype=torch.long)
        ones, zeros = torch.ones_like(ids), torch.zeros_like(pad)
        with torch.no_grad():
            whole = model(ids).logits
            right = model(torch.cat((ids, pad), 1), attention_mask=torch.cat((ones, zeros), 1)).logits[:, :6]
            left = model(torch.cat((pad, ids), 1), attention_mask=torch.cat((zeros, ones), 1)).logits[:, 3:]
        torch.testing.assert_close(right, whole)
        torch.testing.assert_close(left, whole, atol=1e-5, rtol=1e-4)  # rotary position is relative

    def test_packed_rows(self):
        _, folder = self.checkpoint("norm")
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        a, b = torch.arange(5)[None], torch.arange(7)[None] + 20
        positions = torch.cat((torch.arange(5), torch.arange(7)))[None]
        with torch.no_grad():
            packed = model(torch.cat((a, b), 1), position_ids=positions).logits
            torch.testing.assert_close(packed[:, :5], model(a).logits)
            torch.testing.assert_close(packed[:, 5:], model(b).logits)
            positions[0, 5:] += 5  # the same tensor with other numbers: one row
            torch.testing.assert_close(model(torch.cat((a, b), 1), position_ids=positions).logits,
                                       model(torch.cat((a, b), 1)).logits)

    def test_packed_rows_of_one_pattern(self):
        model = self.llama(attn_implementation="softrnn")
        ids, positions = torch.randint(1, 97, (2, 12)), torch.cat((torch.arange(5), torch.arange(7)))[None]
        with torch.no_grad():
            packed = model(ids, position_ids=positions).logits
            torch.testing.assert_close(packed[:, 5:], model(ids[:, 5:]).logits, atol=1e-5, rtol=1e-4)

    def test_compiled_without_graph_breaks(self):
        if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
            self.skipTest("this torch cannot compile the masks of transformers")
        config = softrnn.hf.SoftrnnConfig(vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                          num_attention_heads=4, num_key_value_heads=4, softrnn_attention="0:gate,1-:mamba2")
        ids, mask = torch.randint(1, 97, (2, 12)), torch.ones(2, 12, dtype=torch.long)
        mask[1, :3] = 0
        positions = torch.cat((torch.arange(5), torch.arange(7)))[None]
        for model in (self.llama(attn_implementation="softrnn"), softrnn.hf.SoftrnnForCausalLM(config)):
            torch._dynamo.reset()
            compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
            for given in ({}, {"attention_mask": mask}, {"position_ids": positions}):
                expected = model(ids, labels=ids, use_cache=False, **given)
                found = compiled(ids, labels=ids, use_cache=False, **given)
                torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=1e-4)
                gradients = [torch.autograd.grad(out.loss, list(model.parameters())) for out in (found, expected)]
                for a, b in zip(*gradients):
                    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)

    def test_sizes_alone(self):
        """Models on the meta device, in a FakeTensorMode and in make_fx, whose graph holds for other masks."""
        if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
            self.skipTest("this torch has no autocast on the meta device, which transformers asks for")
        from torch._subclasses import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx
        ids, masks = torch.randint(1, 97, (2, 12)), torch.ones(2, 2, 12, dtype=torch.long)
        masks[0, 0, :4], masks[1, 1, :2] = 0, 0
        for name, model in self.models_with_states():
            def logits(ids, mask):
                return model(ids, attention_mask=mask, use_cache=False).logits
            with FakeTensorMode(allow_non_fake_inputs=True) as fake:
                self.assertEqual(logits(fake.from_tensor(ids), fake.from_tensor(masks[0])).shape[:2], (2, 12))
            graph = make_fx(logits, tracing_mode="fake", _allow_non_fake_inputs=True)(ids, masks[0])
            for mask in masks:
                seen = mask.bool()
                torch.testing.assert_close(graph(ids, mask)[seen], logits(ids, mask)[seen], atol=1e-5, rtol=1e-4,
                                           msg=lambda m: f"{name}: {m}")
            copy.deepcopy(model).to("meta")(ids.to("meta"), attention_mask=masks[0].to("meta"), labels=ids.to("meta"),
                                            use_cache=False).loss.backward()

    def test_what_transformers_looks_for_by_name(self):
        """The arguments that Trainer passes on, and the one by which generate() asks for the last logits alone."""
        from transformers.utils import generic
        for kind in (softrnn.hf.SoftrnnForCausalLM, softrnn.hf.LabForCausalLM):
            self.assertEqual(generic.find_labels(kind), ["labels"])
        for attention in ("norm", "linear_elu,prefix_tokens=2"):
            model, ids = transformers.AutoModelForCausalLM.from_pretrained(self.checkpoint(attention)[1]), torch.arange(9)[None]
            self.assertTrue(model._supports_logits_to_keep())
            with torch.no_grad():
                torch.testing.assert_close(model(ids, logits_to_keep=2).logits, model(ids).logits[:, -2:])

    def test_training_step_and_saving(self):
        _, folder = self.checkpoint("gate")
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        ids = torch.arange(12)[None]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        first = model(ids, labels=ids).loss
        first.backward()
        optimizer.step()
        self.assertLess(model(ids, labels=ids).loss.item(), first.item())
        model.save_pretrained(folder / "saved")
        again = softrnn.lab.Model(folder / "saved")
        with torch.no_grad():
            np.testing.assert_allclose(model(ids).logits.numpy(), again.logits(ids.numpy()), atol=1e-5)

    def llama(self, **changes):
        torch.manual_seed(0)
        config = transformers.LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                          num_attention_heads=4, num_key_value_heads=2, **changes)
        return transformers.LlamaForCausalLM(config)

    def compare(self, model, ids, **more):
        """Logits, loss and gradient with transformers' attention and with ours."""
        found = []
        for implementation in ("sdpa", "softrnn"):
            model.set_attn_implementation(implementation)
            model.zero_grad()
            out = model(ids, labels=ids, **more)
            out.loss.backward()
            found.append((out.logits.detach(), out.loss.detach(), [p.grad.clone() for p in model.parameters()]))
        torch.testing.assert_close(found[0][1], found[1][1], atol=1e-5, rtol=1e-5)
        for a, b in zip(found[0][2], found[1][2]):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)
        return found

    def test_attention_implementation(self):
        model = self.llama()
        ids = torch.randint(1, 97, (2, 20))
        self.compare(model, ids)
        outputs = []
        for implementation in ("sdpa", "softrnn"):
            model.set_attn_implementation(implementation)
            outputs.append(model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0))
        self.assertTrue(torch.equal(*outputs))

    def test_cache_with_room(self):
        """A cache of a fixed size holds keys that nothing has written yet."""
        model, ids = self.llama(), torch.randint(1, 97, (2, 7))
        made = []
        for implementation, cache in (("sdpa", None), ("softrnn", "static")):
            model.set_attn_implementation(implementation)
            made.append(model.generate(ids, max_new_tokens=9, do_sample=False, cache_implementation=cache))
        self.assertTrue(torch.equal(*made))

    def compare_with_eager(self, model):
        """Logits and gradients of a model, and what it generates, with softrnn's attention and with transformers' own."""
        ids, made, found = torch.randint(1, 97, (2, 30)), [], []
        for implementation in ("eager", "softrnn"):
            model.set_attn_implementation(implementation)
            model.zero_grad()
            logits = model(ids).logits
            logits.square().mean().backward()
            found.append([logits.detach(), *[p.grad.clone() for p in model.parameters() if p.grad is not None]])
            made.append(model.generate(ids[:, :11], max_new_tokens=14, do_sample=False, pad_token_id=0))
        for eager, own in zip(*found):
            torch.testing.assert_close(own, eager, atol=1e-5, rtol=1e-3)
        self.assertTrue(torch.equal(*made))

    def test_sliding_windows(self):
        torch.manual_seed(0)
        self.compare_with_eager(transformers.MistralForCausalLM(transformers.MistralConfig(
            vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, sliding_window=8)))

    def test_windows_of_masks_alone_are_refused(self):
        """These models do not name the window to their attention, which would see every token; Moshi does see every token."""
        torch.manual_seed(0)
        sizes = dict(vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                     sliding_window=8, bos_token_id=1, eos_token_id=2)
        experts = dict(intermediate_size=64, num_experts_per_tok=1, **sizes)
        models = [transformers.PhimoeForCausalLM(transformers.PhimoeConfig(num_local_experts=2, **experts)),
                  transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(
                      num_experts=2, moe_intermediate_size=32, shared_expert_intermediate_size=32, use_sliding_window=True,
                      max_window_layers=2, **experts))]
        ids = torch.randint(1, 97, (1, 13))
        moshi = transformers.MoshiForCausalLM(transformers.MoshiConfig(ffn_dim=64, head_dim=8, **sizes)).eval()
        with torch.no_grad():
            expected = moshi(ids).logits
            moshi.set_attn_implementation("softrnn")
            torch.testing.assert_close(moshi(ids, use_cache=False).logits, expected, atol=1e-5, rtol=1e-4)
        for model in models:
            with torch.no_grad():
                expected = model.eval()(ids[:, :8]).logits
                model.set_attn_implementation("softrnn")
                torch.testing.assert_close(model(ids[:, :8], use_cache=False).logits, expected, atol=1e-5, rtol=1e-4)
                with self.assertRaises(softrnn.UnsupportedError) as caught:
                    model(ids, use_cache=False)
                self.assertIn("a sliding window of 8 tokens, which it has in its mask alone", str(caught.exception))
                with self.assertRaises(softrnn.UnsupportedError):
                    model.generate(ids, max_new_tokens=3)

    def test_chosen_keys_are_refused(self):
        """An indexer gives each query some of the keys (DeepSeek-V3.2 and others)."""
        layer = self.llama(attn_implementation="softrnn").model.layers[0].self_attn
        q, k, v = torch.randn(3, 1, 4, 6, 8)
        for name in ("indices", "block_indices"):
            with self.assertRaises(softrnn.UnsupportedError) as caught:
                softrnn.hf.attention_forward(layer, q, k, v, None, **{name: torch.zeros(1, 6, 2, dtype=torch.long)})
            self.assertIn("attention to chosen keys alone", str(caught.exception))
        with self.assertRaisesRegex(softrnn.UnsupportedError, "an indexer that chooses the keys"):  # its mask must be a tensor
            self.llama(attn_implementation="softrnn", index_topk=4)

    def test_layers_beyond_the_configuration_are_refused(self):
        """Models that run their layers in several cycles count them on (HRM)."""
        layer = self.llama(attn_implementation="softrnn").model.layers[0].self_attn
        layer.layer_idx = layer.config.num_hidden_layers
        q, k, v = torch.randn(3, 1, 4, 6, 8)
        with self.assertRaisesRegex(softrnn.UnsupportedError, "is layer 2 of a model whose configuration has 2"):
            softrnn.hf.attention_forward(layer, q, k, v, None)

    def test_compressed_keys_are_refused(self):
        """Layers that append compressed entries to their keys mask them themselves (DeepSeek-V4)."""
        layer = self.llama(attn_implementation="softrnn").model.layers[0].self_attn
        layer.compressor = torch.nn.Identity()
        q, (k, v) = torch.randn(1, 4, 6, 8), torch.randn(2, 1, 4, 8, 8)
        with self.assertRaisesRegex(softrnn.UnsupportedError, "compressed entries among its keys"):
            softrnn.hf.attention_forward(layer, q, k, v, None)

    def test_models_whose_cache_holds_other_states(self):
        """Layers that are no attention keep what they need in transformers' own cache."""
        if not hasattr(transformers, "Lfm2Config"):
            self.skipTest("this transformers has no Lfm2")
        torch.manual_seed(0)
        self.compare_with_eager(transformers.Lfm2ForCausalLM(transformers.Lfm2Config(
            vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            layer_types=["conv", "full_attention"])))

    def test_attention_computed_twice_is_refused(self):
        """A state would see the keys twice."""
        torch.manual_seed(0)
        model = transformers.DiffLlamaForCausalLM(transformers.DiffLlamaConfig(
            vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2))
        model = model.eval()
        ids, settings = torch.randint(3, 97, (1, 9)), dict(max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=-1)
        expected = model.generate(ids, **settings)
        model.set_attn_implementation("softrnn")
        if model.config._attn_implementation != "softrnn":
            self.skipTest("in this transformers the model computes its attention itself")
        with self.assertRaisesRegex(softrnn.UnsupportedError, "more than once"):
            model.generate(ids, **settings)
        self.assertTrue(torch.equal(model.generate(ids, past_key_values=transformers.DynamicCache(), **settings), expected))

    def test_what_only_the_laboratory_computes_is_saved(self):
        model = transformers.AutoModelForCausalLM.from_pretrained(self.checkpoint("avey_causal")[1])
        model.save_pretrained(self.folder / "new" / "folder")
        again = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "new" / "folder")
        ids = torch.arange(5)[None]
        torch.testing.assert_close(copy.deepcopy(again)(ids).logits, model(ids).logits)

    def test_other_implementations_are_refused(self):
        """Their masks would not be those of padding."""
        model = transformers.AutoModelForCausalLM.from_pretrained(self.checkpoint("norm")[1])
        with self.assertRaisesRegex(softrnn.UnsupportedError, "config.softrnn_attention"):
            model.set_attn_implementation("sdpa")
        self.assertEqual(model.config._attn_implementation, "softrnn")

    def test_soft_caps(self):
        torch.manual_seed(0)
        self.compare_with_eager(transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
            vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8, sliding_window=8, attn_logit_softcapping=0.5)))

    def test_sinks(self):
        torch.manual_seed(0)
        self.compare_with_eager(transformers.GptOssForCausalLM(transformers.GptOssConfig(
            vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, sliding_window=8, num_local_experts=2, num_experts_per_tok=1)))

    def test_a_reset_cache_is_new(self):
        """Also after a pass that ended between a layer's keys and its attention."""
        cache = softrnn.hf.AttentionCache()
        tensors = [torch.zeros(1, 1, 3, 4) for _ in range(2)]
        cache.update(*tensors, 0)
        cache.reset()
        cache.update(*tensors, 0)

    def test_variant_by_configuration(self):
        model = self.llama(attn_implementation="softrnn")
        ids = torch.randint(97, (1, 12))
        with torch.no_grad():
            whole = model(ids).logits
            model.config.softrnn_attention = "order:16"
            torch.testing.assert_close(model(ids).logits, whole, atol=1e-4, rtol=1e-3)
            model.config.softrnn_attention = "0:softmax,1-:linear_elu"
            self.assertGreater((model(ids).logits - whole).abs().max().item(), 1e-3)
            model.config.softrnn_attention = "gate"
            with self.assertRaises(softrnn.UnsupportedError) as caught:
                model(ids)
            self.assertIn("output_gate", str(caught.exception))

    def test_refused(self):
        model = self.llama(attn_implementation="softrnn")
        ids = torch.randint(97, (1, 8))
        model = self.llama(attn_implementation="softrnn", attention_dropout=0.1).train()
        with self.assertRaises(softrnn.UnsupportedError) as caught:
            model(ids)
        self.assertIn("dropout", str(caught.exception))
        with self.assertRaises(softrnn.FormatError):
            softrnn.hf.layer_variants("0:norm", 2)

    @unittest.skipUnless(REAL.exists(), "SOFTRNN_REAL_DATA does not name real models")
    def test_real_llama(self):
        tokenizer = transformers.AutoTokenizer.from_pretrained(REAL)
        model = transformers.AutoModelForCausalLM.from_pretrained(REAL)
        ids = tokenizer("Once upon a time there was", return_tensors="pt")["input_ids"]
        self.compare(model, ids)
        texts = []
        for implementation in ("sdpa", "softrnn"):
            model.set_attn_implementation(implementation)
            texts.append(tokenizer.decode(model.generate(ids, max_new_tokens=40, do_sample=False)[0]))
        self.assertEqual(*texts)


if __name__ == "__main__":
    unittest.main()
