// What all kernels share: numbers of either type behind one handle, reductions, random numbers.
//
// A tensor of numbers is stored as f32 or as bf16. Kernels take a View and compute in f32; the branch on the type is the same for all
// threads. The four-wide loads need an index and a length that are multiples of four.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef unsigned long long u64;

struct View {
    void* p;
    u64 bf16;
};

__device__ __forceinline__ float widen(u16 x) { return __uint_as_float((u32)x << 16); }

__device__ __forceinline__ u32 narrow_pair(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ u16 narrow(float x) { return (u16)narrow_pair(x, 0.0f); }

__device__ __forceinline__ float get(View v, size_t i) {
    return v.bf16 ? widen(((const u16*)v.p)[i]) : ((const float*)v.p)[i];
}

__device__ __forceinline__ void put(View v, size_t i, float x) {
    if (v.bf16) ((u16*)v.p)[i] = narrow(x);
    else ((float*)v.p)[i] = x;
}

__device__ __forceinline__ void put_or_add(View v, size_t i, float x, int add) { put(v, i, add ? get(v, i) + x : x); }

__device__ __forceinline__ float4 get4(View v, size_t i) {
    if (v.bf16) {
        uint2 w = *(const uint2*)((const u16*)v.p + i);
        return make_float4(__uint_as_float(w.x << 16), __uint_as_float(w.x & 0xffff0000u), __uint_as_float(w.y << 16),
                           __uint_as_float(w.y & 0xffff0000u));
    }
    return *(const float4*)((const float*)v.p + i);
}

__device__ __forceinline__ void put4(View v, size_t i, float4 x) {
    if (v.bf16) *(uint2*)((u16*)v.p + i) = make_uint2(narrow_pair(x.x, x.y), narrow_pair(x.z, x.w));
    else *(float4*)((float*)v.p + i) = x;
}

__device__ __forceinline__ void put4_or_add(View v, size_t i, float4 x, int add) {
    if (add) {
        float4 o = get4(v, i);
        x.x += o.x; x.y += o.y; x.z += o.z; x.w += o.w;
    }
    put4(v, i, x);
}

// Tensors have fewer than 2^31 elements: 32-bit indices, whose divisions are several times cheaper.
#define EACH(i, n) for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += gridDim.x * blockDim.x)

// A warp per row.
#define WARP_ROWS(row, rows) \
    for (u32 row = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); row < (rows); row += gridDim.x * (blockDim.x >> 5))

// The statements for each of the four elements `e`, with part<e>(v) for that of a float4.
#define FOUR(...) { { constexpr int e = 0; __VA_ARGS__ } { constexpr int e = 1; __VA_ARGS__ } { constexpr int e = 2; __VA_ARGS__ } { constexpr int e = 3; __VA_ARGS__ } }

template <int E> __device__ __forceinline__ float& part(float4& v) {
    if (E == 0) return v.x;
    if (E == 1) return v.y;
    if (E == 2) return v.z;
    return v.w;
}

__device__ __forceinline__ float warp_sum(float x) {
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
    return x;
}

__device__ __forceinline__ double warp_sum(double x) {
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
    return x;
}

// The larger; NaN wins, so that it is not lost.
__device__ __forceinline__ float larger(float a, float b) { return (a > b || a != a) ? a : b; }

__device__ __forceinline__ float warp_max(float x) {
    for (int o = 16; o; o >>= 1) x = larger(x, __shfl_xor_sync(~0u, x, o));
    return x;
}

// The sum over the block, in every thread. Blocks are whole warps.
template <typename T> __device__ T block_sum(T x) {
    __shared__ T parts[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0) parts[warp] = x;
    __syncthreads();
    return warp_sum(lane < warps ? parts[lane] : (T)0);
}

__device__ float block_max(float x) {
    __shared__ float parts[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    x = warp_max(x);
    __syncthreads();
    if (lane == 0) parts[warp] = x;
    __syncthreads();
    return warp_max(lane < warps ? parts[lane] : -__int_as_float(0x7f800000));
}

// ---- chains: kernels that start before the one before them has ended; see decode.cu ----

__device__ __forceinline__ void await_earlier() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may start once every block has said so.
__device__ __forceinline__ void admit_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- random numbers: Philox4x32-10, the same as on the CPU ----

// [key, key, step, step of the step's draws]; the draw's number comes with the launch.
struct Draw {
    u32 key0, key1, site, step0, step1;
};

__device__ __forceinline__ Draw draw_of(const u32* state, u32 site) {
    Draw d = {state[0], state[1], site, state[2], state[3]};
    return d;
}

// Numbers 4 * block .. 4 * block + 3 of the draw.
__device__ __forceinline__ uint4 philox(Draw d, u32 block) {
    u32 x0 = block, x1 = d.site, x2 = d.step0, x3 = d.step1, k0 = d.key0, k1 = d.key1;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u32 a_high = __umulhi(x0, 0xD2511F53u), a_low = x0 * 0xD2511F53u;
        u32 b_high = __umulhi(x2, 0xCD9E8D57u), b_low = x2 * 0xCD9E8D57u;
        x0 = b_high ^ x1 ^ k0;
        x1 = b_low;
        x2 = a_high ^ x3 ^ k1;
        x3 = a_low;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(x0, x1, x2, x3);
}

// The larger, the first of equals.
__device__ __forceinline__ void take_larger(float& best, u32& index, float v, u32 k) {
    if (v > best || (v == best && k < index)) {
        best = v;
        index = k;
    }
}

// The same over a warp.
__device__ __forceinline__ void take_largest(float& best, u32& index) {
#pragma unroll
    for (int o = 16; o; o >>= 1) take_larger(best, index, __shfl_xor_sync(~0u, best, o), __shfl_xor_sync(~0u, index, o));
}

__device__ __forceinline__ u32 random_bits(Draw d, u32 index) {
    uint4 q = philox(d, index / 4);
    u32 r = index % 4;
    return r == 0 ? q.x : r == 1 ? q.y : r == 2 ? q.z : q.w;
}

__device__ __forceinline__ float unit(u32 bits) { return (float)(bits >> 8) * (1.0f / 16777216.0f); }

__device__ __forceinline__ float open_unit(u32 bits) { return ((float)(bits >> 9) + 0.5f) * (1.0f / 8388608.0f); }

// ---- faults: what a kernel finds wrong is written down once and reported when the host next reads ----

// [code, op, value, position, limit]
__device__ void report(int* fault, int code, int op, int value, int position, int limit) {
    if (atomicCAS(fault, 0, code) == 0) {
        fault[1] = op;
        fault[2] = value;
        fault[3] = position;
        fault[4] = limit;
    }
}

#define INDEX_OUT_OF_RANGE 1
#define NOT_FINITE 2

// ---- activations ----

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }
__device__ __forceinline__ float gelu_slope(float x) {
    return 0.5f * (1.0f + erff(x * 0.70710678f)) + x * 0.39894228f * __expf(-0.5f * x * x);
}
__device__ __forceinline__ float swished(float u, int swish) { return swish ? u * sigmoid(u) : u; }

// The gradient before swish from that after it, at u.
__device__ __forceinline__ float before_swish(float dy, float u, int swish) {
    if (!swish) return dy;
    float p = sigmoid(u);
    return dy * p * (1.0f + u * (1.0f - p));
}

// ---- attention: which queries see which keys, with blocks of 0 (all see all), 1 (causal) or more positions ----

// Keys that a query sees.
__device__ __forceinline__ u32 reach(u32 query, u32 time, u32 block) { return block ? min((query / block + 1) * block, time) : time; }

// The first query that sees a key.
__device__ __forceinline__ u32 first_query(u32 key, u32 block) { return block ? key / block * block : 0; }

// ---- loads past the L1 cache, tensor cores ----

// Loads of what other kernels may have just written, or what is read once: past the L1 cache.
__device__ __forceinline__ uint4 load_words(const void* p) {
    uint4 w;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w) : "l"(p) : "memory");
    return w;
}

__device__ __forceinline__ u32 load_word(const void* p) {
    u32 w;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(w) : "l"(p) : "memory");
    return w;
}

// Starts to copy 16 bytes into shared memory.
__device__ __forceinline__ void fetch(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void fetch(void* to, const void* from) { fetch((u32)__cvta_generic_to_shared(to), from); }

// The same, or zeros.
__device__ __forceinline__ void fetch_or_zero(void* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// The same for 4 bytes.
__device__ __forceinline__ void fetch_word_or_zero(void* to, const void* from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 4 : 0) : "memory");
}

// Until this thread's copies are there.
__device__ __forceinline__ void await_fetches() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ float low_half(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_half(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

// Eight elements in 16 bytes.
__device__ __forceinline__ void widen_unit(float (&v)[8], const uint4& unit) {
    v[0] = low_half(unit.x); v[1] = high_half(unit.x); v[2] = low_half(unit.y); v[3] = high_half(unit.y);
    v[4] = low_half(unit.z); v[5] = high_half(unit.z); v[6] = low_half(unit.w); v[7] = high_half(unit.w);
}

__device__ __forceinline__ uint4 narrow_unit(const float (&v)[8]) {
    return make_uint4(narrow_pair(v[0], v[1]), narrow_pair(v[2], v[3]), narrow_pair(v[4], v[5]), narrow_pair(v[6], v[7]));
}

// sums [16, 8] += a [16, 16] b [16, 8]
__device__ __forceinline__ void multiply(float (&sums)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four 8x8 matrices whose rows' addresses the lanes give, as `multiply` takes its first operand.
__device__ __forceinline__ uint4 load_tiles(u32 at) {
    uint4 a;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(a.x), "=r"(a.y), "=r"(a.z), "=r"(a.w) : "r"(at) : "memory");
    return a;
}

__device__ __forceinline__ uint4 load_tiles_transposed(u32 at) {
    uint4 a;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(a.x), "=r"(a.y), "=r"(a.z), "=r"(a.w) : "r"(at) : "memory");
    return a;
}
