// Attention with heads of 64 in bf16: scores live in registers alone. Four warps work on 64 rows, 16 each, against 64 columns at a time; the
// next 64 columns are copied meanwhile.
//
// Fragments of mma.m16n8k16, for lane = 4 g + t: A holds rows g and g + 8 at columns 2t, 2t + 1 and 8 further; B holds column g at rows 2t, 2t + 1 and 8
// further; the result holds rows g and g + 8 at columns 2t, 2t + 1. So two neighbouring results are the A of the next product.
//
// Dropout masks are drawn once, by the forward kernel, a bit per weight: kept [head, tile of queries, tile of keys, query, 2] in words of 32 keys.
// A thread of a block with 64 queries has the word of row threadIdx.x / 2, half threadIdx.x % 2: both rows are its own warp's.

#define SIDE 64
// Rows of a tile are 144 bytes apart: the eight rows a warp reads at once lie in different banks.
#define PITCH 72
#define TILE (SIDE * PITCH)
// Words of a tile's mask.
#define MASK (SIDE * 2)

// Weights are powers of two: e^x = 2^(x LOG2_E).
#define LOG2_E 1.44269504f

__device__ __forceinline__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Starts to copy 64 rows of 64 values, zeros beyond the last row.
__device__ __forceinline__ void fetch_tile(u16* tile, const u16* from, u32 first, u32 rows, u32 stride) {
#pragma unroll
    for (u32 i = 0; i < SIDE * 8 / 128; i++) {
        u32 r = 16 * i + threadIdx.x / 8, c = threadIdx.x % 8 * 8;
        bool there = first + r < rows;
        fetch_or_zero(tile + r * PITCH + c, from + (size_t)(there ? first + r : 0) * stride + c, there);
    }
}

// This warp's 16 rows of a tile as the A of four steps.
__device__ __forceinline__ void rows_of(uint4 (&a)[4], const u16* tile, u32 warp, u32 lane) {
    u32 at = (u32)__cvta_generic_to_shared(tile + (16 * warp + (lane & 15)) * PITCH + (lane >> 4) * 8);
#pragma unroll
    for (int k = 0; k < 4; k++) a[k] = load_tiles(at + 32 * k);
}

// c [16, 8 N] = a [16, 64] tile^T, with the tile's first 8 N rows
template <int N> __device__ __forceinline__ void times_rows(float (&c)[N][4], const uint4 (&a)[4], const u16* tile, u32 lane) {
    u32 at = (u32)__cvta_generic_to_shared(tile + (lane & 7) * PITCH + (lane >> 3) * 8);
#pragma unroll
    for (int n = 0; n < N; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
        // Four products at a time that do not wait for each other.
#pragma unroll
        for (int first = 0; first < N; first += 4) {
            uint4 b[4];
#pragma unroll
            for (int n = 0; n < 4; n++) b[n] = load_tiles(at + 2 * (8 * (first + n) * PITCH + 16 * k));
#pragma unroll
            for (int n = 0; n < 4; n++) multiply(c[first + n], a[k].x, a[k].y, a[k].z, a[k].w, b[n].x, b[n].y);
#pragma unroll
            for (int n = 0; n < 4; n++) multiply(c[first + n], a[k + 1].x, a[k + 1].y, a[k + 1].z, a[k + 1].w, b[n].z, b[n].w);
        }
    }
}

// c [16, 64] += w [16, 8 N] times the tile's first 8 N rows, with w a result of times_rows
template <int N> __device__ __forceinline__ void add_blend(float (&c)[8][4], const float (&w)[N][4], const u16* tile, u32 lane) {
    u32 at = (u32)__cvta_generic_to_shared(tile + (lane & 15) * PITCH + (lane >> 4) * 8);
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        u32 a0 = narrow_pair(w[2 * k][0], w[2 * k][1]), a1 = narrow_pair(w[2 * k][2], w[2 * k][3]);
        u32 a2 = narrow_pair(w[2 * k + 1][0], w[2 * k + 1][1]), a3 = narrow_pair(w[2 * k + 1][2], w[2 * k + 1][3]);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            uint4 b = load_tiles_transposed(at + 2 * (16 * k * PITCH + 8 * n));
            multiply(c[n], a0, a1, a2, a3, b.x, b.y);
            multiply(c[n + 1], a0, a1, a2, a3, b.z, b.w);
        }
    }
}

// Rows of a result through this warp's rows of an unused tile, so that memory sees 16 bytes at a time.
__device__ __forceinline__ void write_rows(u16* out, u16* tile, const float (&x)[8][4], float low, float high, u32 first, u32 rows, u32 stride,
    u32 warp, u32 lane) {
    u32 g = lane >> 2, t = lane & 3;
    tile += 16 * warp * PITCH;
    first += 16 * warp;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        *(u32*)(tile + g * PITCH + 8 * n + 2 * t) = narrow_pair(x[n][0] * low, x[n][1] * low);
        *(u32*)(tile + (g + 8) * PITCH + 8 * n + 2 * t) = narrow_pair(x[n][2] * high, x[n][3] * high);
    }
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 r = 4 * i + lane / 8, c = lane % 8 * 8;
        if (first + r < rows) *(uint4*)(out + (size_t)(first + r) * stride + c) = *(const uint4*)(tile + r * PITCH + c);
    }
}

struct Head {
    u32 index, width;
    size_t base, input; // of the head's first value in the result, and in what has rows `stride` apart
    u32 first_row;      // of its rows among all heads' rows
};

// Tiles are the slower index of the grid, so that those with the most work can come first for all heads.
__device__ __forceinline__ Head head_of(u32 time, u32 heads, u32 stride) {
    u32 head = blockIdx.x % heads, image = blockIdx.x / heads, width = heads * SIDE;
    size_t row = (size_t)image * time;
    Head h = {blockIdx.x, width, row * width + head * SIDE, row * stride + head * SIDE, blockIdx.x * time};
    return h;
}

// The mask of a tile of queries and a tile of keys.
__device__ __forceinline__ size_t mask_at(Head h, u32 query_tile, u32 key_tile) {
    return ((size_t)(h.index * gridDim.y + query_tile) * gridDim.y + key_tile) * MASK;
}

// A number is kept if it is at least this: unit(bits) >= rate without the conversion.
__device__ __forceinline__ u32 least_kept(float rate) { return (u32)ceilf(rate * 16777216.0f) << 8; }

// Which of the draw's numbers index .. index + 31 are kept, the first in the lowest bit.
__device__ __forceinline__ u32 kept_bits(Draw draw, u64 index, u32 least) {
    u32 block = (u32)(index >> 2), shift = (u32)index & 3, bits = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint4 q = philox(draw, block + i);
        bits |= (q.x >= least ? 1u << 4 * i : 0) | (q.y >= least ? 2u << 4 * i : 0) | (q.z >= least ? 4u << 4 * i : 0) |
                (q.w >= least ? 8u << 4 * i : 0);
    }
    // Rows that do not begin with a block of four: the last numbers come from a ninth.
    if (shift) {
        uint4 q = philox(draw, block + 8);
        bits = __funnelshift_r(bits, (q.x >= least ? 1 : 0) | (q.y >= least ? 2 : 0) | (q.z >= least ? 4 : 0), shift);
    }
    return bits;
}

// The words of rows g and g + 8 from the threads that have them, moved so that column 8 n + 2 t + e is bit 8 (n % 4) + e of word n / 4.
__device__ __forceinline__ void mask_rows(u32 (&mask)[2][2], u32 word, u32 g, u32 t) {
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) mask[r][half] = __shfl_sync(~0u, word, 2 * (g + 8 * r) + half) >> 2 * t;
}

// normaliser: the logarithm, to base 2, of each row's softmax denominator.
extern "C" __global__ void __launch_bounds__(128, 4) flash_forward(u16* out, float* normaliser, u32* kept, const u16* q, const u16* k, const u16* v,
    u32 time, u32 heads, u32 stride, u32 block, float scale, float rate, const u32* state, u32 site) {
    __shared__ __align__(16) u16 keys[2][TILE], values[2][TILE];
    Draw draw = draw_of(state, site);
    Head h = head_of(time, heads, stride);
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    u32 tile = gridDim.y - 1 - blockIdx.y, first = tile * SIDE, row = first + 16 * warp + g, stage = 0, least = least_kept(rate);
    float top[2], total[2] = {0.0f, 0.0f};
    top[0] = top[1] = -__int_as_float(0x7f800000);
    scale *= LOG2_E;
    uint4 a[4];
    fetch_tile(keys[1], q + h.input, first, time, stride);
    fetch_tile(keys[0], k + h.input, 0, time, stride);
    fetch_tile(values[0], v + h.input, 0, time, stride);
    await_fetches();
    __syncthreads();
    rows_of(a, keys[1], warp, lane);
    float o[8][4] = {}, s[8][4];
    u32 end = reach(min(first + SIDE, time) - 1, time, block);
    for (u32 start = 0; start < end; start += SIDE) {
        // This tile is there, and nobody reads the one before it any more.
        await_fetches();
        __syncthreads();
        if (start + SIDE < end) {
            fetch_tile(keys[stage ^ 1], k + h.input, start + SIDE, time, stride);
            fetch_tile(values[stage ^ 1], v + h.input, start + SIDE, time, stride);
        }
        u32 word = ~0u;
        if (rate > 0.0f) {
            u32 line = first + threadIdx.x / 2;
            word = kept_bits(draw, (u64)(h.first_row + line) * time + start + threadIdx.x % 2 * 32, least);
            kept[mask_at(h, tile, start / SIDE) + threadIdx.x] = word;
        }
        times_rows(s, a, keys[stage], lane);
        // A tile that its first query does not see all of.
        if (start + SIDE > reach(first, time, block)) {
            u32 seen[2] = {reach(row, time, block), reach(row + 8, time, block)};
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    u32 j = start + 8 * n + 2 * t + (e & 1);
                    if (j >= seen[e >> 1]) s[n][e] = -__int_as_float(0x7f800000);
                }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float best = top[r];
#pragma unroll
            for (int n = 0; n < 8; n++) best = fmaxf(best, fmaxf(s[n][2 * r], s[n][2 * r + 1]) * scale);
            best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
            best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
            float shrink = power(top[r] - best);
            top[r] = best;
            total[r] *= shrink;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                o[n][2 * r] *= shrink;
                o[n][2 * r + 1] *= shrink;
            }
        }
        u32 mask[2][2];
        mask_rows(mask, word, g, t);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float w = power(s[n][e] * scale - top[e >> 1]);
                total[e >> 1] += w;
                s[n][e] = mask[e >> 1][n / 4] & 1u << (8 * (n % 4) + (e & 1)) ? w : 0.0f;
            }
        add_blend(o, s, values[stage], lane);
        stage ^= 1;
    }
    float keep = 1.0f / (1.0f - rate);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        total[r] += __shfl_xor_sync(~0u, total[r], 1);
        total[r] += __shfl_xor_sync(~0u, total[r], 2);
        if (t == 0 && row + 8 * r < time) normaliser[h.first_row + row + 8 * r] = top[r] + log2f(total[r]);
    }
    write_rows(out + h.base, keys[stage], o, keep / total[0], keep / total[1], first, time, h.width, warp, lane);
}

// Gradients of queries: a block has 64 queries and walks the keys. inner: the product of each row of the result with its gradient, the sum that
// the softmax's gradient subtracts; made here for the kernel of keys and values.
extern "C" __global__ void __launch_bounds__(128, 4) flash_gradient_queries(u16* dq, float* inner, const u16* q, const u16* k, const u16* v,
    const u16* out, const u16* d_out, const float* normaliser, const u32* kept, u32 time, u32 heads, u32 stride, u32 block, float scale, float rate) {
    __shared__ __align__(16) u16 keys[2][TILE], values[2][TILE];
    __shared__ float products[SIDE];
    Head h = head_of(time, heads, stride);
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    u32 tile = gridDim.y - 1 - blockIdx.y, first = tile * SIDE, row = first + 16 * warp + g, stage = 0;
    fetch_tile(keys[1], q + h.input, first, time, stride);
    fetch_tile(values[1], d_out + h.base, first, time, h.width);
    fetch_tile(keys[0], k + h.input, 0, time, stride);
    fetch_tile(values[0], v + h.input, 0, time, stride);
#pragma unroll
    for (u32 i = 0; i < SIDE * 8 / 128; i++) {
        u32 r = 16 * i + threadIdx.x / 8;
        float sum = 0.0f;
        if (first + r < time) {
            size_t at = h.base + (size_t)(first + r) * h.width + threadIdx.x % 8 * 8;
            float x[8], y[8];
            widen_unit(x, *(const uint4*)(out + at));
            widen_unit(y, *(const uint4*)(d_out + at));
#pragma unroll
            for (int e = 0; e < 8; e++) sum += x[e] * y[e];
        }
        for (int o = 4; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
        if (threadIdx.x % 8 == 0) {
            products[r] = sum;
            if (first + r < time) inner[h.first_row + first + r] = sum;
        }
    }
    float keep = 1.0f / (1.0f - rate), norm[2];
#pragma unroll
    for (int r = 0; r < 2; r++) norm[r] = row + 8 * r < time ? normaliser[h.first_row + row + 8 * r] : 0.0f;
    await_fetches();
    __syncthreads();
    uint4 query_rows[4], gradient_rows[4];
    rows_of(query_rows, keys[1], warp, lane);
    rows_of(gradient_rows, values[1], warp, lane);
    float sums[2] = {products[16 * warp + g], products[16 * warp + g + 8]};
    float sum[8][4] = {}, steep = scale * LOG2_E;
    u32 end = reach(min(first + SIDE, time) - 1, time, block);
    for (u32 start = 0; start < end; start += SIDE) {
        await_fetches();
        __syncthreads();
        if (start + SIDE < end) {
            fetch_tile(keys[stage ^ 1], k + h.input, start + SIDE, time, stride);
            fetch_tile(values[stage ^ 1], v + h.input, start + SIDE, time, stride);
        }
        u32 word = rate > 0.0f ? kept[mask_at(h, tile, start / SIDE) + threadIdx.x] : ~0u, mask[2][2];
        mask_rows(mask, word, g, t);
        bool edge = start + SIDE > reach(first, time, block);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float s[4][4], dp[4][4];
            times_rows(s, query_rows, keys[stage] + 32 * half * PITCH, lane);
            times_rows(dp, gradient_rows, values[stage] + 32 * half * PITCH, lane);
            if (edge) {
                u32 seen[2] = {reach(row, time, block), reach(row + 8, time, block)};
#pragma unroll
                for (int n = 0; n < 4; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        u32 j = start + 32 * half + 8 * n + 2 * t + (e & 1);
                        if (j >= seen[e >> 1]) s[n][e] = -__int_as_float(0x7f800000);
                    }
            }
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float mine = mask[e >> 1][half] & 1u << (8 * n + (e & 1)) ? dp[n][e] : 0.0f;
                    dp[n][e] = power(s[n][e] * steep - norm[e >> 1]) * (mine * keep - sums[e >> 1]);
                }
            add_blend(sum, dp, keys[stage] + 32 * half * PITCH, lane);
        }
        stage ^= 1;
    }
    write_rows(dq + h.input, keys[stage], sum, scale, scale, first, time, stride, warp, lane);
}

// What a block of keys needs of 64 queries besides their rows.
struct Queries {
    float normaliser[SIDE], inner[SIDE];
    u32 kept[SIDE][2];
};

__device__ __forceinline__ void fetch_queries(Queries* to, const float* normaliser, const float* inner, const u32* kept, u32 first, u32 time) {
    u32 i = threadIdx.x % SIDE;
    bool there = first + i < time;
    const float* from = threadIdx.x < SIDE ? normaliser : inner;
    fetch_word_or_zero((threadIdx.x < SIDE ? to->normaliser : to->inner) + i, from + (there ? first + i : 0), there);
    if (kept && threadIdx.x < MASK / 4) fetch(&to->kept[2 * threadIdx.x][0], kept + 4 * threadIdx.x);
}

// Gradients of keys and values: a block has 64 keys and walks the queries. Queries beyond the last are zeros and add nothing.
extern "C" __global__ void __launch_bounds__(128, 3) flash_gradient_keys(u16* dk, u16* dv, const u16* q, const u16* k, const u16* v, const u16* d_out,
    const float* normaliser, const float* inner, const u32* kept, u32 time, u32 heads, u32 stride, u32 block, float scale, float rate) {
    __shared__ __align__(16) u16 queries[2][TILE], gradients[2][TILE];
    __shared__ __align__(16) Queries others[2];
    Head h = head_of(time, heads, stride);
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    u32 tile = blockIdx.y, first = tile * SIDE, row = first + 16 * warp + g, stage = 0, begin = first_query(first, block) / SIDE * SIDE;
    u32 latest = first_query(first + SIDE - 1, block);
    float keep = 1.0f / (1.0f - rate), steep = scale * LOG2_E;
    normaliser += h.first_row;
    inner += h.first_row;
    fetch_tile(queries[1], k + h.input, first, time, stride);
    fetch_tile(gradients[1], v + h.input, first, time, stride);
    fetch_tile(queries[0], q + h.input, begin, time, stride);
    fetch_tile(gradients[0], d_out + h.base, begin, time, h.width);
    fetch_queries(&others[0], normaliser, inner, rate > 0.0f ? kept + mask_at(h, begin / SIDE, tile) : 0, begin, time);
    await_fetches();
    __syncthreads();
    uint4 key_rows[4], value_rows[4];
    rows_of(key_rows, queries[1], warp, lane);
    rows_of(value_rows, gradients[1], warp, lane);
    float sum_k[8][4] = {}, sum_v[8][4] = {};
    for (u32 start = begin; start < time; start += SIDE) {
        await_fetches();
        __syncthreads();
        u32 next = start + SIDE;
        if (next < time) {
            fetch_tile(queries[stage ^ 1], q + h.input, next, time, stride);
            fetch_tile(gradients[stage ^ 1], d_out + h.base, next, time, h.width);
            fetch_queries(&others[stage ^ 1], normaliser, inner, rate > 0.0f ? kept + mask_at(h, next / SIDE, tile) : 0, next, time);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float s[4][4], dp[4][4];
            times_rows(s, key_rows, queries[stage] + 32 * half * PITCH, lane);
            times_rows(dp, value_rows, gradients[stage] + 32 * half * PITCH, lane);
            if (start < latest) {
                u32 earliest[2] = {first_query(row, block), first_query(row + 8, block)};
#pragma unroll
                for (int n = 0; n < 4; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        u32 i = start + 32 * half + 8 * n + 2 * t + (e & 1);
                        if (i < earliest[e >> 1]) s[n][e] = -__int_as_float(0x7f800000);
                    }
            }
#pragma unroll
            for (int n = 0; n < 4; n++) {
                u32 at = 32 * half + 8 * n + 2 * t;
                float2 norm = *(const float2*)(others[stage].normaliser + at), sum = *(const float2*)(others[stage].inner + at);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    // The bits of keys g and g + 8: this warp's keys are 16 of the word's 32.
                    u32 mask = rate > 0.0f ? others[stage].kept[at + e][warp >> 1] >> (16 * (warp & 1) + g) : ~0u;
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        float& score = s[n][2 * r + e];
                        float& slope = dp[n][2 * r + e];
                        float w = power(score * steep - (e ? norm.y : norm.x));
                        bool mine = mask & 1u << 8 * r;
                        slope = w * ((mine ? slope : 0.0f) * keep - (e ? sum.y : sum.x));
                        score = mine ? w : 0.0f;
                    }
                }
            }
            add_blend(sum_v, s, gradients[stage] + 32 * half * PITCH, lane);
            add_blend(sum_k, dp, queries[stage] + 32 * half * PITCH, lane);
        }
        stage ^= 1;
    }
    write_rows(dk + h.input, queries[stage], sum_k, scale, scale, first, time, stride, warp, lane);
    write_rows(dv + h.input, gradients[stage], sum_v, keep, keep, first, time, stride, warp, lane);
}

// Three weights, then three biases, 8 numbers at a time.
extern "C" __global__ void pack_layers(u16* out, const u16* weight0, const u16* weight1, const u16* weight2, const u16* bias0, const u16* bias1,
    const u16* bias2, u32 weight, u32 bias) {
    EACH(i, 3 * (weight + bias) / 8) {
        bool late = 8 * i >= 3 * weight;
        u32 at = late ? 8 * i - 3 * weight : 8 * i, each = late ? bias : weight, which = at / each;
        const u16* first = late ? bias0 : weight0;
        const u16* second = late ? bias1 : weight1;
        const u16* third = late ? bias2 : weight2;
        const u16* from = which == 0 ? first : which == 1 ? second : third;
        *(uint4*)(out + 8 * i) = *(const uint4*)(from + at % each);
    }
}
