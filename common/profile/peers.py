#!/usr/bin/env python3
"""Times PyTorch's attention on the problems and by the protocol of `bench` (docs/measuring.md), into the same results format.

    peers.py [options] PASS/PROBLEM ...     "forward/B=16 Hq=16 Hkv=16 Nq=1024 Nk=1024 d=128 bf16 causal" (`bench --list`)

Peers: flash, cudnn, efficient, math (back ends of scaled_dot_product_attention) and flex (FlexAttention, which compiles
for many seconds a problem). First, what libraries reach on this GPU: cuBLAS and a copy. Needs PyTorch with a GPU.
Exit: 0 measured, 2 bad input, 3 no PyTorch or no GPU.
"""
import argparse
import contextlib
import sys

import results as files

PEERS = ("flash", "cudnn", "efficient", "math", "flex")
PASSES = ("forward", "backward", "decode")
SAMPLE_MS, WARM_UP_MS, MOST_LAUNCHES = 20.0, 30.0, 1000
FLUSH_BYTES = 256 << 20
LARGEST_ERROR = 0.02  # of an output's norm, against fp32: tells a wrong mask from bf16's rounding


class Stopwatch:
    """Samples by device events, as common/profile/measure.h has it."""

    def __init__(self, torch, l2):
        self.torch = torch
        self.start, self.stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda") if l2 == "cold" else None

    def time(self, launch, launches):
        """Milliseconds of `launches` launches that follow each other."""
        self.start.record()
        for _ in range(launches):
            launch()
        self.stop.record()
        self.stop.synchronize()
        return self.start.elapsed_time(self.stop)

    def sample(self, launch, launches):
        """Mean milliseconds of a launch, after one that is not counted unless a single one is as long as a sample."""
        if launches > 1:
            launch()
        if self.flush is None:
            return self.time(launch, launches) / launches
        total = 0.0
        for _ in range(launches):
            self.flush.fill_(255)
            total += self.time(launch, 1)
        return total / launches

    def warm_up(self, launch):
        launch()
        first = self.sample(launch, 1)
        if first >= WARM_UP_MS:
            return 1
        return launches_in(SAMPLE_MS, self.sample(launch, launches_in(WARM_UP_MS, first)))


def launches_in(milliseconds, one):
    return min(max(round(milliseconds / max(one, 1e-6)), 1), MOST_LAUNCHES)


def inputs(torch, problem):
    """Q, K, V, dO: normal, bf16 or fp16, (B, H, N, d) as PyTorch likes it best, (B, N, H, d) in memory; none for packed sequences."""
    if problem["packed"]:
        return (None,) * 4
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[problem["dtype"]]

    def tensor(heads, rows):
        return torch.randn(problem["B"], rows, heads, problem["d"], device="cuda", dtype=dtype).transpose(1, 2)

    queries = (problem["Hq"], problem["Nq"])
    keys = (problem["Hkv"], problem["Nk"])
    return tensor(*queries), tensor(*keys), tensor(*keys), tensor(*queries)


def attention_of(torch, peer, problem):
    """A function of Q, K, V, and what to enter around its calls. Raises ValueError for what the peer cannot do."""
    causal = problem["mask"] == "causal"
    if problem["packed"]:
        raise ValueError("takes no packed sequences here")
    if problem["mask"] not in ("none", "causal"):
        raise ValueError(f"has no mask {problem['mask']}")
    if causal and problem["Nq"] != problem["Nk"]:
        raise ValueError("aligns a causal mask at the first key")
    grouped = problem["Hq"] != problem["Hkv"]
    if peer == "flex":
        import torch._functorch.config
        from torch.nn.attention import flex_attention as flex

        torch._functorch.config.donated_buffer = False  # backward runs more than once
        mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, problem["Nq"], problem["Nk"]) if causal else None
        compiled = torch.compile(flex.flex_attention, dynamic=False)
        return lambda q, k, v: compiled(q, k, v, block_mask=mask, enable_gqa=grouped), contextlib.nullcontext
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
               "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}[peer]  # fmt: skip
    scores = 4 * problem["B"] * problem["Hq"] * problem["Nq"] * problem["Nk"]
    if peer == "math" and 6 * scores > torch.cuda.mem_get_info()[0]:
        raise ValueError(f"keeps scores of {scores / 2**30:.0f} GiB several times over")

    def attention(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    return attention, lambda: sdpa_kernel(backend)


def exact(torch, problem, q, k, v):
    """The first head of the first sequence, in fp32, up to 512 queries from its end."""
    first = max(problem["Nq"] - 512, 0)
    scores = q[0, 0, first:].float() @ k[0, 0].float().T / problem["d"] ** 0.5
    if problem["mask"] == "causal":
        i = torch.arange(first, problem["Nq"], device="cuda")[:, None]
        scores.masked_fill_(torch.arange(problem["Nk"], device="cuda") > i, float("-inf"))
    return first, scores.softmax(-1) @ v[0, 0].float()


class Peer:
    """One peer on one problem and pass: its row, and what to launch."""

    def __init__(self, torch, name, kind, problem, l2, operands):
        self.row = {"stage": "peer", "rung": "", "name": name, "pass": kind, "problem": problem, "l2": l2,
                    "status": "skipped", "reason": None, "ms": []}  # fmt: skip
        try:
            self.launch = self.prepare(torch, name, kind, problem, *operands)
        except Exception as error:  # whatever a back end throws where it has no kernel
            self.row["reason"] = str(error).split("\n")[0]

    def prepare(self, torch, name, kind, problem, q, k, v, dO):
        attention, self.context = attention_of(torch, name, problem)
        if kind == "backward":
            q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        with self.context():
            O = attention(q, k, v)
        first, expected = exact(torch, problem, q.detach(), k.detach(), v.detach())
        error = ((O[0, 0, first:].float() - expected).norm() / expected.norm()).item()
        if not error <= LARGEST_ERROR:
            self.row["status"] = "wrong"
            raise ValueError(f"is off by {error:.3g} of the norm")
        self.row["status"] = "verified"
        if kind != "backward":
            return lambda: attention(q, k, v)
        return lambda: torch.autograd.grad(O, (q, k, v), dO, retain_graph=True)

    def evaluate(self):
        if self.row["status"] != "verified":
            return
        self.row["time_ms"] = files.median(self.row["ms"])
        self.row["flops"] = files.flops(self.row["problem"], self.row["pass"])
        self.row["tflops"] = self.row["flops"] / self.row["time_ms"] * 1e-9


def next_round(in_step):
    if in_step:
        print("ready", flush=True)
        if not sys.stdin.readline():
            sys.exit("peers.py: the program to keep step with is gone")


def libraries(torch):
    """What the libraries of this GPU reach where a kernel's ceiling is measured by a microbenchmark, by the ceiling's name."""
    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    from_, to = (torch.randn(1 << 28, device="cuda") for _ in range(2))
    a8, b8, one = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t(), torch.ones((), device="cuda")
    stopwatch = Stopwatch(torch, "warm")
    found = {}
    for name, what, work, unit, launch in (
        ("copy", "copy of 1 GiB", 2 * from_.nbytes, "B/s", lambda: to.copy_(from_)),
        ("wgmma bf16", f"matrix product, n = {n}", 2 * n**3, "FLOP/s", lambda: a @ b),
        ("wgmma e4m3", f"matrix product, n = {n}", 2 * n**3, "FLOP/s",
         lambda: torch._scaled_mm(a8, b8, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)),
    ):  # fmt: skip
        try:
            launches = stopwatch.warm_up(launch)
            ms = files.median([stopwatch.sample(launch, launches) for _ in range(9)])
        except Exception as error:  # whatever a library throws where it has no kernel
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        found[name] = {"what": what, "per_second": work / ms * 1e3, "unit": unit}
    return found


def measure(torch, problem, passes, options):
    """The rows of all peers on one problem."""
    operands = inputs(torch, problem)
    peers = [Peer(torch, name, kind, problem, options.l2, operands) for kind in passes for name in options.peers]
    stopwatch = Stopwatch(torch, options.l2)
    order = [peer for peer in peers if peer.row["status"] == "verified"]
    launches = {}
    for peer in order:
        with peer.context():
            launches[peer] = stopwatch.warm_up(peer.launch)
    for _ in range(options.repetitions):
        next_round(options.in_step)
        for peer in order:
            with peer.context():
                peer.row["ms"].append(stopwatch.sample(peer.launch, launches[peer]))
        order.reverse()
    for peer in peers:
        peer.evaluate()
    return [peer.row for peer in peers]


def print_rows(problem, rows):
    print(f"\n{problem['text']}")
    for row in rows:
        said = f"{row['time_ms']:9.4g} ms {row['tflops']:6.4g} TFLOP/s" if row["ms"] else f"{row['status']}: {row['reason']}"
        print(f"  {files.title(row):20} {row['pass']:9} {said}", flush=True)


def choice(allowed):
    def parse(text):
        names = text.split(",")
        if unknown := [name for name in names if name not in allowed]:
            raise argparse.ArgumentTypeError(f"{unknown[0]}: choose among {', '.join(allowed)}")
        return names

    return parse


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("measurements", nargs="+", metavar="PASS/PROBLEM")
    parser.add_argument("--peers", type=choice(PEERS), default=list(PEERS[:4]), help="of " + ",".join(PEERS))
    parser.add_argument("--l2", choices=("warm", "cold"), default="warm")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--json", help="write the results to this file too")
    parser.add_argument("--in-step", action="store_true", help='print "ready" and wait for a line before each round')
    options = parser.parse_args(arguments)
    if options.repetitions < 9:
        parser.error(f"--repetitions {options.repetitions}: give at least 9, fewer bound no median")
    passes = {}  # of each problem
    for text in options.measurements:
        try:
            kind, text = text.split("/", 1)
            files.parse_problem(text)
            passes.setdefault(text, []).append(PASSES[PASSES.index(kind)])
        except (ValueError, IndexError):
            parser.error(f'"{text}": write pass and problem as `bench --list` does, without the rung')
    try:
        import torch
    except ImportError:
        print("peers.py: PyTorch is not here (python3 -c 'import torch'); without it there are no peers.", file=sys.stderr)
        return 3
    if not torch.cuda.is_available():
        print("peers.py: PyTorch sees no GPU here.", file=sys.stderr)
        return 3
    torch.manual_seed(1)
    reached = libraries(torch)
    torch.cuda.empty_cache()
    rows = []
    for text in passes:
        problem = files.parse_problem(text)
        measured = measure(torch, problem, passes[text], options)
        print_rows(problem, measured)
        rows += measured
        torch.cuda.empty_cache()
    if options.json:
        files.write(options.json, {
            "schema": 2, "machine": torch.cuda.get_device_name(), "emulated": False, "debug": False,
            "build": f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}",
            "command": "peers.py " + " ".join(f'"{a}"' if " " in a else a for a in arguments),
            "repetitions": options.repetitions, "libraries": reached, "rows": rows})  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
