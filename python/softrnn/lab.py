"""The laboratory: models, tokenizers, training runs and studies, and their records as pandas frames and figures.

    model = softrnn.lab.Model("runs/norm")
    print(model.generate("Once upon", tokens=100))
    run = softrnn.lab.train("runs/small", data="text.txt", attention="norm", steps=200, callback=print)
    run.metrics.plot(x="step", y="loss")
    study = softrnn.lab.study("runs/study", callback=lambda ended, runs: print(ended, "of", runs))
    study                      # in a notebook: its table and curves

pandas and matplotlib are imported where they are used.
"""

import html
import io
import json
import numbers
import os
import re
import shutil
import subprocess
import sysconfig
import time
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Union

import numpy as np

from ._library import (PACKAGE, ArgumentError, ArgumentTypeError, FileError, SoftrnnError, _open, check, encoded, ffi, owned,
                       text, unstoppable)
from ._variants import Variant, parse

__all__ = ["Model", "Run", "Session", "Step", "Student", "Study", "Tokenizer", "convert", "distil", "prepare", "settings",
           "study", "train"]

lab = _open("libsoftrnn_lab")


def __dir__() -> List[str]:
    return __all__


def _tell_leak(attention: str) -> None:
    if attention.split(",")[0].strip() == "avey":
        warnings.warn("avey is not causal: a chunk's later tokens weigh what its earlier ones read, so that losses and logits over "
                      "a whole text are not those of a model that predicts; avey_causal is", stacklevel=3)


_INT32 = np.iinfo(np.int32)


def _path(where: Any, argument: str) -> bytes:
    if not isinstance(where, (str, Path)):
        raise ArgumentTypeError(f"{argument} must be a path, not {type(where).__name__}")
    return encoded(str(where), argument)


def _ids(values: Any, argument: str) -> np.ndarray:
    """Token ids as C reads them: (B, T)."""
    ids = np.asarray(values)
    if ids.dtype.kind not in "iu" or ids.ndim not in (1, 2) or not ids.size:
        raise ArgumentTypeError(f"{argument} must be token ids (T) or (B, T), not {ids.dtype} {ids.shape}")
    if ids.min() < _INT32.min or ids.max() > _INT32.max:
        raise ArgumentError(f"{argument} has a token of {ids.min() if ids.min() < 0 else ids.max()}, which is none")
    return np.ascontiguousarray(np.atleast_2d(ids), dtype=np.int32)


def _whole(value: Any, argument: str, least: int = 0, most: int = _INT32.max) -> int:
    """A whole number that C takes."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentTypeError(f"{argument} must be a whole number, not {type(value).__name__}")
    number = int(value.__index__())
    if not least <= number <= most:
        raise ArgumentError(f"{argument} is {number}; it must be from {least} to {most}")
    return number


def _number(value: Any, argument: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):  # NumPy's are
        raise ArgumentTypeError(f"{argument} must be a number, not {type(value).__name__}")
    return float(value)


def _numbers(array: np.ndarray) -> Any:
    return ffi.cast("int32_t *" if array.dtype == np.int32 else "float *", array.ctypes.data)


# ---- the program, for what is a command of its own


def _program() -> str:
    """softrnn: of the clone around the package, of this Python, or of the system."""
    folder = os.environ.get("SOFTRNN_LIBRARIES")
    built = Path(folder) if folder else PACKAGE.parent.parent / "build"
    for path in (built / "cli" / "softrnn", Path(sysconfig.get_path("scripts")) / "softrnn"):
        if path.exists():
            return str(path)
    found = shutil.which("softrnn")
    if found is None:
        raise FileError("the program softrnn is neither next to this Python nor in PATH: install the package (pip install softrnn), "
                        "or build the clone with make")
    return found


def _run_command(command: str, files: Sequence[Any], options: Dict[str, Any]) -> None:
    """softrnn command --option=value .. [-- files]; its message as an exception where it fails."""
    arguments = command.split()
    for name, value in options.items():
        if value is not None and value is not False:
            arguments.append("--" + name.replace("_", "-") + ("" if value is True else f"={value}"))
    arguments += ["--", *map(str, files)] if files else []
    done = subprocess.run([_program(), *arguments], text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        kind = ArgumentError if done.returncode == 2 else SoftrnnError
        raise kind(done.stderr.strip() or f"softrnn {command} ended with status {done.returncode}")


def prepare(out: Any, *files: Any, tokenizer: Any = "bytes", **options: Any) -> Path:
    """Text files (plain, JSON lines, compressed) to a folder of token shards, as `softrnn data prepare` does; gives the folder, which
    train(data=...) takes. tokenizer: "bytes", a tokenizer's file, or the folder of a model. options: those of the command: field,
    validation, seed, shard_tokens, document_bytes, invalid, no_end, overwrite, threads."""
    _run_command("data prepare", files, {"tokenizer": tokenizer, "out": out, **options})
    return Path(out)


def convert(where: Any, out: Any, **options: Any) -> Path:
    """A model in another format, as `softrnn convert` does: a folder in Hugging Face layout, a run or a llama2.c .bin, to a new
    folder or a .bin; gives where it is. options: tokenizer, type ("float32", "bfloat16", "float16")."""
    _run_command("convert", (), {"in": where, "out": out, **options})
    return Path(out)


# ---- models and tokenizers


class Tokenizer:
    """Text to token ids and back. where: "bytes", a tokenizer.json, .model or .bin file, or a folder with one.

    >>> tokenizer = softrnn.lab.Tokenizer("bytes")
    >>> tokenizer.encode("abc"), tokenizer.decode([97, 98])
    ([97, 98, 99], 'ab')
    """

    def __init__(self, where: Any):
        out = ffi.new("srnl_tokenizer **")
        if isinstance(where, Model):
            check(lab.srnl_model_tokenizer(out, where._model[0]))
        else:
            check(lab.srnl_tokenizer_load(out, _path(where, "where")))
        self._tokenizer = owned(out, lab.srnl_tokenizer_free)
        self._where = where
        self.vocabulary = int(lab.srnl_tokenizer_vocabulary(self._tokenizer[0]))
        begin, end = lab.srnl_tokenizer_begin(self._tokenizer[0]), lab.srnl_tokenizer_end(self._tokenizer[0])
        self.begin: Optional[int] = begin if begin >= 0 else None  # of a text
        self.end: Optional[int] = end if end >= 0 else None

    def __reduce__(self) -> Any:
        return Tokenizer, (self._where,)

    @classmethod
    def train(cls, out: Any, *files: Any, vocabulary: int, **options: Any) -> "Tokenizer":
        """Learns a byte-level BPE from text files, writes it as the tokenizer.json `out` and gives it, as `softrnn tokenizer train`
        does. vocabulary: tokens in all. options: special (``<|endoftext|>``), ties, threads."""
        _run_command("tokenizer train", files, {"vocab": vocabulary, "out": out, **options})
        return cls(out)

    def encode(self, value: Union[str, bytes]) -> List[int]:
        """The ids of a text; neither begin nor end is added."""
        if not isinstance(value, (str, bytes)):
            raise ArgumentTypeError(f"a text is needed, not {type(value).__name__}")
        try:
            characters = value.encode("utf-8") if isinstance(value, str) else value
        except UnicodeEncodeError as error:
            raise ArgumentError(f"the text is no Unicode: {error}") from None
        count = ffi.new("size_t *", len(characters) + 8)
        ids = ffi.new("int32_t[]", 0)
        while len(ids) < count[0]:
            ids = ffi.new("int32_t[]", count[0])
            check(lab.srnl_tokenizer_encode(self._tokenizer[0], characters, len(characters), ids, len(ids), count))
        return list(ids[0:count[0]])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        values = ffi.new("int32_t[]", [_whole(token, "a token", _INT32.min) for token in ids])
        count = ffi.new("size_t *")
        check(lab.srnl_tokenizer_decode(self._tokenizer[0], values, len(values), ffi.NULL, 0, count))
        characters = ffi.new("char[]", count[0] + 1)
        check(lab.srnl_tokenizer_decode(self._tokenizer[0], values, len(values), characters, count[0], count))
        return bytes(ffi.buffer(characters, count[0])).decode("utf-8", "replace")


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
            sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _jinja() -> Any:
    """Templates as transformers renders them: they come with a model, so they run in a sandbox."""
    try:
        from jinja2.ext import Extension
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ImportError("chat templates need jinja2: pip install jinja2") from error

    def refuse(message: str) -> None:
        raise ArgumentError(f"the chat template refuses these messages: {message}")

    class Generation(Extension):
        """{% generation %} marks what an assistant wrote, for training; its text is as it is."""
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(["name:endgeneration"], drop_needle=True)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=["jinja2.ext.loopcontrols", Generation])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = time.strftime
    return environment


def _token_text(value: Any) -> str:
    return value.get("content", "") if isinstance(value, dict) else value or ""


def _chat_template(folder: Path) -> Any:
    """The template next to a model, and the tokens that it may name."""
    file, own = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    settings = json.loads(file.read_text("utf-8")) if file.exists() else {}
    template = own.read_text("utf-8") if own.exists() else settings.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default", next(iter(named.values()), None))
    if not template:
        raise ArgumentError(f"{folder}: no chat template: neither chat_template.jinja nor one in tokenizer_config.json")
    return template, {name: _token_text(settings.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}


class Model:
    """A language model: a folder in Hugging Face layout, the folder of a run (its last checkpoint), or a llama2.c .bin file.

    device: "cpu", "cuda", "cuda:1". threads: 0: every core. bf16: products in bf16 with sums in float. What a variant wants
    in front of every sequence (prefix_tokens) is put there by the functions here.
    """

    def __init__(self, where: Any, device: str = "cpu", threads: int = 0, bf16: bool = False):
        out = ffi.new("srnl_model **")
        check(lab.srnl_model_load(out, _path(where, "where"), encoded(device, "device"), _whole(threads, "threads"), bf16))
        self._model = owned(out, lab.srnl_model_free)
        self._arguments = (str(where), device, threads, bf16)
        self.where = str(where)
        self.vocabulary = int(lab.srnl_model_vocabulary(self._model[0]))
        self.layers = int(lab.srnl_model_layers(self._model[0]))
        self.positions = int(lab.srnl_model_positions(self._model[0]))
        self.prefix_tokens = int(lab.srnl_model_prefix_tokens(self._model[0]))
        self.parameters = int(lab.srnl_model_parameters(self._model[0]))
        self._tokenizer: Optional[Tokenizer] = None
        _tell_leak(self._attention(0))

    @property
    def attention(self) -> List[Any]:
        """The variant of each layer, two as a tuple where mixers stand side by side; none where the model has no
        attention (Avey)."""
        layers = [[parse(one) for one in re.split(r"\+(?!\d)", written)]
                  for written in map(self._attention, range(self.layers)) if not written.startswith("avey")]
        return [layer[0] if len(layer) == 1 else tuple(layer) for layer in layers]

    def _attention(self, layer: int) -> str:
        size = lab.srnl_model_attention(self._model[0], layer, ffi.NULL, 0) + 1
        characters = ffi.new("char[]", size)
        lab.srnl_model_attention(self._model[0], layer, characters, size)
        return text(characters)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer in the model's folder."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer(self)
        return self._tokenizer

    def _tokens(self, ids: Any, argument: str = "ids") -> np.ndarray:
        """Ids (B, T) with the empty ones in front."""
        checked = _ids(ids, argument)
        if checked.min() < 0 or checked.max() >= self.vocabulary:
            raise ArgumentError(f"{argument} must be from 0 to {self.vocabulary - 1}")
        return np.ascontiguousarray(np.pad(checked, ((0, 0), (self.prefix_tokens, 0))))

    def logits(self, ids: Any) -> np.ndarray:
        """(B, T, vocabulary) for ids (B, T) or (T), each row a sequence of its own."""
        tokens = self._tokens(ids)
        out = np.empty(tokens.shape + (self.vocabulary,), np.float32)
        check(lab.srnl_model_logits(self._model[0], _numbers(out), _numbers(tokens), *tokens.shape))
        return out[:, self.prefix_tokens:]

    def losses(self, ids: Any, targets: Any) -> np.ndarray:
        """(B, T): minus the log probability of each target; 0 where a target is negative."""
        tokens = self._tokens(ids)
        wanted = np.pad(_ids(targets, "targets"), ((0, 0), (self.prefix_tokens, 0)), constant_values=-1)
        if wanted.shape != tokens.shape:
            raise ArgumentError("targets must have the shape of ids")
        if wanted.max() >= self.vocabulary:
            raise ArgumentError(f"targets must be below {self.vocabulary}")
        out = np.empty(tokens.shape, np.float32)
        check(lab.srnl_model_losses(self._model[0], _numbers(out), _numbers(tokens), _numbers(np.ascontiguousarray(wanted)),
                                    *tokens.shape))
        return out[:, self.prefix_tokens:]

    def session(self, B: int = 1) -> "Session":
        """B sequences side by side, to be fed and continued."""
        return Session(self, B)

    def generate(self, prompt: str = "", tokens: int = 100, temperature: float = 0.0, top_p: float = 0.0, top_k: int = 0,
                 seed: int = 0) -> str:
        """The prompt and what follows it, up to `tokens` tokens or the end of the text. temperature 0: the most probable
        token."""
        tokenizer = self.tokenizer
        begin = [tokenizer.begin] if tokenizer.begin is not None else []
        ids = begin + tokenizer.encode(prompt)
        if not ids:
            raise ArgumentError("prompt is empty, and the tokenizer has no token that begins a text")
        session = self.session()
        session.feed([ids])
        for _ in range(tokens):
            token = int(session.next(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)[0])
            if token == tokenizer.end or self.ends(token):
                break
            ids.append(token)
        return tokenizer.decode(ids[len(begin):])

    def ends(self, token: int) -> bool:
        """Whether this token ends a text, as config.json or generation_config.json says."""
        return bool(lab.srnl_model_ends(self._model[0], token))

    def chat_prompt(self, messages: Any, **values: Any) -> str:
        """The text that the model's chat template makes of messages: a text of the user's, or a list of
        {"role": "user", "content": ".."}. `values` are further variables of the template. Needs jinja2."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        template, tokens = _chat_template(Path(self.where))
        return _jinja().from_string(template).render(messages=messages, add_generation_prompt=True, **{**tokens, **values})

    def chat(self, messages: Any, tokens: int = 100, temperature: float = 0.0, top_p: float = 0.0, top_k: int = 0,
             seed: int = 0, **values: Any) -> str:
        """What the model answers to messages (see chat_prompt)."""
        tokenizer = self.tokenizer
        ids = tokenizer.encode(self.chat_prompt(messages, **values))
        session, answer = self.session(), []
        session.feed([ids])
        for _ in range(tokens):
            token = int(session.next(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)[0])
            if token == tokenizer.end or self.ends(token):
                break
            answer.append(token)
        return tokenizer.decode(answer)

    def save(self, folder: Any, dtype: str = "float32") -> None:
        """Writes config.json and model.safetensors into an existing folder; dtype: float32, bfloat16 or float16."""
        check(lab.srnl_model_save(self._model[0], _path(folder, "folder"), encoded(dtype, "dtype")))

    def __reduce__(self) -> Any:
        """pickle and copy keep where the model is, and load it from there again."""
        return Model, self._arguments

    def __repr__(self) -> str:
        kinds = list(dict.fromkeys(map(self._attention, range(self.layers))))
        return f"<softrnn.lab.Model {self.where}: {self.layers} layers of {', '.join(kinds)}, {self.parameters} parameters>"


_PIECE = 128  # tokens that are fed at once; Ctrl-C is noticed between pieces


class Session:
    """Sequences that are fed and continued, with a state of fixed size where the variant has one."""

    def __init__(self, model: Model, B: int = 1):
        out = ffi.new("srnl_session **")
        check(lab.srnl_session_create(out, model._model[0], _whole(B, "B", 1)))
        self._session = owned(out, lab.srnl_session_free, model._model)
        self.model = model
        self.B = B

    def feed(self, ids: Any, logits: bool = False) -> Optional[np.ndarray]:
        """Feeds ids (B, T); with logits=True gives (B, vocabulary), those of what follows."""
        tokens = self.model._tokens(ids) if not self.position else _ids(ids, "ids")
        if tokens.shape[0] != self.B:
            raise ArgumentError(f"ids have {tokens.shape[0]} rows; the session has {self.B} sequences")
        out = np.empty((self.B, self.model.vocabulary), np.float32) if logits else None
        for start in range(0, tokens.shape[1], _PIECE):
            piece = np.ascontiguousarray(tokens[:, start:start + _PIECE])
            last = start + _PIECE >= tokens.shape[1]
            check(lab.srnl_session_feed(self._session[0], _numbers(piece), piece.shape[1],
                                        _numbers(out) if last and out is not None else ffi.NULL))
        return out

    def next(self, temperature: float = 0.0, top_p: float = 0.0, top_k: int = 0, seed: int = 0) -> np.ndarray:
        """The next token of every sequence (B), which is also fed."""
        ids = np.empty(self.B, np.int32)
        sampling = ffi.new("srnl_sampling *", [_number(temperature, "temperature"), _number(top_p, "top_p"),
                                               _whole(top_k, "top_k"), _whole(seed, "seed", most=2 ** 64 - 1)])
        check(lab.srnl_session_next(self._session[0], _numbers(ids), sampling))
        return ids

    def reset(self) -> None:
        """The next token is the first."""
        check(lab.srnl_session_reset(self._session[0]))

    @property
    def position(self) -> int:
        """Tokens fed, those in front included."""
        return int(lab.srnl_session_position(self._session[0]))

    @property
    def nbytes(self) -> int:
        """Bytes of its state."""
        return int(lab.srnl_session_state_bytes(self._session[0]))

    @property
    def is_fixed(self) -> bool:
        """Whether the state does not grow."""
        return bool(lab.srnl_session_is_recurrent(self._session[0]))


# ---- training

_STEP = [name for name, _ in ffi.typeof("srnl_step").fields]


class Step(NamedTuple):
    """What one step of a training did; validation and accuracy are NaN where it had none."""

    step: int
    tokens: int
    loss: float
    gradient_norm: float
    learning_rate: float
    validation: float
    accuracy: float
    seconds: float
    applied: bool
    saved: bool


def settings() -> List[str]:
    """The names of train()'s settings: the options of `softrnn train`.

    >>> "steps" in softrnn.lab.settings()
    True
    """
    names: List[str] = []
    while True:
        name = lab.srnl_setting_name(len(names))
        if not name:
            return names
        names.append(text(name))


# What softrnn.nn and others call settings.
_SETTINGS = {"lr": "learning_rate", "dim": "hidden", "hidden_size": "hidden", "head_dim": "head_size", "theta": "rope_theta",
             "vocab_size": "vocab", "vocabulary": "vocab", "batch_size": "batch", "seq_len": "length", "max_steps": "steps",
             "num_heads": "heads", "num_kv_heads": "kv_heads", "num_layers": "layers"}


def _own_names(values: Dict[str, Any]) -> Dict[str, Any]:
    """Settings by the names of softrnn train."""
    found: Dict[str, Any] = {}
    for given, value in values.items():
        name = _SETTINGS.get(given, given)
        if name in found:
            raise ArgumentError(f"{name} is given twice: {given} is another name for it")
        found[name] = value
    return found


def _make_settings(values: Dict[str, Any]) -> Any:
    values = _own_names(values)
    out = ffi.new("srnl_settings **")
    check(lab.srnl_settings_create(out))
    made = ffi.gc(out[0], lab.srnl_settings_free)
    for name, value in values.items():
        written = str(value).lower() if isinstance(value, bool) else str(value)
        check(lab.srnl_settings_set(made, name.replace("_", "-").encode(), encoded(written, name)))
    return made


def train(folder: Any, callback: Optional[Callable[[Step], Any]] = None, resume: bool = False, **values: Any) -> "Run":
    """Trains a model in a new folder, as `softrnn train --out folder` does, or resumes the one in it (resume=True).

    values: settings by their names, with _ for -: data, attention, steps, batch, length, ... (softrnn.lab.settings()); lr, dim, head_dim,
    batch_size and the like are taken for learning_rate, hidden, head_size, batch.
    callback: called with a Step after each one; False ends the training there, with a checkpoint. Of avey, which is not causal,
    train, Model and Study warn.
    """
    out = ffi.new("srnl_run **")
    where = _path(folder, "folder")
    _tell_leak(str(values.get("attention", "")))
    if resume:
        if values:
            raise ArgumentError(f"a resumed run keeps its settings: {', '.join(values)}")
        check(lab.srnl_run_resume(out, where))
    elif (Path(where.decode()) / "run.yaml").exists():
        raise ArgumentError(f"{folder}: this folder holds a run; resume it with resume=True, or choose another folder")
    else:
        check(lab.srnl_run_start(out, where, _make_settings(values)))
    run = ffi.gc(out[0], lab.srnl_run_free)
    step = ffi.new("srnl_step *")
    try:
        while not lab.srnl_run_done(run):
            with unstoppable():
                check(lab.srnl_run_step(run, step))
            if callback is not None and callback(Step(*(getattr(step, name) for name in _STEP))) is False:
                break
    finally:
        check(lab.srnl_run_save(run))
    return Run(folder)


def _lines(path: Path) -> Iterator[Dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):  # the last one may still be being written
                yield json.loads(line)


def _read_json(path: Path) -> Dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


class Run:
    """The records of a training, in its folder."""

    def __init__(self, folder: Any):
        self.folder = Path(folder)
        if not (self.folder / "run.yaml").exists():
            raise ArgumentError(f"{folder} is not the folder of a run: it has no run.yaml")

    @property
    def metrics(self) -> Any:
        """A frame with a row for every step: loss, gradient_norm, learning_rate, validation_loss, ..."""
        import pandas
        return pandas.DataFrame(_lines(self.folder / "metrics.jsonl"))

    @property
    def timings(self) -> Any:
        """A frame with a row for every step: seconds, targets_per_second."""
        import pandas
        return pandas.DataFrame(_lines(self.folder / "timings.jsonl"))

    @property
    def result(self) -> Dict[str, Any]:
        """How it ended: result.json of a study's run; else status (finished, diverged, stopped), step, tokens, loss, .. of the
        last step done, and validation_loss, .. of the last validation. A loss that is not finite is None. Empty before the first
        step."""
        written = _read_json(self.folder / "result.json")
        if written or not (self.folder / "metrics.jsonl").exists():
            return written
        last: Dict[str, Any] = {}
        skipped_in_row = 0
        for line in _lines(self.folder / "metrics.jsonl"):
            skipped_in_row = skipped_in_row + 1 if line["skipped"] > last.get("skipped", 0) else 0
            last.update(line)
        if not last:
            return {}
        yaml = (self.folder / "run.yaml").read_text(encoding="utf-8")
        settings = {name: int(number) for name, number in re.findall(r"^(steps|bad-steps): *(\d+)$", yaml, flags=re.M)}
        diverged = skipped_in_row >= settings["bad-steps"]
        return {"status": "diverged" if diverged else "finished" if last["step"] == settings["steps"] else "stopped", **last}

    @property
    def model(self) -> Model:
        """The model of its last checkpoint."""
        return Model(self.folder)

    def plot(self, axes: Any = None) -> Any:
        """The loss over the steps, with matplotlib; returns the axes."""
        axes = axes if axes is not None else _axes(1)[0]
        _curve(axes, self.metrics, self.folder.name)
        return axes

    def __repr__(self) -> str:
        return f"<softrnn.lab.Run {self.folder}>"

    def _repr_html_(self) -> str:
        axes = self.plot()
        return f"<p>{html.escape(str(self.folder))}</p>{_picture(axes.figure)}"


# ---- figures


# ---- from a trained model to an RNN


class Student:
    """What `softrnn distil` made in a folder: the copy, and a Run for every stage."""

    def __init__(self, folder: Any):
        self.folder = Path(folder)
        if not (self.folder / "plan" / "copy.yaml").exists():
            raise FileError(f"{folder}: no student is made in this folder")
        planned = [name for name in ("align", "distil", "tune") if (self.folder / "plan" / f"{name}.yaml").exists()]
        self.stages: Dict[str, Run] = {name: Run(self.folder / name) for name in planned
                                       if (self.folder / name / "run.yaml").exists()}

    @property
    def checkpoint(self) -> Path:
        """The model folder of the student: the last checkpoint of the last stage, else the copy. AutoModelForCausalLM reads it, once
        softrnn.hf is imported."""
        for run in reversed(list(self.stages.values())):
            found = sorted((run.folder / "checkpoints").glob("step-*"))
            if found:
                return found[-1]
        return self.folder / "copy"

    def model(self, **options: Any) -> Model:
        """The student; options: those of Model."""
        return Model(self.checkpoint, **options)

    @property
    def layers(self) -> Dict[str, Any]:
        """layers.json of rank_layers=True; {} without."""
        return _read_json(self.folder / "layers.json")

    def __repr__(self) -> str:
        return f"<softrnn.lab.Student of {', '.join(self.stages) or 'no stage yet'} in {self.folder}>"


def distil(out: Any, teacher: Any = None, attention: Any = None, data: Any = None, *, resume: bool = False,
           **options: Any) -> Student:
    """Puts another attention into a trained model and teaches it what the model does, stage by stage, as `softrnn distil` does in a
    process of its own; gives the Student.

    teacher: a model folder, a run or a llama2.c .bin; attention: a variant, or one by layers; data: a text or what train takes.
    options: those of the command, with _ for -: keep, stages, align_steps, distil_rate, learn, lora_rank, kl, rank_layers, ... and
    settings of train. resume=True continues the stages in the folder; an interrupt leaves a checkpoint.

        student = softrnn.lab.distil("runs/gla", "runs/softmax", "gla", "text.txt", keep="0", align_steps=100)
        student.model().generate("Once upon")
    """
    values = {**{"teacher": teacher, "attention": attention, "data": data}, **options}
    given = {name: value for name, value in values.items() if value is not None}
    if not resume and None in (teacher, attention, data):
        raise ArgumentTypeError("a student needs a teacher, an attention and data")
    where = _path(out, "out").decode()
    _run_command("distil", (), {"resume" if resume else "out": where, **given})
    return Student(out)


def _axes(count: int) -> List[Any]:
    from matplotlib.figure import Figure
    figure = Figure(figsize=(6 * count, 4), layout="constrained")
    return list(figure.subplots(1, count, squeeze=False)[0])


def _curve(axes: Any, metrics: Any, label: str, **style: Any) -> None:
    measured = metrics[metrics["validation_loss"].notna()] if "validation_loss" in metrics else metrics[:0]
    if len(measured):
        axes.plot(measured["step"], measured["validation_loss"].astype(float), label=label, **style)
    else:
        axes.plot(metrics["step"], metrics["loss"].astype(float), label=label, **style)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")


def _picture(figure: Any) -> str:
    """A figure for a notebook."""
    out = io.StringIO()
    figure.savefig(out, format="svg")
    return out.getvalue()[out.getvalue().index("<svg"):]


# ---- studies


def study(out: Any, file: Optional[Any] = None, *, text: Optional[str] = None, only: Optional[str] = None,
          skip: Optional[str] = None, jobs: int = 0, callback: Optional[Callable[[int, int], Any]] = None) -> "Study":
    """Runs a study into the folder `out`, or resumes it, each run in a process of its own, as `softrnn study` does.

    file: the study in YAML (docs/STUDY.md); None: the default one. text: files that stand for @text, "a,b". only, skip:
    tasks, variants, sizes or runs, "a,b". jobs: runs at a time. callback(ended, runs): called about twenty times a second;
    False stops the study cleanly.
    """
    caught: List[BaseException] = []

    def watch(context: Any, ended: int, runs: int) -> bool:
        return callback is None or callback(int(ended), int(runs)) is not False

    def keep(kind: Any, error: BaseException, trace: Any) -> None:  # an interrupt too: the study is stopped first
        caught.append(error)

    alive = [ffi.callback("bool(void *, size_t, size_t)", watch, error=False, onerror=keep)]
    request = ffi.new("srnl_study *", {"jobs": jobs, "watch": alive[0]})
    given = {"file": file, "out": out, "text": text, "only": only, "skip": skip}
    for name, value in given.items():
        if value is not None:
            alive.append(ffi.new("char[]", _path(value, name)))
            setattr(request, name, alive[-1])
    failed = ffi.new("size_t *")
    with unstoppable():  # the watch sees an interrupt
        status = lab.srnl_study_run(request, failed)
    if caught:
        raise caught[0]
    check(status)
    return Study(out)


class Study:
    """The records of a study, in its folder (docs/RECORDS.md)."""

    def __init__(self, folder: Any):
        self.folder = Path(folder)
        if not (self.folder / "study.json").exists():
            raise ArgumentError(f"{folder} is not the folder of a study: it has no study.json")
        for variant in self.plan["variants"]:
            _tell_leak(variant["attention"])

    @property
    def plan(self) -> Dict[str, Any]:
        """study.json."""
        return _read_json(self.folder / "study.json")

    @property
    def runs(self) -> Any:
        """A frame with a row for every run: what was planned, and how it ended."""
        import pandas
        rows = [{**run, **_read_json(self.folder / run["folder"] / "result.json")} for run in self.plan["runs"]]
        return pandas.DataFrame(rows)

    @property
    def metrics(self) -> Any:
        """A frame with a row for every step of every run."""
        import pandas
        frames = []
        for run in self.plan["runs"]:
            path = self.folder / run["folder"] / "metrics.jsonl"
            if path.exists():
                frame = pandas.DataFrame(_lines(path))
                for name in ("seed", "learning_rate", "size", "variant", "task", "id"):
                    frame.insert(0, "run_learning_rate" if name == "learning_rate" else name, run[name])
                frames.append(frame)
        return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()

    @property
    def summary(self) -> Any:
        """A frame with a row for every task, size, learning rate and variant: means, the difference from the baseline with
        its interval, and the verdict."""
        import pandas
        rows = []
        for cell in _read_json(self.folder / "summary.json").get("cells", []):
            for entry in cell["variants"]:
                difference = entry["difference"] or {}
                rows.append({"task": cell["task"], "size": cell["size"], "learning_rate": cell["learning_rate"],
                             "variant": entry["variant"], "finished": entry["finished"],
                             "loss": entry["loss"]["mean"], "accuracy": entry["accuracy"]["mean"],
                             "difference": difference.get("mean"), "low": difference.get("low"),
                             "high": difference.get("high"), "of": difference.get("of"),
                             "verdict": difference.get("verdict", "baseline"),
                             "tokens_per_second": entry["tokens_per_second"], "state_bytes": entry["state_bytes"]})
        return pandas.DataFrame(rows)

    def plot(self) -> Any:
        """The losses of all runs, one figure a task, one colour a variant; returns the figure."""
        metrics = self.metrics
        tasks = [task["name"] for task in self.plan["tasks"]]
        names = [variant["name"] for variant in self.plan["variants"]]
        axes = _axes(len(tasks))
        for task, place in zip(tasks, axes):
            mine = metrics[metrics["task"] == task] if len(metrics) else metrics
            for number, name in enumerate(names):
                runs = [run for _, run in mine[mine["variant"] == name].groupby("id")] if len(mine) else []
                for index, run in enumerate(runs):
                    _curve(place, run, name if index == 0 else "_", color=f"C{number % 10}")
            place.set_title(task)
            if place.has_data():
                place.legend()
        return axes[0].figure

    def __repr__(self) -> str:
        return f"<softrnn.lab.Study {self.folder}: {len(self.plan['runs'])} runs>"

    def _repr_html_(self) -> str:
        title = html.escape(str(self.plan.get("title") or self.plan.get("name")))
        return f"<h3>{title}</h3>{self.summary.to_html(index=False)}{_picture(self.plot())}"
