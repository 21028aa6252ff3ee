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
extern "C" __global__ void attention_softmax(const float* scores, View p, float* normaliser, u32 rows, u32 time, u32 stride, int causal, float scale,
    float rate, const u32* state, u32 site) {
    Draw draw = draw_of(state, site);
    u32 lane = threadIdx.x & 31;
    float keep = 1.0f / (1.0f - rate);
    WARP_ROWS(row, rows) {
        u32 seen = causal ? row % time + 1 : time;
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
    u32 rows, u32 time, u32 stride, u32 heads, u32 head_width, int causal, float scale, float rate, const u32* state, u32 site) {
    Draw draw = draw_of(state, site);
    u32 lane = threadIdx.x & 31;
    float keep = 1.0f / (1.0f - rate);
    WARP_ROWS(row, rows) {
        u32 t = row % time, head = row / time % heads, image = row / time / heads, seen = causal ? t + 1 : time;
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
extern "C" __global__ void cache_attention(View out, View q, View keys, View values, u32 tokens, u32 heads, u32 d, u32 capacity, u32 past, float scale) {
    extern __shared__ float weights[]; // [past + tokens]
    u32 index = blockIdx.x, head = index % heads, token = index / heads % tokens, image = index / heads / tokens;
    u32 seen = past + token + 1, lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
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
