"""Tilefold's attention kernels on PyTorch tensors, through libtilefold_attention.so."""
import ctypes, datetime, os, subprocess
import torch

class View(ctypes.Structure):
    _fields_ = [('data', ctypes.c_void_p), ('shape', ctypes.c_int64 * 4), ('strides', ctypes.c_int64 * 4)]

class Call(ctypes.Structure):
    _fields_ = [(n, View) for n in ('q', 'k', 'v', 'o', 'd_o', 'dq', 'dk', 'dv')] + \
               [(n, ctypes.c_void_p) for n in ('m', 'l', 'cu_q', 'cu_k', 'probabilities')] + \
               [(n, ctypes.c_int64) for n in ('documents', 'max_q', 'max_k')] + \
               [('workspace', ctypes.c_void_p)] + \
               [(n, ctypes.c_int64) for n in ('workspace_bytes', 'window_left', 'window_right')] + \
               [('scale', ctypes.c_float), ('softcap', ctypes.c_float)] + \
               [(n, ctypes.c_int) for n in ('dtype', 'causal', 'deterministic', 'backward', 'strategy', 'parts', 'portable', 'rows')] + \
               [('stream', ctypes.c_void_p)]

def load(path):
    lib = ctypes.CDLL(path)
    lib.tilefold_last_error.restype = ctypes.c_char_p
    lib.tilefold_workspace.restype = ctypes.c_int64
    for f in (lib.tilefold_flops, lib.tilefold_bytes): f.restype, f.argtypes = ctypes.c_double, [ctypes.POINTER(Call)]
    return lib

def machine():
    """What figures were measured on and with: the head of a results file."""
    def said(*command):
        try: return subprocess.run(command, cwd=os.path.dirname(os.path.abspath(__file__)), capture_output=True, text=True).stdout.split('\n')[0].strip()
        except OSError: return ''
    driver, commit = said('nvidia-smi', '--query-gpu=driver_version', '--format=csv,noheader'), said('git', 'describe', '--always', '--dirty')
    return f'{torch.cuda.get_device_name()}, driver {driver or "unknown"}, torch {torch.__version__}, {datetime.date.today()}, commit {commit or "unknown"}'

def view(t):
    return View(t.data_ptr(), (ctypes.c_int64 * 4)(*t.shape), (ctypes.c_int64 * 4)(*t.stride()))

TYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
STRATEGIES = {'auto': 0, 'naive': 1, 'tiled': 2, 'split': 3, 'decode': 4}

class Attention:
    """One problem; q, k, v, do are [batch, seq, heads, d] with any strides."""
    def __init__(self, lib, q, k, v, do=None, causal=False, window=(-1, -1), scale=0.0, softcap=0.0, cu_q=None,
                 cu_k=None, deterministic=True, strategy='auto', parts=0, portable=False, rows=0, keep=False):
        self.lib, self.keep = lib, [q, k, v, do, cu_q, cu_k]
        nan = lambda t: torch.full_like(t, float('nan'), memory_format=torch.contiguous_format)
        self.o = nan(q); B, S, H, D = q.shape
        self.m = torch.full((B, H, S), float('nan'), device='cuda'); self.l = self.m.clone()
        c = Call(); c.q, c.k, c.v, c.o = map(view, (q, k, v, self.o))
        c.m, c.l = self.m.data_ptr(), self.l.data_ptr()
        c.causal, c.window_left, c.window_right, c.scale, c.softcap = int(causal), *window, scale, softcap
        c.dtype = TYPES[q.dtype]; c.deterministic = int(deterministic)
        c.strategy, c.parts, c.portable, c.rows = STRATEGIES[strategy], parts, int(portable), rows
        if cu_q is not None:
            c.cu_q, c.cu_k, c.documents = cu_q.data_ptr(), cu_k.data_ptr(), len(cu_q) - 1
            c.max_q, c.max_k = int((cu_q[1:] - cu_q[:-1]).max()), int((cu_k[1:] - cu_k[:-1]).max())
        if keep:
            p = torch.empty(B, H, S, k.shape[1], device='cuda', dtype=q.dtype); self.keep.append(p); c.probabilities = p.data_ptr()
        c.stream = torch.cuda.current_stream().cuda_stream
        self.f = c; self.f.backward = 0; self.space(self.f)
        if do is not None:
            self.dq, self.dk, self.dv = nan(q), nan(k), nan(v)
            self.b = Call.from_buffer_copy(c); self.b.backward = 1; self.b.d_o = view(do)
            self.b.dq, self.b.dk, self.b.dv = map(view, (self.dq, self.dk, self.dv)); self.space(self.b)
    def space(self, c):
        n = self.lib.tilefold_workspace(ctypes.byref(c))
        if n < 0: raise RuntimeError(self.lib.tilefold_last_error().decode())
        w = torch.full((max(n, 1),), 255, dtype=torch.uint8, device='cuda'); self.keep.append(w)
        c.workspace, c.workspace_bytes = w.data_ptr(), n
    def call(self, c):
        if self.lib.tilefold_attention(ctypes.byref(c)): raise RuntimeError(self.lib.tilefold_last_error().decode())
    def forward(self): self.call(self.f)
    def backward(self): self.call(self.b)
