// One number from many, in two passes with a fixed order: every block one part in f64, then one block over the parts.

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
    EACH(i, n) {
        float d = get(x, i) - get(y, i);
        float slope = squared ? 2.0f * d : d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d;
        put_or_add(dx, i, weight * slope, add);
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
