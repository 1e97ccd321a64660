// Stencils written by hand, which benchmarks/gpu.py times beside the generated kernels. Periodic grids of n cells per
// axis; `real` is float or double. `heat_two_steps` needs TZ, TY (threads of a block) and CHUNK (planes that a block
// marches through).

typedef long long index;

extern "C" __global__ void heat(const real* u, real* out, int n, real c) {
    int k = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    int i = blockIdx.z * blockDim.z + threadIdx.z;
    if (i >= n || j >= n || k >= n) return;
    index plane = (index)n * n, p = i * plane + (index)j * n + k;
    real around = u[i ? p - plane : p + (n - 1) * plane] + u[i < n - 1 ? p + plane : p - (n - 1) * plane]
                + u[j ? p - n : p + plane - n] + u[j < n - 1 ? p + n : p - plane + n]
                + u[k ? p - 1 : p + n - 1] + u[k < n - 1 ? p + 1 : p - n + 1];
    out[p] = u[p] + c * (around - 6 * u[p]);
}

__device__ real laplacian(const real* u, int n, int j, int k, index p) {
    return u[j ? p - n : p + (index)(n - 1) * n] + u[j < n - 1 ? p + n : p - (index)(n - 1) * n]
         + u[k ? p - 1 : p + n - 1] + u[k < n - 1 ? p + 1 : p - n + 1] - 4 * u[p];
}

extern "C" __global__ void gray_scott(const real* u, const real* v, real* out_u, real* out_v, int n,
                                      real a, real b, real F, real d) {
    int k = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    if (j >= n || k >= n) return;
    index p = (index)j * n + k;
    real x = u[p], y = v[p], r = x * y * y;
    out_u[p] = x + a * laplacian(u, n, j, k, p) - r + F * (1 - x);
    out_v[p] = y + b * laplacian(v, n, j, k, p) + r - d * y;
}

#ifdef CHUNK
__device__ int wrapped(int i, int n) { return i < 0 ? i + n : i >= n ? i - n : i; }

// Two steps in one pass through memory. A block marches along i. Each thread keeps three planes of u, and two of v, the
// values after one step, at its (j, k) in registers; the neighbours in a plane come from shared memory. Blocks overlap
// by two cells on each side.
extern "C" __global__ void __launch_bounds__(TZ * TY)
heat_two_steps(const real* __restrict__ u, real* __restrict__ out, int n, real c) {
    __shared__ real shared_u[2][TY][TZ], shared_v[2][TY][TZ];
    int x = threadIdx.x, y = threadIdx.y;
    int k = blockIdx.x * (TZ - 4) + x - 2, j = blockIdx.y * (TY - 4) + y - 2, first = blockIdx.z * CHUNK;
    index plane = (index)n * n, at = (index)wrapped(j, n) * n + wrapped(k, n);
    bool has_v = x >= 1 && x < TZ - 1 && y >= 1 && y < TY - 1;
    bool stores = x >= 2 && x < TZ - 2 && y >= 2 && y < TY - 2 && j < n && k < n;
    real below = u[wrapped(first - 2, n) * plane + at], here = u[wrapped(first - 1, n) * plane + at];
    real above = u[first * plane + at], v_below = 0, v_here = 0;
    for (int i = first - 1, b = 0; i <= first + CHUNK; ++i, b ^= 1) {  // here: u in plane i; v_here: v in plane i - 1
        real next = u[wrapped(i + 2, n) * plane + at];
        shared_u[b][y][x] = here;
        shared_v[b][y][x] = v_here;
        __syncthreads();
        real v_above = 0;
        if (has_v) {
            real around = below + above + shared_u[b][y - 1][x] + shared_u[b][y + 1][x]
                        + shared_u[b][y][x - 1] + shared_u[b][y][x + 1];
            v_above = here + c * (around - 6 * here);
        }
        if (stores && i > first) {
            real around = v_below + v_above + shared_v[b][y - 1][x] + shared_v[b][y + 1][x]
                        + shared_v[b][y][x - 1] + shared_v[b][y][x + 1];
            out[(i - 1) * plane + at] = v_here + c * (around - 6 * v_here);
        }
        v_below = v_here, v_here = v_above, below = here, here = above, above = next;
    }
}
#endif
