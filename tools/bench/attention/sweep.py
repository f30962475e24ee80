"""What the CUDA table is chosen from: strategies beside each other and beside PyTorch, in one run.
usage: sweep.py LIBRARY OUT.csv [short] [few] [split] [backward] [cross] [decode] [portable]

short     naive, tiled and split over n, batch and heads that fill the GPU: forward and backward, microseconds
few       batch 1, 4 heads, n 256 to 4096: the table's pick beside tiled, cudnn and flash
split     batch 1, 4 heads, n 256 to 4096: the keys in forced parts, of the portable kernel 1 to 32 and of a cluster of blocks 1 to 16
          (query tiles of 64 and 128 rows), beside tiled, the table's pick, cudnn and flash
backward  the same problems: what a block goes over in 1 to 32 parts, beside the Hopper rows
cross     few queries of 4 heads over many keys: tiled, the table's pick, and the best of cudnn and flash
decode    one query: GB/s by number of parts, beside PyTorch's flash, in three turns; grouped heads 8:1
portable  the portable tiled kernels beside the Hopper ones and flash, TFLOP/s
Medians of many calls replayed as a graph, after warm-up; random data."""
import csv, sys
import torch, torch.nn.functional as F
from torch.nn.attention import sdpa_kernel, SDPBackend
from triton.testing import do_bench, do_bench_cudagraph
from kernels import load, machine, Attention

ROWS = []
def report(**row):
    ROWS.append(row); print(' '.join(f'{k} {v:.4g}' if isinstance(v, float) else f'{k} {v}' for k, v in row.items()), flush=True)

def time(f, rep=10):
    """Milliseconds of one call in a replayed graph: no launch gaps."""
    s = torch.cuda.Stream()
    with torch.cuda.stream(s): return do_bench_cudagraph(f, rep=rep, return_mode='median')

def ours(lib, x, **kw):
    """An Attention whose calls go to the stream that is current when they are made."""
    a = Attention(lib, *x, **kw)
    def on(c, call):
        def run(): c.stream = torch.cuda.current_stream().cuda_stream; call(c)
        return run
    a.fwd = on(a.f, a.call)
    if hasattr(a, 'b'): a.bwd = on(a.b, a.call)
    return a

def rand(b, n, h, d, dtype=torch.bfloat16): return torch.randn(b, n, h, d, device='cuda', dtype=dtype)

PEERS = {'cudnn': SDPBackend.CUDNN_ATTENTION, 'flash': SDPBackend.FLASH_ATTENTION}
def peers(q, k, v, causal, gqa=False):
    """PyTorch's backends by name, ms; inf where one refuses."""
    found = {}; x = [t.transpose(1, 2) for t in (q, k, v)]
    for b in PEERS:
        try:
            with sdpa_kernel(PEERS[b]): found[b] = time(lambda: F.scaled_dot_product_attention(*x, is_causal=causal, enable_gqa=gqa))
        except RuntimeError: found[b] = float('inf')
    return found
def peer(q, k, v, causal): return min(peers(q, k, v, causal).values())

def short(lib):
    for n in (16, 32, 64, 128, 256, 512, 1024):
        b = max(1, 8192 // n); q, k, v, g = (rand(b, n, 16, 64) for _ in range(4)); row = {}
        for s in ('naive', 'tiled', 'auto'):
            a = ours(lib, (q, k, v, g), causal=True, strategy=s); row[s + '_us'] = 1e3 * time(a.fwd); row[s + '_backward_us'] = 1e3 * time(a.bwd)
        report(sweep='short', n=n, batch=b, **row, peer_us=1e3 * peer(q, k, v, True))

def few(lib):
    for d in (64, 128):
        for n in (256, 512, 1024, 2048, 4096):
            for causal in (False, True):
                x = [rand(1, n, 4, d) for _ in range(3)]
                row = {s + '_us': 1e3 * time(ours(lib, x, causal=causal, strategy=s).fwd) for s in ('auto', 'tiled')}
                row.update({b + '_us': 1e3 * t for b, t in peers(*x, causal).items()})
                report(sweep='few', d=d, n=n, causal=int(causal), **row, of_peer=min(row['cudnn_us'], row['flash_us']) / row['auto_us'])

def parts_of(lib, row, x, causal, n):
    """Forward with the keys in forced parts: over a cluster's blocks, query tiles of 64 and 128 rows, and the portable kernel's."""
    for rows in (64, 128):
        for parts in (1, 2, 4, 8, 16):
            if parts * 128 <= n: row[f'cluster{rows}x{parts}_us'] = 1e3 * time(ours(lib, x, causal=causal, strategy='split', rows=rows, parts=parts).fwd)
    for parts in (1, 2, 4, 8, 16, 32):
        if parts * 64 <= n: row[f'split{parts}_us'] = 1e3 * time(ours(lib, x, causal=causal, strategy='split', portable=True, parts=parts).fwd)

def split(lib):
    for d in (64, 128):
        for n in (256, 512, 1024, 2048, 4096):
            for causal in (False, True):
                x = [rand(1, n, 4, d) for _ in range(3)]; row = {}
                for s in ('tiled', 'auto'): row[s + '_us'] = 1e3 * time(ours(lib, x, causal=causal, strategy=s).fwd)
                row.update({b + '_us': 1e3 * t for b, t in peers(*x, causal).items()})
                parts_of(lib, row, x, causal, n)
                report(sweep='split', d=d, n=n, causal=int(causal), **row)

def backward(lib):
    """What a block goes over in forced parts: the portable kernels, float32 sums added after; beside the whole and the Hopper rows."""
    for d in (64, 128):
        for n in (256, 512, 1024, 2048, 4096):
            for causal in (False, True):
                x = [rand(1, n, 4, d) for _ in range(4)]; row = {}
                def bwd(**kw): a = ours(lib, x, causal=causal, **kw); a.fwd(); return 1e3 * time(a.bwd)
                for name, kw in (('tiled', dict(strategy='tiled')), ('auto', {}), ('portable', dict(strategy='tiled', portable=True))): row[name + '_us'] = bwd(**kw)
                for parts in (2, 4, 8, 16, 32):
                    if parts * 64 <= n: row[f'split{parts}_us'] = bwd(strategy='split', portable=True, parts=parts)
                report(sweep='backward', d=d, n=n, causal=int(causal), **row)

def cross(lib):
    for d, seq_q, n in ((64, 64, 4096), (128, 64, 4096), (128, 256, 2048), (128, 128, 32768)):
        q, k, v = rand(1, seq_q, 4, d), rand(1, n, 4, d), rand(1, n, 4, d); row = {}
        for s in ('tiled', 'auto'): row[s + '_us'] = 1e3 * time(ours(lib, (q, k, v), strategy=s).fwd)
        report(sweep='cross', d=d, seq_q=seq_q, n=n, **row, peer_us=1e3 * peer(q, k, v, False))

def decode(lib):
    for d, n, heads, kv in ((128, 1 << 20, 8, 8), (128, 1 << 20, 64, 8), (128, 32768, 8, 8), (64, 32768, 12, 12), (64, 1024, 12, 12), (256, 1 << 18, 8, 8)):
        q, k, v = rand(1, 1, heads, d), rand(1, n, kv, d), rand(1, n, kv, d); size = 4 * n * kv * d; row = {}
        rep = 60 if n > 100000 else 10; runs = {'auto': ours(lib, (q, k, v)).fwd}; kv_first = [t.transpose(1, 2) for t in (q, k, v)]
        for parts in (16, 24, 33, 49, 66, 132): runs[f'parts{parts}'] = ours(lib, (q, k, v), strategy='decode', parts=parts).fwd
        def flash():
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION): F.scaled_dot_product_attention(*kv_first, enable_gqa=heads != kv)
        runs['flash'] = flash; found = {name: [] for name in runs}
        for turn in range(3):   # the first one of a turn is not always the first one of all
            for name, run in runs.items(): found[name].append(size / time(run, rep) / 1e6)
        report(sweep='decode', d=d, n=n, heads=f'{heads}/{kv}', **{name: sorted(x)[1] for name, x in found.items()})

def portable(lib):
    for d in (64, 128, 256):
        for n in (1024, 8192):
            b, h = 16384 // n, 2048 // d; q, k, v, g = (rand(b, n, h, d) for _ in range(4)); flops = 2 * b * h * n * n * d; row = {}
            for name, kw in (('hopper', {}), ('portable', dict(portable=True))):
                a = ours(lib, (q, k, v, g), causal=True, strategy='tiled', **kw)
                row[name + '_fwd'] = flops / time(a.fwd) / 1e9; row[name + '_bwd'] = 2.5 * flops / time(a.bwd) / 1e9
            report(sweep='portable', d=d, n=n, **row, flash_fwd=flops / peers(q, k, v, True)['flash'] / 1e9)
    q, k, v, g = (rand(2, 2048, 16, 64, torch.float32) for _ in range(4)); flops = 2 * 2 * 16 * 2048 ** 2 * 64
    a = ours(lib, (q, k, v, g), causal=True); report(sweep='float32', d=64, n=2048, fwd=flops / time(a.fwd) / 1e9, bwd=2.5 * flops / time(a.bwd) / 1e9)

def main():
    lib = load(sys.argv[1]); words = sys.argv[3:] or ['short', 'few', 'split', 'backward', 'cross', 'decode', 'portable']
    print(torch.cuda.get_device_name(), 'torch', torch.__version__, flush=True)
    for w in words:
        try: {'short': short, 'few': few, 'split': split, 'backward': backward, 'cross': cross, 'decode': decode, 'portable': portable}[w](lib)
        except RuntimeError as e: print(w, 'failed:', str(e)[:300], flush=True)
    keys = list(dict.fromkeys(k for r in ROWS for k in r))
    with open(sys.argv[2], 'w') as out:
        out.write(f'# {machine()}; microseconds (_us), GB/s (decode), TFLOP/s (portable, float32)\n')
        w = csv.DictWriter(out, keys); w.writeheader(); w.writerows([{k: (f'{v:.4g}' if isinstance(v, float) else v) for k, v in r.items()} for r in ROWS])

if __name__ == '__main__': main()
