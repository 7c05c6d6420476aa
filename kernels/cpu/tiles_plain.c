/* Any processor: 4 outputs a vector, in GCC's and Clang's vector extensions. On ARM with the dot
 * product extension these are its instructions.
 */
#include <stdint.h>
#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

typedef int32_t IntLanes __attribute__((vector_size(16)));
typedef uint32_t BitLanes __attribute__((vector_size(16)));
typedef uint16_t HalfLanes __attribute__((vector_size(16)));
typedef uint8_t ByteLanes __attribute__((vector_size(16)));
typedef uint16_t PairLanes __attribute__((vector_size(8)));
typedef float FloatLanes __attribute__((vector_size(16)));

#define TARGET
#define W 4
#define VI IntLanes
#define VF FloatLanes
#define LOAD(p) load(p)
#define SHR(v, n) ((IntLanes)((HalfLanes)(v) >> (n)))
#define SHL(v, n) ((IntLanes)((HalfLanes)(v) << (n)))
#define AND(v, byte) ((v) & set_int((byte) * 0x01010101))
#define OR(a, b) ((a) | (b))
#define LOOKUP(v, table) lookup(v, table)
#define DOT(sum, codes, x, wide) dot_bytes(sum, codes, x, wide)
#define TAKEN(about) ((about).zero == 128 ? 128 : 0)
#define LANE_BYTE(v, j) ((IntLanes)((BitLanes)(v) >> (8 * (j))) & set_int(255))
#define SET_I(i) set_int(i)
#define ADD_I(a, b) ((a) + (b))
#define TO_F(v) __builtin_convertvector(v, FloatLanes)
#define SET_F(f) set_float(f)
#define ADD_F(a, b) ((a) + (b))
#define SUB_F(a, b) ((a) - (b))
#define MUL_F(a, b) ((a) * (b))
#define FMA(a, b, c) ((a) * (b) + (c))
#define IS_FUSED 0
#define SUM_F(v) ((v)[0] + (v)[1] + (v)[2] + (v)[3])
#define STORE_SUMS(p, a, b, c, d) ((p)[0] = SUM_F(a), (p)[1] = SUM_F(b), (p)[2] = SUM_F(c), (p)[3] = SUM_F(d))
#define STORE_F(p, v) store_float(p, v)
#define LOAD_F16(p) load_f16(p)
#define SAME_F16(p) SET_F(from_f16(p))
#define LOAD_PAIRS(p) load_pairs(p)
#define FROM_E4M3(v, j) from_e4m3(v, j)
#define PICK(v, j, table) pick((IntLanes)((BitLanes)(v) >> (8 * (j))) & set_int(15), table)
#define LOAD_F32(p) ((FloatLanes)load((const uint8_t *)(p)))
#define LOAD_U8(p) ((FloatLanes){(p)[0], (p)[1], (p)[2], (p)[3]})
#define LOAD_I8(p) ((FloatLanes){(int8_t)(p)[0], (int8_t)(p)[1], (int8_t)(p)[2], (int8_t)(p)[3]})
#define LOAD_E8M0(p) ((FloatLanes){power_of((p)[0]), power_of((p)[1]), power_of((p)[2]), power_of((p)[3])})
#define LOAD_BF16(p) load_bf16(p)
#define MAX_F(a, b) choose((a) > (b), a, b)
#define MIN_F(a, b) choose((a) < (b), a, b)
#define DIV_F(a, b) ((a) / (b))
#define SQRT_F(v) square_root(v)
#define AS_I(v) ((IntLanes)(v))
#define AS_F(v) ((FloatLanes)(v))
#define SHL_I(v, n) ((v) << (n))
#define HIGH_16(v) ((v) & set_int((int32_t)0xffff0000))
#define PEAK_F(v) peak_of(v)
#define KEEP_I8(p, v) keep_i8(p, v)
#define KEEP_F16(p, v) keep_f16(p, v)
#define TILES tiles_plain

#include "numbers.h"

static inline IntLanes set_int(int32_t value) { return (IntLanes){value, value, value, value}; }

static inline void keep_i8(int8_t *to, IntLanes lanes) {
  for (int i = 0; i < 4; i++) to[i] = (int8_t)lanes[i];
}

static inline FloatLanes set_float(float value) { return (FloatLanes){value, value, value, value}; }

static inline IntLanes load(const uint8_t *place) {
  IntLanes found;
  __builtin_memcpy(&found, place, sizeof found);
  return found;
}

static inline IntLanes load_pairs(const uint8_t *place) {
  IntLanes found;
  __builtin_memcpy(&found, place, 8);
  __builtin_memcpy((uint8_t *)&found + 8, place + 32, 8);
  return found;
}

static inline FloatLanes from_e4m3(IntLanes codes, const int j) {
  PairLanes pairs;
  __builtin_memcpy(&pairs, (uint8_t *)&codes + 8 * (j / 2), 8);
  const BitLanes code = __builtin_convertvector(pairs, BitLanes) >> (8 * (j % 2)), size = code & 0x7f;
  const FloatLanes normal = (FloatLanes)((size << 20) + (112 << 23)), small = normal + normal - 6.103515625e-5f; /* 2^-14 */
  const BitLanes is_small = (BitLanes)(size < 8), is_nan = (BitLanes)(size == 0x7f);
  const BitLanes bits = ((BitLanes)small & is_small) | ((BitLanes)normal & ~is_small);
  return (FloatLanes)(bits | (is_nan & 0x7fc00000) | (code & 0x80) << 24);
}

static inline FloatLanes pick(IntLanes index, const float *table) {
  return (FloatLanes){table[index[0]], table[index[1]], table[index[2]], table[index[3]]};
}

static inline IntLanes lookup(IntLanes codes, const uint8_t *table) {
#if defined(__ARM_FEATURE_DOTPROD)
  return (IntLanes)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)codes);
#else
  ByteLanes bytes = (ByteLanes)codes;
  for (int i = 0; i < 16; i++) bytes[i] = table[bytes[i]];
  return (IntLanes)bytes;
#endif
}

static inline IntLanes dot_bytes(IntLanes sum, IntLanes codes, IntLanes x, const int wide) {
  if (wide) codes ^= set_int((int32_t)0x80808080);
#if defined(__ARM_FEATURE_DOTPROD)
  return (IntLanes)vdotq_s32((int32x4_t)sum, (int8x16_t)codes, (int8x16_t)x);
#else
  for (int j = 0; j < 4; j++) /* Byte j of each lane, with its sign. */
    sum += (((IntLanes)((BitLanes)codes << (24 - 8 * j))) >> 24) * (((IntLanes)((BitLanes)x << (24 - 8 * j))) >> 24);
  return sum;
#endif
}

static inline void store_float(float *place, FloatLanes value) { __builtin_memcpy(place, &value, sizeof value); }

static inline FloatLanes load_f16(const uint8_t *place) {
  FloatLanes found;
  for (int i = 0; i < 4; i++) found[i] = from_f16(place + 2 * i);
  return found;
}

static inline FloatLanes load_bf16(const uint8_t *place) {
  BitLanes bits;
  for (int i = 0; i < 4; i++) bits[i] = (uint32_t)(place[2 * i] | place[2 * i + 1] << 8) << 16;
  return (FloatLanes)bits;
}

/* Where `is_first`, of which a lane has all bits or none, else `second`: as the instructions of x86 do for NaN. */
static inline FloatLanes choose(IntLanes is_first, FloatLanes first, FloatLanes second) {
  return (FloatLanes)((is_first & (IntLanes)first) | (~is_first & (IntLanes)second));
}

static inline FloatLanes square_root(FloatLanes v) {
  for (int i = 0; i < 4; i++) v[i] = __builtin_sqrtf(v[i]);
  return v;
}

static inline float peak_of(FloatLanes v) {
  float peak = v[0];
  for (int i = 1; i < 4; i++) peak = v[i] > peak ? v[i] : peak;
  return peak;
}

static inline void keep_f16(uint8_t *place, FloatLanes v) {
  for (int i = 0; i < 4; i++) to_f16(v[i], place + 2 * i);
}

#include "tiles.h"
