"""The roofline argument on the hardware's counters: bytes of device memory and from the L2 cache to the multiprocessors.
usage: roofline.py LIBRARY OUT.csv        (needs ncu)

Each case runs under ncu after one run that warms up: 8,192 queries and keys, 8 heads, bfloat16, no mask; naive for one
sequence (1 GiB of scores), tiled for eight (inputs and outputs are five to ten times the L2 cache).

dram_MB       read and written, beside predicted_MB, which is what `tilefold attention explain` prints
intensity     flops over dram_MB, flops a byte; the naive chain's prediction is d / 2
l2_MB         L2 to the multiprocessors, beside n / tile_q x the bytes of K and V, and Q once (forward, tiled)
products      matrix products of a backward pass; p from memory needs one less
us            the kernels' own time, summed"""
import csv, io, os, subprocess, sys
import torch
from kernels import load, machine, Attention

METRICS = {'dram__bytes_read.sum': 'dram', 'dram__bytes_write.sum': 'dram', 'l1tex__m_xbar2l1tex_read_bytes.sum': 'l2', 'gpu__time_duration.sum': 'ns'}
N, HEADS = 8192, 8

def cases():
    """name, d, batch, query tile, products, arguments, whether backward"""
    for d in (64, 128):
        yield 'naive', d, 1, 64, 2, dict(strategy='naive'), False
        yield 'tiled 64', d, 8, 64, 2, dict(strategy='split', portable=True, parts=1), False
        yield 'tiled 128', d, 8, 128, 2, dict(strategy='tiled', portable=True), False
        yield 'hopper', d, 8, 192 if d == 64 else 128, 2, dict(strategy='tiled'), False
        yield 'naive, p stored', d, 1, 64, 4, dict(strategy='naive', keep=True), True
        yield 'naive, p recomputed', d, 1, 64, 5, dict(strategy='naive'), True
        yield 'tiled, p recomputed', d, 8, 64, 7, dict(strategy='tiled', portable=True), True
        yield 'hopper, p recomputed', d, 8, 128, 5, dict(strategy='tiled'), True

def child(lib):
    """A fill of one element between the cases is what the parent tells them apart by."""
    mark = torch.zeros(1, device='cuda')
    for name, d, batch, _, _, kw, backward in cases():
        x = [torch.randn(batch, N, HEADS, d, device='cuda', dtype=torch.bfloat16) for _ in range(4 if backward else 3)]
        a = Attention(lib, *x, **kw); a.forward()
        call = a.backward if backward else a.forward
        call(); torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart(); mark.fill_(1); call(); torch.cuda.synchronize(); torch.cuda.cudart().cudaProfilerStop()
        cost = (lib.tilefold_flops, lib.tilefold_bytes); c = a.b if backward else a.f
        print('CASE', name, *(f(c) for f in cost), sep='|', flush=True)
        del a, x; torch.cuda.empty_cache()

def measured(library):
    """[{dram, l2 (bytes), ns}] and [(flops, bytes)] by case."""
    command = ['ncu', '--csv', '--page', 'raw', '--print-units', 'base', '--clock-control', 'none', '--cache-control', 'none', '--profile-from-start', 'off',
               '--metrics', ','.join(METRICS), sys.executable, os.path.abspath(__file__), library, '--child']
    text = subprocess.run(command, capture_output=True, text=True); lines = text.stdout.splitlines()
    if text.returncode: sys.exit(f'ncu failed: {text.stdout[-500:]} {text.stderr[-500:]}')
    predicted = [tuple(map(float, l.split('|')[2:])) for l in lines if l.startswith('CASE')]
    table = csv.DictReader(io.StringIO('\n'.join(l for l in lines if l.startswith('"')))); found = []
    for row in table:
        if not row['ID']: continue                      # units
        if 'elementwise' in row['Kernel Name']: found.append(dict(dram=0, l2=0, ns=0)); continue
        for metric, to in METRICS.items(): found[-1][to] += float(row[metric].replace(',', ''))
    return found, predicted

def main():
    if sys.argv[2] == '--child': return child(load(sys.argv[1]))
    found, predicted = measured(sys.argv[1]); rows = []
    for (name, d, batch, tile, products, _, backward), m, (flops, size) in zip(cases(), found, predicted):
        head = N * d * 2; row = dict(case=('backward ' if backward else 'forward ') + name, d=d, batch=batch, products=products, gflop=flops / 1e9,
            predicted_MB=size / 1e6, dram_MB=m['dram'] / 1e6, ratio=m['dram'] / size, intensity=flops / m['dram'], l2_MB=m['l2'] / 1e6)
        if not backward and not name.startswith('naive'):
            row.update(tile_q=tile, l2_predicted_MB=batch * HEADS * (-(-N // tile) * 2 + 1) * head / 1e6)
        rows.append(row | dict(us=m['ns'] / 1e3))
    keys = ['case', 'd', 'batch', 'products', 'gflop', 'predicted_MB', 'dram_MB', 'ratio', 'intensity', 'tile_q', 'l2_predicted_MB', 'l2_MB', 'us']
    rows = [{k: (f'{r[k]:.4g}' if isinstance(r.get(k), float) else r.get(k, '')) for k in keys} for r in rows]
    for r in [dict(zip(keys, keys))] + rows: print(f'{r["case"]:29}' + ''.join(f'{r[k]!s:>{max(len(k), 8) + 1}}' for k in keys[1:]))
    with open(sys.argv[2], 'w') as out:
        out.write(f'# {machine()}; {N} queries and keys, {HEADS} heads, bfloat16, no mask; ncu {", ".join(METRICS)}\n')
        w = csv.DictWriter(out, keys); w.writeheader(); w.writerows(rows)

if __name__ == '__main__': main()
