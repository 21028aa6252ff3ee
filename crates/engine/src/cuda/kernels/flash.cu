// Attention with heads of 64 in bf16: scores live in registers alone. Four warps work on 64 rows, 16 each, against 64 columns at a time.
//
// Fragments of mma.m16n8k16, for lane = 4 g + t: A holds rows g and g + 8 at columns 2t, 2t + 1 and 8 further; B holds column g at rows 2t, 2t + 1 and 8
// further; the result holds rows g and g + 8 at columns 2t, 2t + 1. So two neighbouring results are the A of the next product.

#define SIDE 64
// Rows of a tile are 144 bytes apart: the eight rows a warp reads at once lie in different banks.
#define PITCH 72

__device__ __forceinline__ void mma(float* c, const u32* a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 64 rows of 64 values, zeros beyond the last row.
__device__ __forceinline__ void load_tile(u16* tile, const u16* from, u32 first, u32 rows, u32 stride) {
    for (u32 i = threadIdx.x; i < SIDE * 8; i += 128) {
        u32 r = i / 8, c = i % 8 * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (first + r < rows) v = *(const uint4*)(from + (size_t)(first + r) * stride + c);
        *(uint4*)(tile + r * PITCH + c) = v;
    }
}

// This warp's 16 rows of a tile as the A of four steps.
__device__ __forceinline__ void rows_of(u32 (*a)[4], const u16* tile, u32 warp, u32 g, u32 t) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const u16* p = tile + (16 * warp + g) * PITCH + 16 * k + 2 * t;
        a[k][0] = *(const u32*)p;
        a[k][1] = *(const u32*)(p + 8 * PITCH);
        a[k][2] = *(const u32*)(p + 8);
        a[k][3] = *(const u32*)(p + 8 * PITCH + 8);
    }
}

// c [16, 64] = a [16, 64] tile^T
__device__ __forceinline__ void times_rows(float (*c)[4], const u32 (*a)[4], const u16* tile, u32 g, u32 t) {
#pragma unroll
    for (int n = 0; n < 8; n++) {
        c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const u16* p = tile + (8 * n + g) * PITCH + 16 * k + 2 * t;
            mma(c[n], a[k], *(const u32*)p, *(const u32*)(p + 8));
        }
    }
}

// c [16, 64] += w [16, 64] tile, with w a result of times_rows
__device__ __forceinline__ void add_blend(float (*c)[4], const float (*w)[4], const u16* tile, u32 lane) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        u32 a[4] = {narrow_pair(w[2 * k][0], w[2 * k][1]), narrow_pair(w[2 * k][2], w[2 * k][3]),
                    narrow_pair(w[2 * k + 1][0], w[2 * k + 1][1]), narrow_pair(w[2 * k + 1][2], w[2 * k + 1][3])};
#pragma unroll
        for (int n = 0; n < 8; n++) {
            u32 b0, b1, at = (u32)__cvta_generic_to_shared(tile + (16 * k + (lane & 15)) * PITCH + 8 * n);
            asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(b0), "=r"(b1) : "r"(at));
            mma(c[n], a, b0, b1);
        }
    }
}

__device__ __forceinline__ float drop_factor(Draw draw, u32 index, float rate, float keep) {
    return unit(random_bits(draw, index)) >= rate ? keep : 0.0f;
}

struct Head {
    u32 width;
    size_t base;   // of the head's first value
    u32 first_row; // of its rows among all heads' rows
};

__device__ __forceinline__ Head head_of(u32 time, u32 heads) {
    u32 head = blockIdx.y % heads, image = blockIdx.y / heads, width = heads * SIDE;
    Head h = {width, (size_t)image * time * width + head * SIDE, blockIdx.y * time};
    return h;
}

extern "C" __global__ void __launch_bounds__(128) flash_forward(u16* out, float* normaliser, const u16* q, const u16* k, const u16* v, u32 time,
    u32 heads, u32 block, float scale, float rate, const u32* state, u32 site) {
    __shared__ __align__(16) u16 keys[SIDE * PITCH], values[SIDE * PITCH];
    Draw draw = draw_of(state, site);
    Head h = head_of(time, heads);
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, first = blockIdx.x * SIDE;
    u32 row[2] = {first + 16 * warp + g, first + 16 * warp + g + 8};
    float keep = 1.0f / (1.0f - rate), top[2], total[2] = {0.0f, 0.0f};
    top[0] = top[1] = -__int_as_float(0x7f800000);
    u32 a[4][4];
    load_tile(keys, q + h.base, first, time, h.width);
    __syncthreads();
    rows_of(a, keys, warp, g, t);
    __syncthreads();
    float o[8][4] = {}, s[8][4];
    u32 end = reach(min(first + SIDE, time) - 1, time, block);
    for (u32 start = 0; start < end; start += SIDE) {
        load_tile(keys, k + h.base, start, time, h.width);
        load_tile(values, v + h.base, start, time, h.width);
        __syncthreads();
        times_rows(s, a, keys, g, t);
        float best[2] = {top[0], top[1]};
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                u32 j = start + 8 * n + 2 * t + (e & 1);
                bool seen = j < reach(row[e >> 1], time, block);
                s[n][e] = seen ? s[n][e] * scale : -__int_as_float(0x7f800000);
                best[e >> 1] = fmaxf(best[e >> 1], s[n][e]);
            }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            best[r] = fmaxf(best[r], __shfl_xor_sync(~0u, best[r], 1));
            best[r] = fmaxf(best[r], __shfl_xor_sync(~0u, best[r], 2));
            float shrink = __expf(top[r] - best[r]);
            top[r] = best[r];
            total[r] *= shrink;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                o[n][2 * r] *= shrink;
                o[n][2 * r + 1] *= shrink;
            }
        }
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float w = __expf(s[n][e] - top[e >> 1]);
                total[e >> 1] += w;
                u32 j = start + 8 * n + 2 * t + (e & 1);
                if (rate > 0.0f) w *= drop_factor(draw, (h.first_row + row[e >> 1]) * time + j, rate, keep);
                s[n][e] = w;
            }
        add_blend(o, s, values, lane);
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        total[r] += __shfl_xor_sync(~0u, total[r], 1);
        total[r] += __shfl_xor_sync(~0u, total[r], 2);
        if (row[r] >= time) continue;
        float inverse = 1.0f / total[r];
#pragma unroll
        for (int n = 0; n < 8; n++)
            *(u32*)(out + h.base + (size_t)row[r] * h.width + 8 * n + 2 * t) = narrow_pair(o[n][2 * r] * inverse, o[n][2 * r + 1] * inverse);
        if (t == 0) normaliser[h.first_row + row[r]] = top[r] + __logf(total[r]);
    }
}

// The product of each row of the result with its gradient: the sum that the softmax's gradient subtracts. A warp per row of a head.
extern "C" __global__ void flash_inner(float* inner, const u16* out, const u16* d_out, u32 time, u32 heads, u32 rows) {
    u32 lane = threadIdx.x & 31;
    WARP_ROWS(row, rows) {
        u32 t = row % time, head = row / time % heads, image = row / time / heads;
        size_t at = ((size_t)image * time + t) * heads * SIDE + head * SIDE + 2 * lane;
        u32 x = *(const u32*)(out + at), y = *(const u32*)(d_out + at);
        float sum = __uint_as_float(x << 16) * __uint_as_float(y << 16) + __uint_as_float(x & 0xffff0000u) * __uint_as_float(y & 0xffff0000u);
        sum = warp_sum(sum);
        if (lane == 0) inner[row] = sum;
    }
}

// Turns scores s and gradients of dropped weights dp into dropped weights and gradients of scores. Rows are queries or, `turned`, keys.
__device__ __forceinline__ void score_gradients(float (*s)[4], float (*dp)[4], const float* norm, const float* inner, u32 row, u32 column, bool turned,
    u32 time, u32 block, float scale, float rate, float keep, Draw draw, u32 first_row, u32 t) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u32 r = row + 8 * (e >> 1), c = column + 8 * n + 2 * t + (e & 1);
            u32 query = turned ? c : r, key = turned ? r : c;
            float w = 0.0f, d = 0.0f;
            bool seen = turned ? key < time && query >= first_query(key, block) : key < reach(query, time, block);
            if (query < time && seen) {
                u32 at = turned ? 8 * n + 2 * t + (e & 1) : (e >> 1);
                float mask = rate > 0.0f ? drop_factor(draw, (first_row + query) * time + key, rate, keep) : 1.0f;
                w = __expf(s[n][e] * scale - norm[at]);
                d = w * (dp[n][e] * mask - inner[at]) * scale;
                w *= mask;
            }
            s[n][e] = w;
            dp[n][e] = d;
        }
}

__device__ __forceinline__ void write_rows(View out, const float (*x)[4], Head h, u32 row, u32 time, u32 t, int add) {
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (row + 8 * (e >> 1) < time)
#pragma unroll
            for (int n = 0; n < 8; n++) put_or_add(out, h.base + (size_t)(row + 8 * (e >> 1)) * h.width + 8 * n + 2 * t + (e & 1), x[n][e], add);
}

// Gradients of keys and values: a block has 64 keys and walks the queries.
extern "C" __global__ void __launch_bounds__(128) flash_gradient_keys(View dk, View dv, const u16* q, const u16* k, const u16* v, const u16* d_out,
    const float* normaliser, const float* inner, u32 time, u32 heads, u32 block, float scale, float rate, const u32* state, u32 site, int add_k,
    int add_v) {
    __shared__ __align__(16) u16 queries[SIDE * PITCH], gradients[SIDE * PITCH];
    __shared__ float norm[SIDE], sums[SIDE];
    Draw draw = draw_of(state, site);
    Head h = head_of(time, heads);
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, first = blockIdx.x * SIDE;
    float keep = 1.0f / (1.0f - rate);
    u32 key_rows[4][4], value_rows[4][4];
    load_tile(queries, k + h.base, first, time, h.width);
    load_tile(gradients, v + h.base, first, time, h.width);
    __syncthreads();
    rows_of(key_rows, queries, warp, g, t);
    rows_of(value_rows, gradients, warp, g, t);
    __syncthreads();
    float sum_k[8][4] = {}, sum_v[8][4] = {}, s[8][4], dp[8][4];
    for (u32 start = first_query(first, block) / SIDE * SIDE; start < time; start += SIDE) {
        load_tile(queries, q + h.base, start, time, h.width);
        load_tile(gradients, d_out + h.base, start, time, h.width);
        if (threadIdx.x < SIDE && start + threadIdx.x < time) {
            norm[threadIdx.x] = normaliser[h.first_row + start + threadIdx.x];
            sums[threadIdx.x] = inner[h.first_row + start + threadIdx.x];
        }
        __syncthreads();
        times_rows(s, key_rows, queries, g, t);
        times_rows(dp, value_rows, gradients, g, t);
        score_gradients(s, dp, norm, sums, first + 16 * warp + g, start, true, time, block, scale, rate, keep, draw, h.first_row, t);
        add_blend(sum_v, s, gradients, lane);
        add_blend(sum_k, dp, queries, lane);
        __syncthreads();
    }
    write_rows(dk, sum_k, h, first + 16 * warp + g, time, t, add_k);
    write_rows(dv, sum_v, h, first + 16 * warp + g, time, t, add_v);
}

// Gradients of queries: a block has 64 queries and walks the keys.
extern "C" __global__ void __launch_bounds__(128) flash_gradient_queries(View dq, const u16* q, const u16* k, const u16* v, const u16* d_out,
    const float* normaliser, const float* inner, u32 time, u32 heads, u32 block, float scale, float rate, const u32* state, u32 site, int add) {
    __shared__ __align__(16) u16 keys[SIDE * PITCH], values[SIDE * PITCH];
    Draw draw = draw_of(state, site);
    Head h = head_of(time, heads);
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, first = blockIdx.x * SIDE, row = first + 16 * warp + g;
    float keep = 1.0f / (1.0f - rate), norm[2] = {0.0f, 0.0f}, sums[2] = {0.0f, 0.0f};
    for (int r = 0; r < 2; r++)
        if (row + 8 * r < time) {
            norm[r] = normaliser[h.first_row + row + 8 * r];
            sums[r] = inner[h.first_row + row + 8 * r];
        }
    u32 query_rows[4][4], gradient_rows[4][4];
    load_tile(keys, q + h.base, first, time, h.width);
    load_tile(values, d_out + h.base, first, time, h.width);
    __syncthreads();
    rows_of(query_rows, keys, warp, g, t);
    rows_of(gradient_rows, values, warp, g, t);
    __syncthreads();
    float sum[8][4] = {}, s[8][4], dp[8][4];
    u32 end = reach(min(first + SIDE, time) - 1, time, block);
    for (u32 start = 0; start < end; start += SIDE) {
        load_tile(keys, k + h.base, start, time, h.width);
        load_tile(values, v + h.base, start, time, h.width);
        __syncthreads();
        times_rows(s, query_rows, keys, g, t);
        times_rows(dp, gradient_rows, values, g, t);
        score_gradients(s, dp, norm, sums, row, start, false, time, block, scale, rate, keep, draw, h.first_row, t);
        add_blend(sum, dp, keys, lane);
        __syncthreads();
    }
    write_rows(dq, sum, h, row, time, t, add);
}
