// Frames token by token, row by row: what a token is told of those before it, and the draws.

// A thread per channel of a frame: x [frames, tokens, 3 * width] -> out [frames, tokens, width].
extern "C" __global__ void earlier(View out, View x, u32 tokens, u32 side, u32 width, u32 n) {
    EACH(i, n) {
        size_t frame = (size_t)(i / width) * tokens, c = i % width;
        float sum = 0.0f;
        for (u32 k = 0; k < tokens; k++) {
            size_t row = (frame + k) * 3;
            float v = sum;
            if (k % side) v += get(x, (row - 3 + 1) * width + c);
            if (k >= side) v += get(x, (row - 3 * side + 2) * width + c);
            put(out, (frame + k) * width + c, v);
            sum += get(x, row * width + c);
        }
    }
}

extern "C" __global__ void earlier_gradient(View dx, View dy, u32 tokens, u32 side, u32 width, u32 n, int add) {
    EACH(i, n) {
        size_t frame = (size_t)(i / width) * tokens, c = i % width;
        float sum = 0.0f;
        for (u32 k = tokens; k-- > 0;) {
            size_t row = (frame + k) * 3;
            put_or_add(dx, row * width + c, sum, add);
            put_or_add(dx, (row + 1) * width + c, (k + 1) % side && k + 1 < tokens ? get(dy, (frame + k + 1) * width + c) : 0.0f, add);
            put_or_add(dx, (row + 2) * width + c, k + side < tokens ? get(dy, (frame + k + side) * width + c) : 0.0f, add);
            sum += get(dy, (frame + k) * width + c);
        }
    }
}

// Widest sums over earlier tokens, and entries whose weights a block keeps in registers: two per thread.
#define WIDEST 64
#define KEPT 512

__device__ __forceinline__ void weights_of(float (&w)[2][WIDEST], View weight, u32 entry, u32 width, u32 entries) {
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
#pragma unroll
        for (u32 c = 0; c < WIDEST; c++) {
            u32 row = entry + i * 256;
            w[i][c] = row < entries && c < width ? get(weight, (size_t)row * width + c) : 0.0f;
        }
    }
}

// A block of 256 threads per frame; thread c has channel c of the sums over earlier tokens. Shared: the tokens drawn so far.
extern "C" __global__ void __launch_bounds__(256) draw_frame(int* out, View logits, View alone, View told, View table, View weight, u32 tokens, u32 side, u32 width, u32 entries, const u32* state, u32 site) {
    extern __shared__ int drawn[];
    __shared__ __align__(16) float active[WIDEST];
    __shared__ float bests[8];
    __shared__ u32 indices[8];
    const u32 thread = threadIdx.x, first = blockIdx.x * tokens;
    const Draw draw = draw_of(state, site);
    float w[2][WIDEST], sum = 0.0f;
    weights_of(w, weight, thread, width, entries);
    for (u32 k = 0; k < tokens; k++) {
        if (thread < WIDEST) {
            float v = 0.0f;
            if (thread < width) {
                v = get(told, (size_t)(first + k) * width + thread) + sum;
                if (k % side) v += get(table, ((size_t)drawn[k - 1] * 3 + 1) * width + thread);
                if (k >= side) v += get(table, ((size_t)drawn[k - side] * 3 + 2) * width + thread);
            }
            active[thread] = relu(v);
        }
        float best = -__int_as_float(0x7f800000);
        u32 index = 0x7fffffff;
        for (u32 start = 0; start < entries; start += KEPT) {
            // What the tokens before it do not change comes before the barrier.
            float score[2], noise[2];
            size_t at[2];
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                u32 entry = start + i * 256 + thread;
                at[i] = (size_t)(first + k) * entries + min(entry, entries - 1);
                score[i] = get(alone, at[i]);
                noise[i] = -logf(-logf(open_unit(random_bits(draw, (u32)at[i]))));
            }
            if (entries > KEPT) weights_of(w, weight, start + thread, width, entries);
            if (start == 0) __syncthreads();
#pragma unroll
            for (u32 c = 0; c < WIDEST; c += 4) {
                float4 x = *(const float4*)(active + c);
#pragma unroll
                for (u32 i = 0; i < 2; i++) score[i] += w[i][c] * x.x + w[i][c + 1] * x.y + w[i][c + 2] * x.z + w[i][c + 3] * x.w;
            }
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                u32 entry = start + i * 256 + thread;
                if (entry >= entries) continue;
                if (logits.p) put(logits, at[i], score[i]);
                take_larger(best, index, score[i] + noise[i], entry);
            }
        }
        take_largest(best, index);
        if ((thread & 31) == 0) {
            bests[thread / 32] = best;
            indices[thread / 32] = index;
        }
        __syncthreads();
#pragma unroll
        for (u32 warp = 0; warp < 8; warp++) take_larger(best, index, bests[warp], indices[warp]);
        // Where no number was larger than another.
        if (index >= entries) index = 0;
        if (thread == 0) drawn[k] = out[first + k] = (int)index;
        if (thread < width) sum += get(table, (size_t)index * 3 * width + thread);
        __syncthreads();
    }
}
