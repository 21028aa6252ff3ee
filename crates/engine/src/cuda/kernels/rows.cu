// A result per row, or rows that need their own sums: a warp or a block per row.

// Rows of up to 1024 elements, a multiple of 128, stay in registers: QUADS float4s per lane.
#define QUADS 8
#define IN_REGISTERS(width) ((width) % 128 == 0 && (width) <= 128 * QUADS)

extern "C" __global__ void layer_norm(View out, float* statistics, View x, const float* gain, const float* shift, u32 rows, u32 width, float epsilon) {
    u32 lane = threadIdx.x & 31;
    WARP_ROWS(row, rows) {
        size_t at = (size_t)row * width;
        float sum = 0.0f, squares = 0.0f, mean, inverse;
        if (IN_REGISTERS(width)) {
            float4 v[QUADS];
            u32 quads = width / 128;
#pragma unroll
            for (int q = 0; q < QUADS; q++) if (q < quads) {
                v[q] = get4(x, at + 4 * (32 * q + lane));
                sum += (v[q].x + v[q].y) + (v[q].z + v[q].w);
            }
            mean = warp_sum(sum) / width;
#pragma unroll
            for (int q = 0; q < QUADS; q++) if (q < quads) FOUR({ float d = part<e>(v[q]) - mean; squares += d * d; })
            inverse = 1.0f / sqrtf(warp_sum(squares) / width + epsilon);
#pragma unroll
            for (int q = 0; q < QUADS; q++) if (q < quads) {
                u32 c = 4 * (32 * q + lane);
                float4 g = *(const float4*)(gain + c), s = *(const float4*)(shift + c);
                FOUR({ part<e>(v[q]) = (part<e>(v[q]) - mean) * inverse * part<e>(g) + part<e>(s); })
                put4(out, at + c, v[q]);
            }
        } else {
            for (u32 c = lane; c < width; c += 32) sum += get(x, at + c);
            mean = warp_sum(sum) / width;
            for (u32 c = lane; c < width; c += 32) {
                float d = get(x, at + c) - mean;
                squares += d * d;
            }
            inverse = 1.0f / sqrtf(warp_sum(squares) / width + epsilon);
            for (u32 c = lane; c < width; c += 32) put(out, at + c, (get(x, at + c) - mean) * inverse * gain[c] + shift[c]);
        }
        if (lane == 0) {
            statistics[2 * row] = mean;
            statistics[2 * row + 1] = inverse;
        }
    }
}

extern "C" __global__ void layer_norm_gradient(View dx, View x, View dy, const float* statistics, const float* gain, u32 rows, u32 width, int add) {
    u32 lane = threadIdx.x & 31;
    WARP_ROWS(row, rows) {
        size_t at = (size_t)row * width;
        float mean = statistics[2 * row], inverse = statistics[2 * row + 1], s1 = 0.0f, s2 = 0.0f;
        if (IN_REGISTERS(width)) {
            float4 v[QUADS], d[QUADS];
            u32 quads = width / 128;
#pragma unroll
            for (int q = 0; q < QUADS; q++) if (q < quads) {
                u32 c = 4 * (32 * q + lane);
                v[q] = get4(x, at + c);
                d[q] = get4(dy, at + c);
                float4 g = *(const float4*)(gain + c);
                FOUR({
                    part<e>(d[q]) *= part<e>(g);
                    part<e>(v[q]) -= mean;
                    s1 += part<e>(d[q]);
                    s2 += part<e>(d[q]) * part<e>(v[q]);
                })
            }
            s1 = warp_sum(s1) / width;
            s2 = warp_sum(s2) * inverse / width;
#pragma unroll
            for (int q = 0; q < QUADS; q++) if (q < quads) {
                FOUR({ part<e>(d[q]) = inverse * (part<e>(d[q]) - s1 - part<e>(v[q]) * inverse * s2); })
                put4_or_add(dx, at + 4 * (32 * q + lane), d[q], add);
            }
            continue;
        }
        for (u32 c = lane; c < width; c += 32) {
            float d = get(dy, at + c) * gain[c];
            s1 += d;
            s2 += d * (get(x, at + c) - mean);
        }
        s1 = warp_sum(s1) / width;
        s2 = warp_sum(s2) * inverse / width;
        for (u32 c = lane; c < width; c += 32) {
            float value = inverse * (get(dy, at + c) * gain[c] - s1 - (get(x, at + c) - mean) * inverse * s2);
            put_or_add(dx, at + c, value, add);
        }
    }
}

// dx, and parts [blocks, 2, width] as below, while x and dy are read once. Rows of up to 128 QUADS_KEPT elements, a multiple of 128; 2 width floats for
// each warp fit into the shared memory.
template <int QUADS_KEPT>
__device__ __forceinline__ void layer_norm_gradients(View dx, View x, View dy, const float* statistics, const float* gain, float* parts, u32 rows,
    u32 width, int add) {
    __shared__ __align__(16) float sums[8192];
    u32 first = (u32)((u64)rows * blockIdx.x / gridDim.x), last = (u32)((u64)rows * (blockIdx.x + 1) / gridDim.x);
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5, quads = width / 128;
    float4 shift_sums[QUADS_KEPT] = {}, gain_sums[QUADS_KEPT] = {};
    for (u32 row = first + warp; row < last; row += warps) {
        size_t at = (size_t)row * width + 4 * lane;
        float4 v[QUADS_KEPT], d[QUADS_KEPT], before[QUADS_KEPT] = {};
        float mean = statistics[2 * row], inverse = statistics[2 * row + 1], s1 = 0.0f, s2 = 0.0f;
#pragma unroll
        for (int q = 0; q < QUADS_KEPT; q++) if (q < quads) {
            v[q] = get4(x, at + 128 * q);
            d[q] = get4(dy, at + 128 * q);
            if (add) before[q] = get4(dx, at + 128 * q);
        }
#pragma unroll
        for (int q = 0; q < QUADS_KEPT; q++) if (q < quads) {
            float4 gains = *(const float4*)(gain + 4 * (32 * q + lane));
            FOUR({
                part<e>(v[q]) = (part<e>(v[q]) - mean) * inverse;
                part<e>(shift_sums[q]) += part<e>(d[q]);
                part<e>(gain_sums[q]) += part<e>(d[q]) * part<e>(v[q]);
                part<e>(d[q]) *= part<e>(gains);
                s1 += part<e>(d[q]);
                s2 += part<e>(d[q]) * part<e>(v[q]);
            })
        }
        s1 = warp_sum(s1) / width;
        s2 = warp_sum(s2) / width;
#pragma unroll
        for (int q = 0; q < QUADS_KEPT; q++) if (q < quads) {
            FOUR({ part<e>(before[q]) += inverse * (part<e>(d[q]) - s1 - part<e>(v[q]) * s2); })
            put4(dx, at + 128 * q, before[q]);
        }
    }
#pragma unroll
    for (int q = 0; q < QUADS_KEPT; q++) if (q < quads) {
        float* to = sums + 2 * warp * width + 4 * (32 * q + lane);
        *(float4*)to = shift_sums[q];
        *(float4*)(to + width) = gain_sums[q];
    }
    __syncthreads();
    for (u32 c = threadIdx.x; c < 2 * width; c += blockDim.x) {
        float sum = 0.0f;
        for (u32 w = 0; w < warps; w++) sum += sums[2 * w * width + c];
        parts[(size_t)blockIdx.x * 2 * width + c] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(512, 2) layer_norm_gradients_256(View dx, View x, View dy, const float* statistics, const float* gain,
    float* parts, u32 rows, u32 width, int add) {
    layer_norm_gradients<2>(dx, x, dy, statistics, gain, parts, rows, width, add);
}

extern "C" __global__ void __launch_bounds__(256, 2) layer_norm_gradients_512(View dx, View x, View dy, const float* statistics, const float* gain,
    float* parts, u32 rows, u32 width, int add) {
    layer_norm_gradients<4>(dx, x, dy, statistics, gain, parts, rows, width, add);
}

// parts [blocks, 2, width]: each block's share of the gradients of shift and gain.
extern "C" __global__ void layer_norm_shares(View x, View dy, const float* statistics, float* parts, u32 rows, u32 width) {
    u32 first = (u32)((u64)rows * blockIdx.x / gridDim.x), last = (u32)((u64)rows * (blockIdx.x + 1) / gridDim.x);
    for (u32 c = threadIdx.x; c < width; c += blockDim.x) {
        float shift = 0.0f, gain = 0.0f;
        for (u32 row = first; row < last; row++) {
            float d = get(dy, (size_t)row * width + c);
            shift += d;
            gain += d * (get(x, (size_t)row * width + c) - statistics[2 * row]) * statistics[2 * row + 1];
        }
        parts[(size_t)blockIdx.x * 2 * width + c] = shift;
        parts[(size_t)blockIdx.x * 2 * width + width + c] = gain;
    }
}

// parts [splits, entries, width]: the sum of the rows of dy whose index is the entry, over a share of the rows. Grid (entries, splits), 256 threads.
extern "C" __global__ void scatter(View dy, const int* indices, float* parts, u32 rows, u32 width) {
    __shared__ u32 found[8];
    int entry = (int)blockIdx.x;
    u32 first = (u32)((u64)rows * blockIdx.y / gridDim.y), last = (u32)((u64)rows * (blockIdx.y + 1) / gridDim.y);
    float* out = parts + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * width;
    for (u32 start = 0; start < width; start += 1024) {
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (u32 base = first; base < last; base += 256) {
            u32 row = base + threadIdx.x;
            u32 mask = __ballot_sync(~0u, row < last && indices[row] == entry);
            __syncthreads();
            if ((threadIdx.x & 31) == 0) found[threadIdx.x >> 5] = mask;
            __syncthreads();
            for (u32 w = 0; w < 8; w++)
                for (u32 bits = found[w]; bits; bits &= bits - 1) {
                    size_t at = (size_t)(base + 32 * w + __ffs(bits) - 1) * width;
                    for (int k = 0; k < 4; k++) {
                        u32 c = start + 256 * k + threadIdx.x;
                        if (c < width) sum[k] += get(dy, at + c);
                    }
                }
        }
        for (int k = 0; k < 4; k++) {
            u32 c = start + 256 * k + threadIdx.x;
            if (c < width) out[c] = sum[k];
        }
    }
}

// ---- classes: a warp per row of logits ----

__device__ __forceinline__ float log_sum_exp(View x, size_t at, u32 classes, u32 lane) {
    float best = -__int_as_float(0x7f800000), sum = 0.0f;
    for (u32 c = lane; c < classes; c += 32) best = larger(get(x, at + c), best);
    best = warp_max(best);
    for (u32 c = lane; c < classes; c += 32) sum += expf(get(x, at + c) - best);
    return best + logf(warp_sum(sum));
}

extern "C" __global__ void row_normalisers(View logits, float* normaliser, u32 rows, u32 classes) {
    u32 lane = threadIdx.x & 31;
    WARP_ROWS(row, rows) {
        float value = log_sum_exp(logits, (size_t)row * classes, classes, lane);
        if (lane == 0) normaliser[row] = value;
    }
}

// parts [blocks][2]: sum of the losses, and how many count.
extern "C" __global__ void cross_entropy(View logits, const int* labels, const float* normaliser, double* parts, u32 rows, u32 classes) {
    double sum = 0.0, count = 0.0;
    EACH(row, rows) if (labels[row] >= 0 && labels[row] < (int)classes) {
        sum += normaliser[row] - get(logits, (size_t)row * classes + labels[row]);
        count += 1.0;
    }
    sum = block_sum(sum);
    count = block_sum(count);
    if (threadIdx.x == 0) {
        parts[2 * blockIdx.x] = sum;
        parts[2 * blockIdx.x + 1] = count;
    }
}

extern "C" __global__ void cross_entropy_gradient(View d, View logits, const int* labels, const float* normaliser, const float* counted,
    const float* dy, u32 classes, u32 n, int add) {
    float weight = dy[0] / fmaxf(counted[0], 1.0f);
    EACH(i, n) {
        size_t row = i / classes;
        int label = labels[row];
        float value = 0.0f;
        if (label >= 0) value = weight * (expf(get(logits, i) - normaliser[row]) - ((int)(i % classes) == label ? 1.0f : 0.0f));
        put_or_add(d, i, value, add);
    }
}

extern "C" __global__ void log_prob(float* out, View logits, const int* choices, const float* normaliser, u32 actions, u32 rows) {
    EACH(row, rows) {
        int choice = choices[row];
        out[row] = choice >= 0 && choice < (int)actions ? get(logits, (size_t)row * actions + choice) - normaliser[row] : 0.0f;
    }
}

extern "C" __global__ void log_prob_gradient(View d, View logits, const int* choices, const float* normaliser, View dy, u32 actions, u32 n, int add) {
    EACH(i, n) {
        size_t row = i / actions;
        float hit = choices[row] == (int)(i % actions) ? 1.0f : 0.0f;
        put_or_add(d, i, get(dy, row) * (hit - expf(get(logits, i) - normaliser[row])), add);
    }
}

// symexp of the mean of values spaced evenly from -limit to limit.
extern "C" __global__ void symexp_mean(float* out, View logits, const float* normaliser, u32 values, u32 rows, float limit) {
    EACH(row, rows) {
        float mean = 0.0f, step = 2.0f * limit / (float)(values - 1);
        for (u32 v = 0; v < values; v++) {
            mean += expf(get(logits, (size_t)row * values + v) - normaliser[row]) * ((float)v * step - limit);
        }
        out[row] = copysignf(expm1f(fabsf(mean)), mean);
    }
}

// Between which two of the values that are spaced evenly from -limit to limit symlog(x) lies, and how much of it each has.
extern "C" __global__ void symlog_place(int* low, int* high, float* low_share, float* high_share, View x, u32 values, u32 n, float limit) {
    EACH(i, n) {
        float v = get(x, i);
        float symlog = fminf(fmaxf(copysignf(log1pf(fabsf(v)), v), -limit), limit);
        float place = (symlog + limit) * ((float)(values - 1) / (2.0f * limit));
        float below = fminf(floorf(place), (float)(values - 2));
        low[i] = (int)below;
        high[i] = (int)below + 1;
        low_share[i] = 1.0f - (place - below);
        high_share[i] = place - below;
    }
}

static __device__ float percentile(const float* sorted, u32 count, float share) {
    float place = share * (float)(count - 1), below = floorf(place);
    u32 low = (u32)below, high = min(low + 1, count - 1);
    return sorted[low] + (sorted[high] - sorted[low]) * (place - below);
}

// x / max(1, range), where the range between two percentiles of the live values has first been followed by `state`: [range, 1 once it has one]. One
// block; `size` is a power of two and at least n.
extern "C" __global__ void over_range(float* out, float* state, View x, View of, const float* alive, u32 n, u32 size, float low, float high, float decay) {
    extern __shared__ float sorted[]; // [size]
    __shared__ u32 live;
    if (threadIdx.x == 0) live = 0;
    __syncthreads();
    u32 mine = 0;
    for (u32 i = threadIdx.x; i < size; i += blockDim.x) {
        bool counts = i < n && alive[i] != 0.0f;
        sorted[i] = counts ? get(of, i) : __int_as_float(0x7f800000); // infinity
        mine += counts;
    }
    atomicAdd(&live, mine);
    __syncthreads();
    for (u32 run = 2; run <= size; run *= 2) {
        for (u32 step = run / 2; step > 0; step /= 2) {
            for (u32 i = threadIdx.x; i < size; i += blockDim.x) {
                u32 other = i ^ step;
                if (other > i) {
                    float a = sorted[i], b = sorted[other];
                    bool ascending = (i & run) == 0;
                    if ((a > b) == ascending) {
                        sorted[i] = b;
                        sorted[other] = a;
                    }
                }
            }
            __syncthreads();
        }
    }
    __shared__ float scale;
    if (threadIdx.x == 0) {
        float range = state[0];
        if (live > 0) {
            float now = percentile(sorted, live, high) - percentile(sorted, live, low);
            range = state[1] != 0.0f ? decay * range + (1.0f - decay) * now : now;
            state[0] = range;
            state[1] = 1.0f;
        }
        scale = fmaxf(1.0f, range);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) out[i] = get(x, i) / scale;
}

extern "C" __global__ void entropy(float* out, View logits, const float* normaliser, u32 actions, u32 rows) {
    EACH(row, rows) {
        float sum = 0.0f;
        for (u32 a = 0; a < actions; a++) {
            float l = get(logits, (size_t)row * actions + a) - normaliser[row], p = expf(l);
            sum -= p > 0.0f || p != p ? p * l : 0.0f;
        }
        out[row] = sum;
    }
}

extern "C" __global__ void entropy_gradient(View d, View logits, const float* normaliser, const float* entropy, View dy, u32 actions, u32 n, int add) {
    EACH(i, n) {
        size_t row = i / actions;
        float l = get(logits, i) - normaliser[row], p = expf(l);
        put_or_add(d, i, -get(dy, row) * p * ((p > 0.0f ? l : 0.0f) + entropy[row]), add);
    }
}

// The largest of logit + temperature * Gumbel noise, the first of equals. A block per row. A copy goes to every `stride`th place of `copies`.
// Part of chains: the first noise is made before the logits are there.
extern "C" __global__ void sample(int* out, int* copies, u32 stride, View logits, u32 actions, float constant, const float* on_device, const u32* state, u32 site) {
    __shared__ float bests[32];
    __shared__ u32 indices[32];
    admit_next();
    Draw draw = draw_of(state, site);
    // Both were written before the step: no kernel of the chain writes them.
    float temperature = on_device ? *on_device : constant;
    u32 first = blockIdx.x * actions, lane = threadIdx.x & 31, warps = (blockDim.x + 31) / 32;
    float best = -__int_as_float(0x7f800000);
    u32 index = 0x7fffffff;
    auto noise = [&](u32 bits) { return -temperature * logf(-logf(open_unit(bits))); };
    auto four = [&](u32 c) {
        uint4 bits = philox(draw, (first + c) / 4);
        return make_float4(noise(bits.x), noise(bits.y), noise(bits.z), noise(bits.w));
    };
    if (actions % 4 == 0) {
        u32 mine = 4 * threadIdx.x;
        float4 n = four(mine);
        await_earlier();
        for (u32 c = mine; c < actions; c += 4 * blockDim.x) {
            if (c > mine) n = four(c);
            float4 l = get4(logits, first + c);
            take_larger(best, index, l.x + n.x, c);
            take_larger(best, index, l.y + n.y, c + 1);
            take_larger(best, index, l.z + n.z, c + 2);
            take_larger(best, index, l.w + n.w, c + 3);
        }
    } else {
        await_earlier();
        for (u32 c = threadIdx.x; c < actions; c += blockDim.x) take_larger(best, index, get(logits, first + c) + noise(random_bits(draw, first + c)), c);
    }
    take_largest(best, index);
    if (lane == 0) {
        bests[threadIdx.x / 32] = best;
        indices[threadIdx.x / 32] = index;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 w = 1; w < warps; w++) take_larger(best, index, bests[w], indices[w]);
        out[blockIdx.x] = (int)(index < actions ? index : 0);
        if (copies) copies[blockIdx.x * stride] = out[blockIdx.x];
    }
}

// The nearest codebook entry of each row: the least |e|^2 - 2 y.e, the first of equals.
extern "C" __global__ void nearest(int* tokens, const float* products, const float* codebook, float* lengths, u32 rows, u32 entries, u32 width, int phase) {
    u32 lane = threadIdx.x & 31;
    if (phase == 0) {
        WARP_ROWS(entry, entries) {
            float sum = 0.0f;
            for (u32 c = lane; c < width; c += 32) {
                float v = codebook[(size_t)entry * width + c];
                sum += v * v;
            }
            sum = warp_sum(sum);
            if (lane == 0) lengths[entry] = sum;
        }
        return;
    }
    WARP_ROWS(row, rows) {
        float least = __int_as_float(0x7f800000);
        u32 index = 0;
        for (u32 c = lane; c < entries; c += 32) {
            float v = lengths[c] - 2.0f * products[(size_t)row * entries + c];
            if (v < least) {
                least = v;
                index = c;
            }
        }
        for (int o = 16; o; o >>= 1) {
            float v = __shfl_xor_sync(~0u, least, o);
            u32 k = __shfl_xor_sync(~0u, index, o);
            if (v < least || (v == least && k < index)) {
                least = v;
                index = k;
            }
        }
        if (lane == 0) tokens[row] = (int)index;
    }
}

// embedded <- codebook[token], difference <- embedded - y, parts [blocks] of its squares.
extern "C" __global__ void quantise(View embedded, float* difference, View y, const float* codebook, const int* tokens, double* parts, u32 width, u32 n) {
    double sum = 0.0;
    EACH(i, n) {
        float e = codebook[(size_t)tokens[i / width] * width + i % width], d = e - get(y, i);
        put(embedded, i, e);
        difference[i] = d;
        sum += (double)d * d;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// dy (+)= straight - beta * pull * difference, with pull = 2 * commitment / elements
extern "C" __global__ void quantise_gradient(View dy, View straight, const float* commitment, const float* difference, float beta, u32 n, int add) {
    float pull = commitment ? 2.0f * commitment[0] / (float)n : 0.0f;
    EACH(i, n) {
        float value = (straight.p ? get(straight, i) : 0.0f) - beta * pull * difference[i];
        put_or_add(dy, i, value, add);
    }
}

// table (+)= pull * sum over splits, pull = 2 * commitment / elements
extern "C" __global__ void codebook_gradient(View table, const float* parts, const float* commitment, u32 elements, u32 splits, u32 n, int add) {
    float pull = commitment ? 2.0f * commitment[0] / (float)elements : 0.0f;
    EACH(i, n) {
        float sum = 0.0f;
        for (u32 s = 0; s < splits; s++) sum += parts[(size_t)s * n + i];
        put_or_add(table, i, pull * sum, add);
    }
}
