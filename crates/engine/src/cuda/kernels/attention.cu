// Attention whose scores come from a matrix product, [rows = B * heads * T, stride] in f32, and attention to a cache.

// Moves values between [B, T, heads, d] and [B, heads, T, d]; joining, from the second to the first.
extern "C" __global__ void swap_heads(View out, View x, u32 time, u32 heads, u32 d, u32 n, int joining, int add) {
    u32 each = d % 4 == 0 ? 4 : 1;
    EACH(j, n / each) {
        u32 i = j * each, c = i % d, t = i / d % time, head = i / d / time % heads, image = i / d / time / heads;
        u32 o = ((image * time + t) * heads + head) * d + c, to = joining ? o : i, from = joining ? i : o;
        if (each == 4) put4_or_add(out, to, get4(x, from), add);
        else put_or_add(out, to, get(x, from), add);
    }
}

// A warp per row; rows of up to 32 * SPAN scores stay in registers.
#define SPAN 12

// p <- dropout(softmax(scale * scores)), zero beyond what the row sees; normaliser [rows]
extern "C" __global__ void attention_softmax(const float* scores, View p, float* normaliser, u32 rows, u32 time, u32 stride, u32 block, float scale,
    float rate, const u32* state, u32 site) {
    Draw draw = draw_of(state, site);
    u32 lane = threadIdx.x & 31;
    float keep = 1.0f / (1.0f - rate);
    WARP_ROWS(row, rows) {
        u32 seen = reach(row % time, time, block);
        const float* s = scores + (size_t)row * stride;
        float best = -__int_as_float(0x7f800000), sum = 0.0f;
        if (stride <= 32 * SPAN) {
            float v[SPAN];
#pragma unroll
            for (int k = 0; k < SPAN; k++) {
                u32 j = 32 * k + lane;
                v[k] = j < seen ? s[j] : -__int_as_float(0x7f800000);
                best = larger(v[k], best);
            }
            best = warp_max(best) * scale;
#pragma unroll
            for (int k = 0; k < SPAN; k++) {
                v[k] = 32 * k + lane < seen ? __expf(v[k] * scale - best) : 0.0f;
                sum += v[k];
            }
            sum = warp_sum(sum);
            float inverse = 1.0f / sum;
#pragma unroll
            for (int k = 0; k < SPAN; k++) {
                u32 j = 32 * k + lane;
                if (rate > 0.0f && j < seen) v[k] *= unit(random_bits(draw, row * time + j)) >= rate ? keep : 0.0f;
                if (j < stride) put(p, (size_t)row * stride + j, v[k] * inverse);
            }
        } else {
            for (u32 j = lane; j < seen; j += 32) best = larger(s[j], best);
            best = warp_max(best) * scale;
            for (u32 j = lane; j < seen; j += 32) sum += __expf(s[j] * scale - best);
            sum = warp_sum(sum);
            for (u32 j = lane; j < stride; j += 32) {
                float v = j < seen ? __expf(s[j] * scale - best) / sum : 0.0f;
                if (rate > 0.0f && j < seen) v *= unit(random_bits(draw, row * time + j)) >= rate ? keep : 0.0f;
                put(p, (size_t)row * stride + j, v);
            }
        }
        if (lane == 0) normaliser[row] = best + __logf(sum);
    }
}

// p <- dropped weights, ds <- gradient of the scores, from the scores and the gradient dp of the dropped weights.
extern "C" __global__ void attention_gradient(const float* scores, const float* dp, View p, View ds, const float* normaliser, View out, View d_out,
    u32 rows, u32 time, u32 stride, u32 heads, u32 head_width, u32 block, float scale, float rate, const u32* state, u32 site) {
    Draw draw = draw_of(state, site);
    u32 lane = threadIdx.x & 31;
    float keep = 1.0f / (1.0f - rate);
    WARP_ROWS(row, rows) {
        u32 t = row % time, head = row / time % heads, image = row / time / heads, seen = reach(t, time, block);
        size_t at = ((size_t)image * time + t) * heads * head_width + head * head_width;
        float inner = 0.0f, shift = normaliser[row];
        for (u32 c = lane; c < head_width; c += 32) inner += get(out, at + c) * get(d_out, at + c);
        inner = warp_sum(inner);
#pragma unroll 4
        for (u32 j = lane; j < stride; j += 32) {
            size_t i = (size_t)row * stride + j;
            float weight = 0.0f, gradient = 0.0f;
            if (j < seen) {
                float mask = rate > 0.0f ? (unit(random_bits(draw, row * time + j)) >= rate ? keep : 0.0f) : 1.0f;
                float w = __expf(scores[i] * scale - shift);
                weight = w * mask;
                gradient = w * (dp[i] * mask - inner) * scale;
            }
            put(p, i, weight);
            put(ds, i, gradient);
        }
    }
}

// New keys and values into a cache [B, heads, capacity, d] from [B, n, D].
extern "C" __global__ void cache_append(View keys, View values, View k, View v, u32 tokens, u32 heads, u32 d, u32 capacity, u32 past, u32 n) {
    EACH(i, n) {
        size_t c = i % d, head = i / d % heads, token = i / d / heads % tokens, image = i / d / heads / tokens;
        size_t to = ((image * heads + head) * capacity + past + token) * d + c;
        put(keys, to, get(k, i));
        put(values, to, get(v, i));
    }
}

// A block per new token, head and sequence.
extern "C" __global__ void cache_attention(View out, View q, View keys, View values, u32 tokens, u32 heads, u32 d, u32 capacity, u32 past, u32 block,
    float scale) {
    extern __shared__ float weights[]; // [past + tokens]
    u32 index = blockIdx.x, head = index % heads, token = index / heads % tokens, image = index / heads / tokens;
    u32 seen = reach(past + token, past + tokens, block), lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    size_t query = ((size_t)image * tokens + token) * heads * d + head * d, base = ((size_t)image * heads + head) * capacity * d;
    float best = -__int_as_float(0x7f800000), sum = 0.0f;
    for (u32 t = warp; t < seen; t += warps) {
        float dot = 0.0f;
        for (u32 c = lane; c < d; c += 32) dot += get(q, query + c) * get(keys, base + (size_t)t * d + c);
        dot = warp_sum(dot) * scale;
        if (lane == 0) weights[t] = dot;
        best = larger(dot, best);
    }
    best = block_max(best);
    for (u32 t = threadIdx.x; t < seen; t += blockDim.x) {
        float w = __expf(weights[t] - best);
        weights[t] = w;
        sum += w;
    }
    sum = block_sum(sum);
    for (u32 c = threadIdx.x; c < d; c += blockDim.x) {
        float total = 0.0f;
        for (u32 t = 0; t < seen; t++) total += weights[t] * get(values, base + (size_t)t * d + c);
        put(out, query + c, total / sum);
    }
}

// cache_append and cache_attention in one, in bf16, for heads of 64 and several new tokens: a block per head, sequence and BLOCK_ROWS of them. Rows of new
// queries, keys and values begin every `stride` numbers; new keys and values are read there, so that no block waits for the cache.
// The four warps of a block share the keys, 16 at a time, and no warp shares values with another, so they come straight from memory: 16 bytes per lane.
// A product may take its inputs in any order, so that a lane's eight channels are two of each step of the product with the keys, and one of each column
// group of the product with the values. Three blocks fit a multiprocessor.
#define BLOCK_ROWS 32
#define BLOCK_WARPS 4
// Floats from a row of shares to the next.
#define SHARE_PITCH 68

extern "C" __global__ void __launch_bounds__(32 * BLOCK_WARPS, 3) block_attention(u16* out, const u16* q, const u16* k, const u16* v, u16* keys,
    u16* values, u32 tokens, u32 heads, u32 stride, u32 capacity, u32 past, u32 block, float scale) {
    __shared__ __align__(16) float shares[BLOCK_WARPS][BLOCK_ROWS * SHARE_PITCH];
    __shared__ float bests[BLOCK_WARPS][BLOCK_ROWS], totals[BLOCK_WARPS][BLOCK_ROWS];
    const float NOTHING = -1e30f;
    u32 head = blockIdx.x % heads, image = blockIdx.x / heads, first = blockIdx.y * BLOCK_ROWS, width = heads * 64;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    size_t from = (size_t)image * tokens * stride + head * 64;
    q += from;
    k += from;
    v += from;
    keys += (size_t)blockIdx.x * capacity * 64;
    values += (size_t)blockIdx.x * capacity * 64;
    u32 last = min(first + BLOCK_ROWS, tokens), end = reach(past + last - 1, past + tokens, block);
    for (u32 i = threadIdx.x; i < (last - first) * 8; i += blockDim.x) {
        u32 row = first + i / 8, c = i % 8 * 8;
        *(uint4*)(keys + (size_t)(past + row) * 64 + c) = *(const uint4*)(k + (size_t)row * stride + c);
        *(uint4*)(values + (size_t)(past + row) * 64 + c) = *(const uint4*)(v + (size_t)row * stride + c);
    }
    auto row_of = [&](const u16* cached, const u16* fresh, u32 position) {
        return position < past ? cached + (size_t)position * 64 : fresh + (size_t)(position - past) * stride;
    };

    // Rows 16 m + g and 8 further; those that do not exist are copies of the last one.
    uint4 query[2][2][2];
    u32 seen[2][2];
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 row = min(first + 16 * m + 8 * r + g, tokens - 1);
            seen[m][r] = reach(past + row, past + tokens, block);
            const u16* at = q + (size_t)row * stride + 8 * t;
            query[m][r][0] = *(const uint4*)at;
            query[m][r][1] = *(const uint4*)(at + 32);
        }
    // Weights are powers of two of differences of scores.
    float factor = scale * 1.44269504f, best[2][2], total[2][2], blend[2][8][4] = {};
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            best[m][r] = NOTHING;
            total[m][r] = 0.0f;
        }
    uint4 key[2][2], value[4];
    auto fetch_keys = [&](u32 start) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const u16* at = row_of(keys, k, min(start + 8 * n + g, end - 1)) + 8 * t;
            key[n][0] = *(const uint4*)at;
            key[n][1] = *(const uint4*)(at + 32);
        }
    };
    auto fetch_values = [&](u32 start) {
#pragma unroll
        for (int i = 0; i < 4; i++) value[i] = *(const uint4*)(row_of(values, v, min(start + 2 * t + (i & 1) + 8 * (i >> 1), end - 1)) + 8 * g);
    };
    fetch_keys(16 * warp);
    fetch_values(16 * warp);
    for (u32 start = 16 * warp; start < end; start += 16 * BLOCK_WARPS) {
        const u32 next = start + 16 * BLOCK_WARPS;
        u32 weights[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            float s[2][4];
#pragma unroll
            for (int n = 0; n < 2; n++) {
                s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    uint4 a = query[m][0][half], b = query[m][1][half], c = key[n][half];
                    multiply(s[n], a.x, b.x, a.y, b.y, c.x, c.y);
                    multiply(s[n], a.z, b.z, a.w, b.w, c.z, c.w);
                }
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float top = best[m][r];
#pragma unroll
                for (int n = 0; n < 2; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        if (start + 8 * n + 2 * t + e < seen[m][r]) top = fmaxf(top, s[n][2 * r + e]);
                top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
                top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
                float fade = exp2f((best[m][r] - top) * factor);
                best[m][r] = top;
                total[m][r] *= fade;
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    blend[m][j][2 * r] *= fade;
                    blend[m][j][2 * r + 1] *= fade;
                }
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    float w[2];
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        w[e] = start + 8 * n + 2 * t + e < seen[m][r] ? exp2f((s[n][2 * r + e] - top) * factor) : 0.0f;
                        total[m][r] += w[e];
                    }
                    weights[m][2 * n + r] = narrow_pair(w[0], w[1]);
                }
            }
        }
        // The next ones come while what is left of these is used.
        fetch_keys(next);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            u32 part[4];
#pragma unroll
            for (int i = 0; i < 4; i++) part[i] = j / 2 == 0 ? value[i].x : j / 2 == 1 ? value[i].y : j / 2 == 2 ? value[i].z : value[i].w;
            u32 halves = j % 2 ? 0x7632 : 0x5410, b0 = __byte_perm(part[0], part[1], halves), b1 = __byte_perm(part[2], part[3], halves);
#pragma unroll
            for (int m = 0; m < 2; m++) multiply(blend[m][j], weights[m][0], weights[m][1], weights[m][2], weights[m][3], b0, b1);
        }
        fetch_values(next);
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 row = 16 * m + 8 * r + g;
            float sum = total[m][r];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            if (t == 0) {
                bests[warp][row] = best[m][r];
                totals[warp][row] = sum;
            }
            // Column 2t of group j is channel 16t + j, the one after it channel 16t + 8 + j.
            float* to = shares[warp] + row * SHARE_PITCH + 16 * t;
#pragma unroll
            for (int e = 0; e < 2; e++)
#pragma unroll
                for (int j = 0; j < 8; j += 4)
                    *(float4*)(to + 8 * e + j) = make_float4(blend[m][j][2 * r + e], blend[m][j + 1][2 * r + e], blend[m][j + 2][2 * r + e],
                                                             blend[m][j + 3][2 * r + e]);
        }
    __syncthreads();
    for (u32 i = threadIdx.x; i < BLOCK_ROWS * 32; i += blockDim.x) {
        u32 row = i / 32, column = i % 32 * 2;
        if (first + row >= tokens) break;
        float top = NOTHING, sum = 0.0f, low = 0.0f, high = 0.0f;
#pragma unroll
        for (int w = 0; w < BLOCK_WARPS; w++) top = fmaxf(top, bests[w][row]);
#pragma unroll
        for (int w = 0; w < BLOCK_WARPS; w++) {
            float share = exp2f((bests[w][row] - top) * factor);
            sum += share * totals[w][row];
            low += share * shares[w][row * SHARE_PITCH + column];
            high += share * shares[w][row * SHARE_PITCH + column + 1];
        }
        *(u32*)(out + ((size_t)image * tokens + first + row) * width + head * 64 + column) = narrow_pair(low / sum, high / sum);
    }
}
