// One result per element.

// out (+)= x, of any types
extern "C" __global__ void copy(View out, View x, u32 n, int add) {
    if (n % 4 == 0) EACH(j, n / 4) put4_or_add(out, 4 * j, get4(x, 4 * j), add);
    else EACH(i, n) put_or_add(out, i, get(x, i), add);
}

// The same for parts that do not start at a multiple of four elements.
extern "C" __global__ void copy_at(View out, u32 to, View x, u32 from, u32 n, int add) {
    EACH(i, n) put_or_add(out, to + i, get(x, from + i), add);
}

#define BINARY(name, formula)                                                      \
    extern "C" __global__ void name(View out, View x, View y, u32 n) {             \
        if (n % 4 == 0) EACH(j, n / 4) {                                           \
            float4 a = get4(x, 4 * j), b = get4(y, 4 * j), o;                      \
            FOUR({ float x = part<e>(a), y = part<e>(b); part<e>(o) = (formula); }) \
            put4(out, 4 * j, o);                                                   \
        }                                                                          \
        else EACH(i, n) {                                                          \
            float x_ = get(x, i), y_ = get(y, i);                                  \
            { float x = x_, y = y_; put(out, i, (formula)); }                      \
        }                                                                          \
    }

BINARY(add, x + y)
BINARY(mul, x * y)

// d (+)= dy * other
extern "C" __global__ void mul_gradient(View d, View dy, View other, u32 n, int add) {
    EACH(i, n) put_or_add(d, i, get(dy, i) * get(other, i), add);
}

#define UNARY(name, formula)                                                          \
    extern "C" __global__ void name(View out, View in, u32 n, float p, float q) {     \
        if (n % 4 == 0) EACH(j, n / 4) {                                              \
            float4 a = get4(in, 4 * j), o;                                            \
            FOUR({ float x = part<e>(a); part<e>(o) = (formula); })                   \
            put4(out, 4 * j, o);                                                      \
        }                                                                             \
        else EACH(i, n) { float x = get(in, i); put(out, i, (formula)); }             \
    }

UNARY(affine, x * p + q)
UNARY(clamp_values, fminf(fmaxf(x, p), q))
UNARY(relu_values, relu(x))
UNARY(gelu_values, gelu(x))

// dy <- dy * slope(y), in place
#define SLOPE(name, formula)                                                              \
    extern "C" __global__ void name(View dy, View saved, u32 n) {                         \
        if (n % 4 == 0) EACH(j, n / 4) {                                                  \
            float4 d = get4(dy, 4 * j), s = get4(saved, 4 * j);                           \
            FOUR({ float g = part<e>(d), y = part<e>(s); part<e>(d) = (formula); })       \
            put4(dy, 4 * j, d);                                                           \
        }                                                                                 \
        else EACH(i, n) { float g = get(dy, i), y = get(saved, i); put(dy, i, (formula)); } \
    }

SLOPE(relu_gradient, y > 0.0f ? g : 0.0f)
SLOPE(gelu_gradient, g * gelu_slope(y))

// x + bias per column, + residual, relu; in place
extern "C" __global__ void finish_rows(View x, const float* bias, View residual, u32 n, u32 columns, int with_relu) {
    if (columns % 4 == 0) EACH(j, n / 4) {
        float4 v = get4(x, 4 * j);
        if (bias) {
            float4 b = *(const float4*)(bias + 4 * j % columns);
            v.x += b.x; v.y += b.y; v.z += b.z; v.w += b.w;
        }
        if (residual.p) {
            float4 r = get4(residual, 4 * j);
            v.x += r.x; v.y += r.y; v.z += r.z; v.w += r.w;
        }
        if (with_relu) FOUR({ part<e>(v) = relu(part<e>(v)); })
        put4(x, 4 * j, v);
    }
    else EACH(i, n) {
        float v = get(x, i);
        if (bias) v += bias[i % columns];
        if (residual.p) v += get(residual, i);
        put(x, i, with_relu ? relu(v) : v);
    }
}

// A thread per element of a row: x [rows, n] -> |x - mean over rows|.
extern "C" __global__ void deviation(View out, View x, u32 rows, u32 n) {
    EACH(i, n) {
        float sum = 0.0f;
        for (u32 row = 0; row < rows; row++) sum += get(x, (size_t)row * n + i);
        float mean = sum / (float)rows;
        for (u32 row = 0; row < rows; row++) put(out, (size_t)row * n + i, fabsf(get(x, (size_t)row * n + i) - mean));
    }
}

extern "C" __global__ void from_bytes(View out, const u8* x, u32 n, float scale, float shift) {
    if (n % 4 == 0) EACH(j, n / 4) {
        uchar4 v = *(const uchar4*)(x + 4 * j);
        put4(out, 4 * j, make_float4(v.x * scale + shift, v.y * scale + shift, v.z * scale + shift, v.w * scale + shift));
    }
    else EACH(i, n) put(out, i, (float)x[i] * scale + shift);
}

extern "C" __global__ void from_integers(View out, const int* x, u32 n, float scale, float shift) {
    EACH(i, n) put(out, i, (float)x[i] * scale + shift);
}

// out (+)= x * mask / (1 - rate) + residual
extern "C" __global__ void dropout(View out, View x, View residual, u32 n, float rate, const u32* state, u32 site, int add) {
    Draw d = draw_of(state, site);
    float keep = 1.0f / (1.0f - rate);
    EACH(j, (n + 3) / 4) {
        uint4 bits = philox(d, (u32)j);
        if (4 * j + 4 <= n && n % 4 == 0) {
            float4 v = get4(x, 4 * j);
            v.x = unit(bits.x) >= rate ? v.x * keep : 0.0f;
            v.y = unit(bits.y) >= rate ? v.y * keep : 0.0f;
            v.z = unit(bits.z) >= rate ? v.z * keep : 0.0f;
            v.w = unit(bits.w) >= rate ? v.w * keep : 0.0f;
            if (residual.p) {
                float4 r = get4(residual, 4 * j);
                v.x += r.x; v.y += r.y; v.z += r.z; v.w += r.w;
            }
            put4_or_add(out, 4 * j, v, add);
        } else {
            u32 four[4] = {bits.x, bits.y, bits.z, bits.w};
            for (int e = 0; e < 4 && 4 * j + e < n; e++) {
                size_t i = 4 * j + e;
                float v = unit(four[e]) >= rate ? get(x, i) * keep : 0.0f;
                if (residual.p) v += get(residual, i);
                put_or_add(out, i, v, add);
            }
        }
    }
}

// Block o of `part` elements: out[o * out_stride + to ..] (+)= x[o * x_stride + from ..]
extern "C" __global__ void copy_blocks(View out, u32 to, u32 out_stride, View x, u32 from, u32 x_stride, u32 part, u32 n, int add) {
    EACH(i, n) {
        size_t o = i / part, r = i % part;
        put_or_add(out, o * out_stride + to + r, get(x, o * x_stride + from + r), add);
    }
}

// The same for whole words of 1 or 4 bytes.
extern "C" __global__ void copy_blocks_bytes(u8* out, u32 to, u32 out_stride, const u8* x, u32 from, u32 x_stride, u32 part, u32 n) {
    EACH(i, n) {
        size_t o = i / part, r = i % part;
        out[o * out_stride + to + r] = x[o * x_stride + from + r];
    }
}

extern "C" __global__ void copy_blocks_words(u32* out, u32 to, u32 out_stride, const u32* x, u32 from, u32 x_stride, u32 part, u32 n) {
    EACH(i, n) {
        size_t o = i / part, r = i % part;
        out[o * out_stride + to + r] = x[o * x_stride + from + r];
    }
}

// Rows of `row` elements named by `indices`, zeros for those outside the table.
extern "C" __global__ void gather(View out, View table, const int* indices, u32 row, u32 rows, u32 n) {
    if (row % 4 == 0) EACH(j, n / 4) {
        size_t i = 4 * j;
        u32 index = (u32)indices[i / row];
        put4(out, i, index < rows ? get4(table, (size_t)index * row + i % row) : make_float4(0, 0, 0, 0));
    }
    else EACH(i, n) {
        u32 index = (u32)indices[i / row];
        put(out, i, index < rows ? get(table, (size_t)index * row + i % row) : 0.0f);
    }
}

// The same for indices that must be in the table.
extern "C" __global__ void look_up(View out, View table, const int* indices, u32 row, u32 rows, u32 n, int op, int* fault) {
    u32 each = row % 4 == 0 ? 4 : 1;
    EACH(j, n / each) {
        u32 i = j * each, index = (u32)indices[i / row];
        if (index >= rows && i % row == 0) report(fault, INDEX_OUT_OF_RANGE, op, (int)index, (int)(i / row), (int)rows);
        if (each == 4) put4(out, i, index < rows ? get4(table, (size_t)index * row + i % row) : make_float4(0, 0, 0, 0));
        else put(out, i, index < rows ? get(table, (size_t)index * row + i % row) : 0.0f);
    }
}

extern "C" __global__ void gather_bytes(u8* out, const u8* table, const int* indices, u32 row, u32 rows, u32 n) {
    if (row % 16 == 0) EACH(j, n / 16) {
        u32 i = 16 * j, index = (u32)indices[i / row];
        *(uint4*)(out + i) = index < rows ? *(const uint4*)(table + (size_t)index * row + i % row) : make_uint4(0, 0, 0, 0);
    }
    else EACH(i, n) {
        u32 index = (u32)indices[i / row];
        out[i] = index < rows ? table[(size_t)index * row + i % row] : 0;
    }
}

extern "C" __global__ void gather_words(u32* out, const u32* table, const int* indices, u32 row, u32 rows, u32 n) {
    EACH(i, n) {
        u32 index = (u32)indices[i / row];
        out[i] = index < rows ? table[(size_t)index * row + i % row] : 0;
    }
}

// x[b, t] + table[start + t]
extern "C" __global__ void add_positions(View out, View x, View table, u32 start, u32 period, u32 n) {
    if (start % 4 == 0 && period % 4 == 0) EACH(j, n / 4) {
        u32 i = 4 * j;
        float4 v = get4(x, i), t = get4(table, start + i % period);
        put4(out, i, make_float4(v.x + t.x, v.y + t.y, v.z + t.z, v.w + t.w));
    }
    else EACH(i, n) put(out, i, get(x, i) + get(table, start + i % period));
}

// ---- finite scalar quantisation: numbers to the nearest of `count` levels, which are the digits of tokens ----

extern "C" __global__ void fsq(View levels, int* tokens, View y, u32 count, u32 channels, u32 rows) {
    float top = (float)(count - 1);
    EACH(row, rows) {
        int number = 0, place = 1;
        for (u32 c = 0; c < channels; c++) {
            float digit = fminf(fmaxf(floorf((tanhf(get(y, row * channels + c)) + 1.0f) * 0.5f * top + 0.5f), 0.0f), top);
            put(levels, row * channels + c, 2.0f * digit / top - 1.0f);
            number += (int)digit * place;
            place *= (int)count;
        }
        tokens[row] = number;
    }
}

extern "C" __global__ void fsq_levels(View levels, const int* tokens, u32 count, u32 channels, u32 rows) {
    EACH(row, rows) {
        u32 rest = (u32)tokens[row];
        for (u32 c = 0; c < channels; c++) {
            put(levels, row * channels + c, 2.0f * (float)(rest % count) / (float)(count - 1) - 1.0f);
            rest /= count;
        }
    }
}

extern "C" __global__ void fsq_gradient(View dy, View d_levels, View y, u32 n, int add) {
    EACH(i, n) {
        float bounded = tanhf(get(y, i));
        put_or_add(dy, i, get(d_levels, i) * (1.0f - bounded * bounded), add);
    }
}

extern "C" __global__ void select_rows(View out, const int* mask, View yes, View no, u32 row, u32 n) {
    EACH(i, n) put(out, i, mask[i / row] ? get(yes, i) : get(no, i));
}

extern "C" __global__ void mask_labels(int* out, const int* labels, const int* mask, u32 each, u32 n) {
    EACH(i, n) out[i] = mask[i / each] ? labels[i] : -1;
}

extern "C" __global__ void shift_labels(int* out, const int* labels, u32 time, u32 n) {
    EACH(i, n) out[i] = i % time + 1 < time ? labels[i + 1] : -1;
}

extern "C" __global__ void lambda_returns(float* out, View rewards, const int* ends, View values, u32 time, u32 rows, float gamma, float lambda) {
    EACH(row, rows) {
        size_t at = row * time;
        float next = get(values, at + time - 1);
        out[at + time - 1] = next;
        for (int t = (int)time - 2; t >= 0; t--) {
            float blend = (1.0f - lambda) * get(values, at + t + 1) + lambda * next;
            next = get(rewards, at + t) + (ends[at + t] ? 0.0f : gamma * blend);
            out[at + t] = next;
        }
    }
}

extern "C" __global__ void alive(float* out, const int* ends, u32 time, u32 rows) {
    EACH(row, rows) {
        float value = 1.0f;
        for (u32 t = 0; t < time; t++) {
            out[row * time + t] = value;
            if (ends[row * time + t]) value = 0.0f;
        }
    }
}

// Gates i, f, g, o. `activated` comes in as the hidden state's share and leaves as the activated gates.
extern "C" __global__ void lstm_step(View gates, View before, float* activated, const float* bias, View hidden, View cell, u32 width, u32 n) {
    EACH(at, n) {
        size_t b = at / width, j = at % width, g0 = b * 4 * width + j;
        float i = sigmoid(activated[g0] + bias[j] + get(gates, g0));
        float f = sigmoid(activated[g0 + width] + bias[width + j] + get(gates, g0 + width));
        float g = tanhf(activated[g0 + 2 * width] + bias[2 * width + j] + get(gates, g0 + 2 * width));
        float o = sigmoid(activated[g0 + 3 * width] + bias[3 * width + j] + get(gates, g0 + 3 * width));
        activated[g0] = i;
        activated[g0 + width] = f;
        activated[g0 + 2 * width] = g;
        activated[g0 + 3 * width] = o;
        float c = f * get(before, at) + i * g;
        put(cell, at, c);
        put(hidden, at, o * tanhf(c));
    }
}

extern "C" __global__ void lstm_gradient(const float* activated, View before, View after, View dh, View dc, View d_gates, View d_cell, u32 width, u32 n) {
    EACH(at, n) {
        size_t b = at / width, j = at % width, g0 = b * 4 * width + j;
        float i = activated[g0], f = activated[g0 + width], g = activated[g0 + 2 * width], o = activated[g0 + 3 * width];
        float t = tanhf(get(after, at));
        float dhv = dh.p ? get(dh, at) : 0.0f;
        float d = (dc.p ? get(dc, at) : 0.0f) + dhv * o * (1.0f - t * t);
        put(d_gates, g0, d * g * i * (1.0f - i));
        put(d_gates, g0 + width, d * get(before, at) * f * (1.0f - f));
        put(d_gates, g0 + 2 * width, d * i * (1.0f - g * g));
        put(d_gates, g0 + 3 * width, dhv * t * o * (1.0f - o));
        put(d_cell, at, d * f);
    }
}

// Rows of x to the rows of a table named by `indices`; those outside are left out.
extern "C" __global__ void scatter_rows(View table, View x, const int* indices, u32 row, u32 rows, u32 n) {
    if (row % 4 == 0) EACH(j, n / 4) {
        u32 i = 4 * j, index = (u32)indices[i / row];
        if (index < rows) put4(table, (size_t)index * row + i % row, get4(x, i));
    }
    else EACH(i, n) {
        u32 index = (u32)indices[i / row];
        if (index < rows) put(table, (size_t)index * row + i % row, get(x, i));
    }
}

extern "C" __global__ void scatter_rows_words(u32* table, const u32* x, const int* indices, u32 row, u32 rows, u32 n) {
    EACH(i, n) {
        u32 index = (u32)indices[i / row];
        if (index < rows) table[(size_t)index * row + i % row] = x[i];
    }
}

extern "C" __global__ void scatter_rows_bytes(u8* table, const u8* x, const int* indices, u32 row, u32 rows, u32 n) {
    if (row % 16 == 0) EACH(j, n / 16) {
        u32 i = 16 * j, index = (u32)indices[i / row];
        if (index < rows) *(uint4*)(table + (size_t)index * row + i % row) = *(const uint4*)(x + i);
    }
    else EACH(i, n) {
        u32 index = (u32)indices[i / row];
        if (index < rows) table[(size_t)index * row + i % row] = x[i];
    }
}

// ---- faults ----

extern "C" __global__ void check_indices(const int* x, u32 n, int low, int limit, int op, int* fault) {
    EACH(i, n) if (x[i] < low || x[i] >= limit) report(fault, INDEX_OUT_OF_RANGE, op, x[i], (int)i, limit);
}

extern "C" __global__ void check_finite(const float* x, int op, int* fault) {
    if (!isfinite(*x)) report(fault, NOT_FINITE, op, __float_as_int(*x), 0, 0);
}
