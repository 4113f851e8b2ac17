"""A stand-in for the package `spaces`, after what its own code does: a generator runs in a process that was
forked from this one, arguments and results are pickled on the way, a closed generator stops it at its next
value, a process is used again, and of an error only the class comes back."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
import types

import gradio as gr

FORK = multiprocessing.get_context("fork")


class Worker:
    """One forked process that works through what it is given."""

    def __init__(self, task):
        self.arguments, theirs = FORK.Pipe()
        self.results, out = FORK.Pipe(duplex=False)
        self.stop = FORK.Event()
        self.process = FORK.Process(target=self._work, args=(task, theirs, out), daemon=True)
        self.process.start()

    def _work(self, task, arguments, out):
        os.environ["LENT_WORKER"] = "1"
        while True:
            args = pickle.loads(arguments.recv_bytes())
            self.stop.clear()
            try:
                events = task(*args)
                for value in events:
                    if self.stop.is_set():
                        events.close()
                        break
                    out.send_bytes(pickle.dumps(("value", value)))
            except Exception as error:
                traceback.print_exc()
                out.send_bytes(pickle.dumps(("error", type(error).__name__)))
            out.send_bytes(pickle.dumps(("end", None)))


def stand_in():
    """(module, log): put the module into sys.modules; log holds what was asked for."""
    log = types.SimpleNamespace(durations=[], workers=[], refuse=None, decorated=[])
    workers = {}

    def gpu(duration):
        def decorate(task):
            log.decorated.append(task.__name__)

            def handler(*args):
                log.durations.append(duration(*args))
                if log.refuse is not None:
                    raise log.refuse
                if task not in workers:
                    workers[task] = Worker(task)
                    log.workers.append(workers[task])
                worker = workers[task]
                worker.arguments.send_bytes(pickle.dumps(args))
                try:
                    while True:
                        kind, value = pickle.loads(worker.results.recv_bytes())
                        if kind == "end":
                            return
                        if kind == "error":
                            raise gr.Error(value, title="ZeroGPU worker error")
                        yield value
                except GeneratorExit:
                    worker.stop.set()
                    while pickle.loads(worker.results.recv_bytes())[0] != "end":
                        pass
                    raise

            return handler

        return decorate

    return types.SimpleNamespace(GPU=gpu), log
