/* e^x for the lanes of the file that includes this; see tiles.h. */
#define HERE static inline __attribute__((always_inline)) TARGET

/* e^x, within 2 units in the last place; never zero or infinite. Cody and Waite's reduction, and the polynomial
 * of Cephes' expf. */
HERE VF exp_f(VF x) {
  x = MAX_F(MIN_F(x, SET_F(88.0f)), SET_F(-87.0f));
  const VF shifted = ADD_F(MUL_F(x, SET_F(1.44269504f)), SET_F(12582912.0f)); /* 1.5 * 2^23: rounds to an integer. */
  const VF whole = SUB_F(shifted, SET_F(12582912.0f));
  x = FMA(whole, SET_F(-0.693359375f), x);
  x = FMA(whole, SET_F(2.12194440e-4f), x);
  VF sum = FMA(SET_F(1.9875691500e-4f), x, SET_F(1.3981999507e-3f));
  sum = FMA(sum, x, SET_F(8.3334519073e-3f));
  sum = FMA(sum, x, SET_F(4.1665795894e-2f));
  sum = FMA(sum, x, SET_F(1.6666665459e-1f));
  sum = FMA(sum, x, SET_F(5.0000001201e-1f));
  sum = FMA(sum, MUL_F(x, x), ADD_F(x, SET_F(1.0f)));
  const VI power = SHL_I(ADD_I(AS_I(shifted), SET_I(-0x4b400000)), 23);
  return AS_F(ADD_I(AS_I(sum), power));
}

HERE VF sigmoid_f(VF x) { return DIV_F(SET_F(1.0f), ADD_F(SET_F(1.0f), exp_f(SUB_F(SET_F(0.0f), x)))); }
