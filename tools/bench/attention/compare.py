"""Forward and backward TFLOP/s beside PyTorch's cudnn and flash backends, in one run.
usage: compare.py LIBRARY OUT.csv [alone] [grid|short|SHAPES...]   a shape is d:causal:n[:batch:heads:kv_heads];
alone: without the peers

FLOPs: 4 b h n n d forward (halved when causal), 2.5 times that backward. Random data. Ours and the peers take
turns, since clocks follow load: each round times every one, warmed up, in the order of the round before reversed,
so that none always follows one that draws little power; the figure is the median of the rounds' medians. At n 16,384
the matrix product of 8192^3 takes its turns too (fwd_matrix, bwd_matrix): the peak at the clocks of that load. The peak
of the first line was taken before all else, on a cool GPU."""
import csv, statistics, sys
import torch, torch.nn.functional as F
from torch.nn.attention import sdpa_kernel, SDPBackend
from triton.testing import do_bench
from kernels import load, machine, Attention

BACKENDS = {'cudnn': SDPBackend.CUDNN_ATTENTION, 'flash': SDPBackend.FLASH_ATTENTION}
def grid():
    for d in (64, 128, 256):
        for causal in (1, 0):
            for n in (512, 1024, 2048, 4096, 8192, 16384): yield d, causal, n, 16384 // n, 2048 // d, 2048 // d
    for d in (64, 128): yield d, 1, 65536, 1, 2048 // d, 2048 // d; yield d, 1, 8192, 2, 2048 // d, 512 // d

def shapes(words):
    if words == ['grid']: return list(grid())
    if words == ['short']: return [x for x in grid() if x[0] < 256 and x[2] in (512, 2048, 16384)]
    out = []
    for w in words:
        x = [int(t) for t in w.split(':')]; d, causal, n = x[:3]
        out.append((d, causal, n, *(x[3:] or (16384 // n, 2048 // d, 2048 // d))))
    return out

def race(runs, rounds=4):
    """TFLOP/s of each of runs (name: (flops, function))."""
    ms, order = {name: [] for name in runs}, list(runs)
    for _ in range(rounds):
        for name in order: ms[name].append(do_bench(runs[name][1], warmup=20, rep=25, return_mode='median'))
        order.reverse()
    return {name: runs[name][0] / statistics.median(x) / 1e9 for name, x in ms.items()}

def main():
    lib = load(sys.argv[1]); rows = []; words = sys.argv[3:]
    peers = {} if 'alone' in words else BACKENDS; words = [w for w in words if w != 'alone']
    a = torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16); b = torch.randn_like(a)
    matrix = 2 * 8192 ** 3, lambda: a @ b
    peak = matrix[0] / do_bench(matrix[1], warmup=50, rep=200, return_mode='median') / 1e9
    print(f'{torch.cuda.get_device_name()}, torch {torch.__version__}, matrix peak {peak:.0f} TFLOP/s', flush=True)
    out = open(sys.argv[2], 'w', buffering=1)   # a row a shape, as they come
    out.write(f'# {machine()}, matrix peak {peak:.0f} TFLOP/s; figures in TFLOP/s\n')
    table = csv.DictWriter(out, 'd causal n batch heads kv_heads fwd cudnn_fwd flash_fwd bwd bwd_any_order cudnn_bwd flash_bwd fwd_matrix bwd_matrix'.split())
    table.writeheader()
    for d, causal, n, batch, heads, kv in shapes(words or ['grid']):
        r = lambda h: torch.randn(batch, n, h, d, device='cuda', dtype=torch.bfloat16)
        q, k, v, g = r(heads), r(kv), r(kv), r(heads); flops = 4 * batch * heads * n * n * d / (2 if causal else 1)
        row = dict(d=d, causal=causal, n=n, batch=batch, heads=heads, kv_heads=kv)
        ours, any_order = (Attention(lib, q, k, v, g, causal=bool(causal), deterministic=x) for x in (True, False))
        ours.forward(); any_order.forward()
        forward, backward = {'fwd': ours.forward}, {'bwd': ours.backward, 'bwd_any_order': any_order.backward}
        for name, backend in peers.items():
            x = [t.transpose(1, 2).detach().requires_grad_() for t in (q, k, v)]; gt = g.transpose(1, 2)
            def peer(x=x, backend=backend):
                with sdpa_kernel(backend): return F.scaled_dot_product_attention(*x, is_causal=bool(causal), enable_gqa=kv != heads)
            try: o = peer()
            except RuntimeError: continue
            forward[name + '_fwd'] = peer
            backward[name + '_bwd'] = lambda o=o, x=x, gt=gt: torch.autograd.grad(o, x, gt, retain_graph=True)
        for runs, factor, name in ((forward, 1, 'fwd_matrix'), (backward, 2.5, 'bwd_matrix')):
            runs = {k: (factor * flops, f) for k, f in runs.items()}
            row |= race(runs | ({name: matrix} if n == 16384 else {}))
        rows.append(row); table.writerow({k: (f'{v:.1f}' if isinstance(v, float) else v) for k, v in row.items()})
        print(f'd {d:3} {"causal" if causal else "full  "} n {n:5} b {batch:2} h {heads}/{kv} | fwd {row["fwd"]:4.0f} cudnn {row.get("cudnn_fwd", 0):4.0f} flash {row.get("flash_fwd", 0):4.0f}'
              f' | bwd {row["bwd"]:4.0f} any {row["bwd_any_order"]:4.0f} cudnn {row.get("cudnn_bwd", 0):4.0f} flash {row.get("flash_bwd", 0):4.0f}'
              + (f' | matrix product {row["fwd_matrix"]:.0f}, {row["bwd_matrix"]:.0f}' if n == 16384 else ''), flush=True)
    def mean(ours, peer):
        x = [r[ours] / r[peer] for r in rows if r.get(ours) and r.get(peer)]
        return f'{statistics.geometric_mean(x):.3f} (least {min(x):.3f}, {len(x)} shapes)' if x else '-'
    for ours, peer in (('fwd', 'cudnn_fwd'), ('fwd', 'flash_fwd'), ('bwd', 'cudnn_bwd'), ('bwd', 'flash_bwd'), ('bwd_any_order', 'cudnn_bwd')):
        print(f'{ours} / {peer}: {mean(ours, peer)}')

if __name__ == '__main__': main()
