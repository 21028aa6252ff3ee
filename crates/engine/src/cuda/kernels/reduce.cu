// One number from many, in two passes with a fixed order: every block one part, single numbers in f64, then one block over the parts.

extern "C" __global__ void sum(View x, View weights, double* parts, u32 n) {
    double total = 0.0, weight = 0.0;
    EACH(i, n) {
        double w = weights.p ? get(weights, i) : 1.0;
        total += w * get(x, i);
        weight += w;
    }
    total = block_sum(total);
    weight = block_sum(weight);
    if (threadIdx.x == 0) {
        parts[2 * blockIdx.x] = total;
        parts[2 * blockIdx.x + 1] = weight;
    }
}

// out <- total / weight, 0 when the weights sum to 0; counted <- weight
extern "C" __global__ void mean_of_parts(const double* parts, u32 count, float* out, float* counted) {
    double total = 0.0, weight = 0.0;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        total += parts[2 * i];
        weight += parts[2 * i + 1];
    }
    total = block_sum(total);
    weight = block_sum(weight);
    if (threadIdx.x == 0) {
        out[0] = weight == 0.0 ? 0.0f : (float)(total / weight);
        counted[0] = (float)weight;
    }
}

// out <- sum of the parts * scale
extern "C" __global__ void sum_of_parts(const double* parts, u32 count, double scale, float* out) {
    double total = 0.0;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) total += parts[i];
    total = block_sum(total);
    if (threadIdx.x == 0) out[0] = (float)(total * scale);
}

extern "C" __global__ void mean_gradient(View dx, View weights, const float* dy, const float* total, u32 n, int add) {
    float share = total[0] == 0.0f ? 0.0f : dy[0] / total[0];
    EACH(i, n) put_or_add(dx, i, share * (weights.p ? get(weights, i) : 1.0f), add);
}

extern "C" __global__ void pixel_error(View a, View b, double* parts, u32 n, int squared) {
    float sum = 0.0f;
    if (n % 4 == 0) EACH(j, n / 4) {
        float4 x = get4(a, 4 * j), y = get4(b, 4 * j);
        FOUR({ float d = part<e>(x) - part<e>(y); sum += squared ? d * d : fabsf(d); })
    }
    else EACH(i, n) {
        float d = get(a, i) - get(b, i);
        sum += squared ? d * d : fabsf(d);
    }
    double total = block_sum((double)sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

extern "C" __global__ void pixel_error_gradient(View dx, View x, View y, const float* dy, u32 n, int squared, int add) {
    float weight = dy[0] / (float)n;
    auto slope = [&](float d) { return squared ? 2.0f * d : d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d; };
    if (n % 4 == 0) EACH(j, n / 4) {
        float4 a = get4(x, 4 * j), b = get4(y, 4 * j);
        FOUR({ part<e>(a) = weight * slope(part<e>(a) - part<e>(b)); })
        put4_or_add(dx, 4 * j, a, add);
    }
    else EACH(i, n) put_or_add(dx, i, weight * slope(get(x, i) - get(y, i)), add);
}

// ---- sums over rows: every block one part per column, then one kernel over the parts of many parameters ----

template <u32 EACH> __device__ __forceinline__ void add_unit(float (&sums)[EACH], const uint4& unit) {
    if constexpr (EACH == 8) {
        float v[8];
        widen_unit(v, unit);
#pragma unroll
        for (u32 c = 0; c < 8; c++) sums[c] += v[c];
    } else {
        sums[0] += __uint_as_float(unit.x);
        sums[1] += __uint_as_float(unit.y);
        sums[2] += __uint_as_float(unit.z);
        sums[3] += __uint_as_float(unit.w);
    }
}

// Rows of whole units of 16 bytes. A thread keeps to its unit; the rest of the block has other rows.
template <u32 EACH> __device__ void add_units(const uint4* x, float* parts, u32 rows, u32 columns, float* shared) {
    constexpr u32 AT_ONCE = 4;
    u32 first = (u32)((u64)rows * blockIdx.x / gridDim.x), last = (u32)((u64)rows * (blockIdx.x + 1) / gridDim.x);
    u32 units = columns / EACH, here = min(units, blockDim.x), lanes = blockDim.x / here;
    u32 unit = blockIdx.y * blockDim.x + threadIdx.x % here, row = first + threadIdx.x / here;
    float sums[EACH] = {};
    if (unit < units) {
        x += unit;
        for (; row + (AT_ONCE - 1) * lanes < last; row += AT_ONCE * lanes) {
            uint4 w[AT_ONCE];
#pragma unroll
            for (u32 k = 0; k < AT_ONCE; k++) w[k] = load_words(x + (size_t)(row + k * lanes) * units);
#pragma unroll
            for (u32 k = 0; k < AT_ONCE; k++) add_unit(sums, w[k]);
        }
        for (; row < last; row += lanes) add_unit(sums, load_words(x + (size_t)row * units));
    }
#pragma unroll
    for (u32 c = 0; c < EACH; c += 4) *(float4*)(shared + threadIdx.x * EACH + c) = make_float4(sums[c], sums[c + 1], sums[c + 2], sums[c + 3]);
    __syncthreads();
    u32 start = blockIdx.y * blockDim.x * EACH;
    for (u32 c = threadIdx.x; c < here * EACH && start + c < columns; c += blockDim.x) {
        float total = 0.0f;
        for (u32 l = 0; l < lanes; l++) total += shared[l * here * EACH + c];
        parts[(size_t)blockIdx.x * columns + start + c] = total;
    }
}

// parts [blocks, columns]: sums over each block's rows. At most 256 threads: a multiple of a row's units of 16 bytes, or of its columns.
extern "C" __global__ void __launch_bounds__(256) column_sums(View x, float* parts, u32 rows, u32 columns) {
    __shared__ __align__(16) float shared[256 * 8];
    if (x.bf16 && columns % 8 == 0) return add_units<8>((const uint4*)x.p, parts, rows, columns, shared);
    if (!x.bf16 && columns % 4 == 0) return add_units<4>((const uint4*)x.p, parts, rows, columns, shared);
    u32 first = (u32)((u64)rows * blockIdx.x / gridDim.x), last = (u32)((u64)rows * (blockIdx.x + 1) / gridDim.x);
    u32 here = min(columns, blockDim.x), lanes = blockDim.x / here, column = blockIdx.y * blockDim.x + threadIdx.x % here;
    float sum = 0.0f;
    if (column < columns)
        for (u32 row = first + threadIdx.x / here; row < last; row += lanes) sum += get(x, (size_t)row * columns + column);
    shared[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x < here && column < columns) {
        for (u32 l = 1; l < lanes; l++) sum += shared[l * here + threadIdx.x];
        parts[(size_t)blockIdx.x * columns + column] = sum;
    }
}

// link: whether to add to what is there, whether that is bf16, whether the sum is part of an earlier entry's; and from bit 8 on the next entry
// with the same result, 0 for none.
struct Join {
    const float* from;
    void* to;
    u32 count, stride, columns, link;
};
struct Joins {
    Join all[120];
};

// to [columns] (+)= the sum of `count` rows, `stride` apart, with those of the entries linked to it. Grid (columns / 32 or fewer, entries), 512
// threads: 32 columns, 16 shares of the rows.
extern "C" __global__ void __launch_bounds__(512) join(const __grid_constant__ Joins joins) {
    __shared__ float sums[16][32];
    const Join& head = joins.all[blockIdx.y];
    if (head.link & 4) return;
    u32 place = threadIdx.x & 31, lane = threadIdx.x >> 5;
    for (u32 start = 32 * blockIdx.x; start < head.columns; start += 32 * gridDim.x) {
        u32 c = start + place, entry = blockIdx.y;
        float sum = 0.0f;
        do {
            const Join& part = joins.all[entry];
            const float* from = part.from + c;
            u32 count = c < head.columns ? part.count : 0, stride = part.stride;
#pragma unroll 8
            for (u32 row = lane; row < count; row += 16) sum += from[(size_t)row * stride];
            entry = part.link >> 8;
        } while (entry);
        sums[lane][place] = sum;
        __syncthreads();
        if (lane == 0 && c < head.columns) {
            for (u32 l = 1; l < 16; l++) sum += sums[l][place];
            View to = {head.to, head.link >> 1 & 1};
            put_or_add(to, c, sum, head.link & 1);
        }
        __syncthreads();
    }
}

// ---- Adam ----

extern "C" __global__ void squares(const float* g, double* parts, u32 n) {
    float sum = 0.0f;
    EACH(i, n) sum += g[i] * g[i];
    double total = block_sum((double)sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

// factors [clip, step, root, go, keep]; nothing moves when the norm is not finite or something was wrong before.
extern "C" __global__ void adam_factors(const double* parts, u32 count, int* updates, float* norm, float* factors, const float* rate, float beta1, float beta2, float weight_decay, float max_norm, int op, int* fault) {
    double total = 0.0;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) total += parts[i];
    total = block_sum(total);
    if (threadIdx.x == 0) {
        float length = (float)sqrt(total);
        norm[0] = length;
        factors[3] = 0.0f;
        if (!isfinite(length)) report(fault, NOT_FINITE, op, __float_as_int(length), 0, 0);
        if (*(volatile int*)fault) return;
        int step = ++updates[0];
        factors[0] = fminf(max_norm / (length + 1e-6f), 1.0f);
        factors[1] = (float)((double)rate[0] / (1.0 - pow((double)beta1, (double)step)));
        factors[2] = (float)(1.0 / sqrt(1.0 - pow((double)beta2, (double)step)));
        factors[3] = 1.0f;
        // Rounded as on the host, which has no fused multiply-add here.
        factors[4] = __fsub_rn(1.0f, __fmul_rn(rate[0], weight_decay));
    }
}

// copy: the same in bf16, if there is one. decayed: one byte for every 16 parameters.
extern "C" __global__ void adam(float* p, u16* copy, const float* g, float* m, float* v, const u8* decayed, const float* factors, float beta1, float beta2, float epsilon, u32 n) {
    if (factors[3] == 0.0f) return;
    float clip = factors[0], step = factors[1], root = factors[2], keep = factors[4];
    EACH(i, n) {
        float grad = g[i] * clip;
        float first = beta1 * m[i] + (1.0f - beta1) * grad;
        float second = beta2 * v[i] + (1.0f - beta2) * grad * grad;
        m[i] = first;
        v[i] = second;
        float value = p[i] * (decayed[i / 16] ? keep : 1.0f) - step * first / (sqrtf(second) * root + epsilon);
        p[i] = value;
        if (copy) copy[i] = narrow(value);
    }
}
