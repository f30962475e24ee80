"""Correctness of the CUDA attention kernels against float64 on the GPU, option by option.
usage: check.py LIBRARY [quick | few | repeat | large]
quick: no other widths and lengths; few: for compute-sanitizer; repeat: the same bits 1,000 times beside a busy second
stream; large: tensors of more than 2^31 elements

Rule: error <= 2x the largest error of a plain computation with float32 scores and p, dS and results rounded to
the type, plus 4 eps(float32) times the formula on absolute values and 2 eps(dtype) times the reference."""
import math, sys
import torch
from kernels import load, Attention

torch.backends.cuda.matmul.allow_tf32 = False
NEG = float('-inf')

def visible(sq, sk, causal, window):
    i, j = torch.arange(sq, device='cuda')[:, None], torch.arange(sk, device='cuda')[None, :]
    off = sk - sq; ok = torch.ones(sq, sk, dtype=torch.bool, device='cuda'); left, right = window
    if causal: right = 0
    if left >= 0: ok &= j >= i + off - left
    if right >= 0: ok &= j <= i + off + right
    return ok

def plain(q, k, v, do, ok, scale, cap, real, rnd, absolute=False):
    """[h, s, d] each; absolute: the size that rounding acts on."""
    s = (q.to(real) @ k.to(real).transpose(1, 2)) * scale; slope = 1
    if cap: t = torch.tanh(s / cap); s = cap * t; slope = 1 - t * t
    s = s.masked_fill(~ok, NEG); m = s.amax(2, keepdim=True) if s.shape[2] else torch.full_like(s[:, :, :0].sum(2, keepdim=True), NEG)
    e = torch.exp(s - m.masked_fill(m == NEG, 0)).masked_fill(~ok, 0); l = e.sum(2, keepdim=True)
    p = torch.where(l > 0, e / l, 0.0)
    if absolute: q, k, v, do = (x.abs() for x in (q, k, v, do))
    q, k, v, do = (x.to(real) for x in (q, k, v, do))
    o = rnd(p) @ v; D = (do * rnd(o)).sum(2, keepdim=True); dp = do @ v.transpose(1, 2)
    ds = rnd(p * (dp + D if absolute else dp - D) * (1 if absolute else slope))
    return o, m[..., 0], l[..., 0], (ds @ k) * scale, (ds.transpose(1, 2) @ q) * scale, rnd(p).transpose(1, 2) @ do

def reference(q, k, v, do, causal, window, scale, cap, cu_q, cu_k, kind):
    B, S, H, D = q.shape; G = k.shape[2]; dt = q.dtype
    real = torch.float32 if kind == 'low' else torch.float64
    rnd = (lambda x: x.to(dt).to(real)) if kind == 'low' else (lambda x: x)
    zero = lambda t: torch.zeros(t.shape, dtype=torch.float64, device='cuda')
    o, dq, dk, dv = zero(q), zero(q), zero(k), zero(v)
    m = torch.full((B, H, S), NEG, dtype=torch.float64, device='cuda'); l = torch.zeros_like(m)
    scale = scale or 1 / math.sqrt(D)
    cq = [0, S] if cu_q is None else cu_q.tolist(); ck = [0, k.shape[1]] if cu_k is None else cu_k.tolist()
    for b in range(B):
        for x in range(len(cq) - 1):
            i, j = slice(cq[x], cq[x + 1]), slice(ck[x], ck[x + 1])
            if cq[x] == cq[x + 1]: continue
            ok = visible(cq[x + 1] - cq[x], ck[x + 1] - ck[x], causal, window)
            for g in range(G):
                hs = slice(g * (H // G), (g + 1) * (H // G)); n = H // G
                kk, vv = (t[b, j, g][None].expand(n, -1, -1) for t in (k, v))
                r = plain(q[b, i, hs].transpose(0, 1), kk, vv, do[b, i, hs].transpose(0, 1), ok, scale, cap, real, rnd, kind == 'size')
                o[b, i, hs] = r[0].transpose(0, 1).double(); m[b, hs, i] = r[1].double(); l[b, hs, i] = r[2].double()
                dq[b, i, hs] = r[3].transpose(0, 1).double(); dk[b, j, g] = r[4].sum(0).double(); dv[b, j, g] = r[5].sum(0).double()
    if kind == 'low': o, dq, dk, dv = (t.to(dt).double() for t in (o, dq, dk, dv))
    return dict(o=o, dq=dq, dk=dk, dv=dv, m=m, l=l)

def compare(a, args, backward):
    want, low, size = (reference(*args, kind) for kind in ('exact', 'low', 'size'))
    eps = 2 ** -8 if a.o.dtype == torch.bfloat16 else 2 ** -11; bad, worst = [], 0
    for name in ('o', 'dq', 'dk', 'dv') if backward else ('o',):
        w, g = want[name], getattr(a, name).double()
        e = (g - w).abs(); allowed = 2 * (low[name] - w).abs().max() + 4 * 2 ** -24 * size[name] + 2 * eps * w.abs()
        if not bool((e <= allowed).all()):
            nan = int(torch.isnan(g).sum()); bad.append(f'{name}: error {e.nan_to_num(9e9).max():.3g}, plain {(low[name]-w).abs().max():.3g}, nan {nan}/{g.numel()}')
        else: worst = max(worst, float(e.max() / (low[name] - w).abs().max().clamp(min=1e-30)))
    lse, lse_w = a.m.double() + a.l.double().log(), want['m'] + want['l'].log()
    if not bool((torch.isneginf(a.m) == torch.isneginf(want['m'])).all()): bad.append('m: -inf at other places')
    live = ~torch.isneginf(want['m'])
    for name, g, w in (('m', a.m.double(), want['m']), ('lse', lse, lse_w)):
        e = (g - w)[live].abs(); t = 1e-5 + 1e-6 * w[live].abs()
        if not bool((e <= t).all()): bad.append(f'{name}: error {e.nan_to_num(9e9).max():.3g}')
    if not bool((a.l[~live] == 0).all()): bad.append('l of empty rows')
    return bad, worst

def make(B, Sq, Sk, H, G, D, dtype=torch.bfloat16, factor=1.0, cu=None, causal=False, window=(-1, -1), scale=0.0, softcap=0.0, layout='dense',
         seed=0, backward=True):
    torch.manual_seed(seed)
    def rand(b, s, h):
        if layout == 'dense': return (torch.randn(b, s, h, D, device='cuda') * factor).to(dtype)
        if layout == 'heads first': return (torch.randn(b, h, s, D, device='cuda') * factor).to(dtype).transpose(1, 2)
        big = torch.full((b, s + 16, h + 1, D + 8), float('nan'), device='cuda', dtype=dtype)   # NaN all around
        t = big[:, 8:s + 8, :h, :D]; t.copy_(torch.randn(b, s, h, D, device='cuda') * factor); return t
    q, k, v, do = rand(B, Sq, H), rand(B, Sk, G), rand(B, Sk, G), rand(B, Sq, H)
    do.div_(factor)
    cu_q = cu_k = None
    if cu is not None:
        cu_q, cu_k = (torch.tensor(c, dtype=torch.int32, device='cuda') for c in cu)
        for t, c in ((q, cu[0]), (do, cu[0]), (k, cu[1]), (v, cu[1])): t[:, c[-1]:] = float('nan')
    return dict(q=q, k=k, v=v, do=do, causal=causal, window=window, scale=scale, softcap=softcap, cu_q=cu_q, cu_k=cu_k), backward

def cases(quick):
    both = (torch.bfloat16, torch.float16)
    for D in (64, 128, 256):
        yield f'small d{D}', make(1, 128, 128, 1, 1, D)
        yield f'one block of four d{D}', make(1, 512, 512, 2, 2, D)
        yield f'causal d{D}', make(2, 512, 512, 2, 2, D, causal=True)
        yield f'tails d{D}', make(2, 333, 457, 3, 3, D)
        yield f'causal cross d{D}', make(1, 300, 700, 2, 1, D, causal=True)
        yield f'empty rows d{D}', make(1, 700, 300, 2, 2, D, causal=True)
        yield f'grouped d{D}', make(2, 384, 384, 8, 2, D, causal=True)
        yield f'window d{D}', make(1, 1000, 1000, 2, 2, D, window=(100, 30))
        yield f'window causal d{D}', make(1, 1000, 900, 2, 2, D, causal=True, window=(64, -1))
        yield f'softcap d{D}', make(1, 400, 400, 2, 2, D, causal=True, softcap=5.0)
        yield f'f16 d{D}', make(1, 500, 500, 2, 2, D, dtype=torch.float16, causal=True)
        yield f'nan around d{D}', make(2, 200, 200, 2, 2, D, layout='nan', causal=True)
        yield f'heads first d{D}', make(2, 300, 300, 4, 2, D, layout='heads first')
        yield f'documents d{D}', make(1, 800, 900, 4, 2, D, causal=True, cu=([0, 100, 100, 333, 640, 777], [0, 90, 200, 433, 740, 877]))
        yield f'documents full d{D}', make(1, 800, 800, 2, 2, D, cu=([0, 1, 130, 257, 800], [0, 1, 130, 257, 800]))
        yield f'large scores d{D}', make(1, 256, 256, 1, 1, D, factor=60.0)
        yield f'large scores causal cap d{D}', make(1, 256, 256, 1, 1, D, factor=30.0, softcap=900.0, causal=True)
        yield f'longer causal d{D}', make(1, 2000, 2000, 2, 2, D, causal=True)
        yield f'scale d{D}', make(1, 200, 200, 2, 2, D, scale=0.37)
    if quick: return
    for D in (8, 40, 80, 96): yield f'width {D}', make(2, 200, 300, 2, 1, D, causal=True)
    for D in (136, 192):
        yield f'width {D}', make(2, 500, 600, 2, 1, D, causal=True)
        yield f'width {D} full', make(1, 300, 333, 2, 2, D)
        yield f'width {D} f16 window', make(1, 700, 700, 2, 2, D, dtype=torch.float16, window=(50, 60))
        yield f'width {D} documents', make(1, 800, 900, 4, 2, D, causal=True, cu=([0, 100, 100, 333, 640, 777], [0, 90, 200, 433, 740, 877]))
    for n in (1, 2, 15, 17, 63, 65, 127, 129, 191, 193, 255, 257): 
        for D in (64, 128, 256): yield f'length {n} d{D}', make(1, n, n, 2, 2, D, causal=True)
    yield 'keys 1', make(1, 239, 1, 2, 2, 64)
    yield 'keys 5000', make(1, 1, 5000, 8, 1, 128, causal=True)
    yield 'many heads', make(600, 4, 4, 120, 120, 64)

def few():
    for D in (64, 128, 256):
        yield f'documents d{D}', make(1, 400, 450, 4, 2, D, causal=True, cu=([0, 100, 100, 333, 390], [0, 90, 200, 333, 440]))
        yield f'window d{D}', make(1, 300, 290, 2, 1, D, window=(40, 30))

def any_order(a):
    """The same gradients in any order: dK and dV to the bit, dQ but for the order of its sum."""
    dq, dk, dv = (t.clone() for t in (a.dq, a.dk, a.dv))
    for t in (a.dq, a.dk, a.dv): t.fill_(float('nan'))
    a.b.deterministic = 0; a.backward(); torch.cuda.synchronize()
    bad = [n for n, x, y in (('dk', a.dk, dk), ('dv', a.dv, dv)) if not torch.equal(x.view(torch.int16), y.view(torch.int16))]
    eps = 2 ** -8 if dq.dtype == torch.bfloat16 else 2 ** -11
    ok = (a.dq.double() - dq.double()).abs().max() <= 2 * eps * dq.double().abs().max() if dq.numel() else True
    return [f'{n}: other bits in any order' for n in bad] + ([] if bool(ok) else ['dq: other in any order'])

def repeat(lib, times=1000):
    """The same bits again and again while a second stream keeps the processors and the memory busy."""
    side = torch.cuda.Stream(); big = torch.randn(2048, 2048, device='cuda', dtype=torch.bfloat16); worst = 0
    for D in (64, 128, 256):
        x, _ = make(2, 900, 900, 4, 2, D, causal=True)
        a = Attention(lib, x['q'], x['k'], x['v'], x['do'], True)
        names = ('o', 'm', 'l', 'dq', 'dk', 'dv'); first = None; other = torch.zeros((), dtype=torch.int64, device='cuda')
        for i in range(times):
            with torch.cuda.stream(side):
                if i % 2 == 0: big @ big
                else: big.clone()
            for n in names: getattr(a, n).fill_(float('nan'))
            a.forward(); a.backward()
            if first is None: first = [getattr(a, n).clone() for n in names]
            for n, t in zip(names, first):
                kind = torch.int16 if t.dtype != torch.float32 else torch.int32
                other += (getattr(a, n).view(kind) != t.view(kind)).sum()
        torch.cuda.synchronize(); worst += int(other)
        print(f'd {D}: {times} repeats of forward and backward, {int(other)} elements with other bits', flush=True)
    return worst != 0

def large(lib):
    """The end of tensors above 2^31 elements; a window keeps what its rows and keys depend on near."""
    failed = False
    for D, H in ((64, 4), (128, 2), (256, 1)):
        n = 2 ** 23 + 8192; x, _ = make(1, n, n, H, H, D, causal=True, window=(100, 0))
        a = Attention(lib, x['q'], x['k'], x['v'], x['do'], True, (100, 0)); a.forward(); a.backward(); torch.cuda.synchronize()
        cut = {t: x[t][:, n - 1024:].clone() for t in ('q', 'k', 'v', 'do')}
        want = {k: reference(cut['q'], cut['k'], cut['v'], cut['do'], True, (100, 0), 0, 0, None, None, k) for k in ('exact', 'low')}
        for name in ('o', 'dq', 'dk', 'dv'):
            g, w, low = getattr(a, name)[:, n - 512:].double(), want['exact'][name][:, 512:], want['low'][name][:, 512:]
            e, allowed = float((g - w).abs().max()), 2 * float((low - w).abs().max()) + 2 ** -7 * float(w.abs().max())
            nan = sum(int(t.isnan().sum()) for t in getattr(a, name).view(-1).split(2 ** 28)); failed |= not e <= allowed or nan > 0
            print(f'd {D}: {g.shape[2] * n * D / 2 ** 31:.3f} x 2^31 elements, {name}: error {e:.3g}, allowed {allowed:.3g}, nan {nan}', flush=True)
        del x, a
    return failed

def main():
    lib = load(sys.argv[1]); quick = 'quick' in sys.argv[2:]; good = total = 0
    if 'repeat' in sys.argv[2:]: return repeat(lib)
    if 'large' in sys.argv[2:]: return large(lib)
    for name, (x, backward) in few() if 'few' in sys.argv[2:] else cases(quick):
        total += 1
        try:
            a = Attention(lib, x['q'], x['k'], x['v'], x['do'] if backward else None, x['causal'], x['window'], x['scale'], x['softcap'], x['cu_q'], x['cu_k'])
            a.forward(); torch.cuda.synchronize()
            if backward: a.backward(); torch.cuda.synchronize()
            q, k, v, do = (x[t].nan_to_num(0) for t in ('q', 'k', 'v', 'do'))
            if name == 'many heads': ok = all(bool(torch.isfinite(getattr(a, t)).all()) for t in ('o', 'dq', 'dk', 'dv')); bad, worst = ([] if ok else ['not finite']), 0
            else: bad, worst = compare(a, (q, k, v, do, x['causal'], x['window'], x['scale'], x['softcap'], x['cu_q'], x['cu_k']), backward)
            if backward: bad += any_order(a)
        except RuntimeError as e:
            bad, worst = [str(e).replace('\n', ' ')[:200]], 0
            if 'CUDA' in bad[0] and 'error' in bad[0]: print(name, '|', bad[0], flush=True); break
        good += not bad
        print(f'{name} | {"; ".join(bad)}' if bad else f'{name} ok {worst:.2f}', flush=True)
    print(f'{good} of {total} hold'); return good != total

if __name__ == '__main__': sys.exit(main())
