"""A double of Triton's HTTP frontend: the generate extension, answers from a script.

Says what the real one says: status and body of refusals, one element as a scalar, an error in the
stream as an event of its own, the stream's end as the end of the chunked body.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from http_double import Cut, HttpDouble, HttpHandler, running
from scripted_server import Asked, Fault, Step, endless
from triton_models_double import TRTSPEC, Model

STATUS = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "INTERNAL": 500, "UNAVAILABLE": 503}
KINDS = {"INT32": int, "UINT64": int, "FP32": float, "BOOL": bool, "BYTES": str}


# Bytes go out as they are, as one chunk of the body.
Script = Callable[[Asked], Iterable[Step | Fault | bytes | Cut]]


class ScriptedHttpServer(HttpDouble):
    """Serves a script; see `serving_http`."""

    def __init__(self, script: Script, models: Sequence[Model], ready: bool, metrics: str, port: int) -> None:
        super().__init__(_Handler, port)
        self.script = script
        self.models = {model.name: model for model in models}
        self.ready = ready
        self.metrics = metrics
        self.asked: list[Asked] = []


def serving_http(
    script: Script,
    *,
    models: Sequence[Model] = (TRTSPEC,),
    ready: bool = True,
    metrics: str = "",
    port: int = 0,
    context: ssl.SSLContext | None = None,
) -> AbstractContextManager[ScriptedHttpServer]:
    return running(ScriptedHttpServer(script, models, ready, metrics, port), context)


class _Handler(HttpHandler):
    server: ScriptedHttpServer

    def do_GET(self) -> None:
        ok = self.server.ready
        if self.path == "/metrics":
            return self._send(200, self.server.metrics)
        if self.path.startswith("/v2/health/"):
            return self._send(200, "")
        if self.path == "/v2":
            return self._send(200, {"name": "triton", "version": "2.51.0", "extensions": []})
        name, _, what = self.path.removeprefix("/v2/models/").partition("/")
        model = self.server.models.get(name)
        if model is None:
            return self._send(404, {"error": f"Request for unknown model: '{name}' is not found"})
        if what == "ready":
            return self._send(200 if ok else 400, "")
        return self._send(200, _config(model) if what == "config" else _metadata(model))

    def do_POST(self) -> None:
        body = json.loads(self.read_body())
        name = self.path.removeprefix("/v2/models/").partition("/")[0]
        model = self.server.models[name]
        asked = _asked(model, body, dict(self.headers))
        self.server.asked.append(asked)
        if refusal := model.refusal(asked.tensors):
            asked.finished = True
            return self._send(400, {"error": refusal})
        try:
            self._stream(asked)
        except OSError:
            self.close_connection = True
        finally:
            asked.over.set()

    def _stream(self, asked: Asked) -> None:
        begun = False
        for step in self.server.script(asked):
            if isinstance(step, Cut):
                self.cut()
                return
            if isinstance(step, Fault) and not begun:
                self._begin(STATUS[step.status or "INVALID_ARGUMENT"])
            elif not begun:
                self._begin(200)
            begun = True
            self.send_chunk(step if isinstance(step, bytes) else _event(asked, step))
            if isinstance(step, Fault):
                break
        if not begun:
            self._begin(200)
        self.send_chunk(b"")
        asked.finished = True

    def _begin(self, status: int) -> None:
        self.begin_chunks(status, "text/event-stream; charset=utf-8")

    def _send(self, status: int, body: str | dict[str, Any]) -> None:
        self.send_whole(status, body if isinstance(body, str) else json.dumps(body))


def _asked(model: Model, body: dict[str, Any], headers: dict[str, str]) -> Asked:
    """Return a request as Triton makes it from JSON: fields become the inputs of their name."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    values: dict[str, list[Any]] = {}
    for name, value in body.items():
        if name == "id":
            continue
        datatype, shape = model.inputs.get(name, ("?", (1,)))
        found = value if isinstance(value, list) else [value]
        assert all(isinstance(v, KINDS.get(datatype, object)) for v in found), (name, found)
        tensors[name] = (datatype, (1,) * (len(shape) - 1) + (len(found),))
        values[name] = [v.encode() if isinstance(v, str) else v for v in found]
    return Asked(body.get("id", ""), model.name, tensors, values, headers)


def _event(asked: Asked, step: Step | Fault) -> bytes:
    if isinstance(step, Fault):
        return f"data: {json.dumps({'error': step.message})}\n\n".encode()
    outputs = dict(step.more)
    if step.text or step.ids or outputs:
        outputs = {"text_output": step.text, "output_ids": list(step.ids), **outputs}
    fields = {
        name: value[0] if isinstance(value, list) and len(value) == 1 else value
        for name, value in outputs.items()
    }
    named = {"id": asked.id, "model_name": asked.model, "model_version": "1", **fields}
    return f"data: {json.dumps(named, ensure_ascii=False)}\n\n".encode()


def _metadata(model: Model) -> dict[str, Any]:
    def listed(tensors: Any) -> list[dict[str, Any]]:
        return [{"name": n, "datatype": d, "shape": list(s)} for n, (d, s) in tensors.items()]

    return {"name": model.name, "inputs": listed(model.inputs), "outputs": listed(model.outputs)}


def _config(model: Model) -> dict[str, Any]:
    config: dict[str, Any] = {"name": model.name}
    if model.decoupled:
        config["model_transaction_policy"] = {"decoupled": True}
    return {**config, "parameters": {k: {"string_value": v} for k, v in model.parameters.items()}}


if __name__ == "__main__":
    with serving_http(endless) as running:
        print(running.url, flush=True)  # noqa: T201
        threading.Event().wait()
