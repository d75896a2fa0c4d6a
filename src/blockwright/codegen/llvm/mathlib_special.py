"""Special functions: erfc, erfcx, erfinv, lgamma, digamma, and the Bessel functions I0 and I1.

Each is computed in double precision, by polynomials on two or three intervals, between which a
selection is made; so it stays in vector registers. Single precision is rounded once. Error bounds
in units in the last place of a double, relative to the larger of the result and 1 for digamma:
erfcx 4 · erfinv 6 · digamma 6 · i0, i0e, i1, i1e 4. lgamma has single precision, to 1e-10.

The polynomials interpolate at Chebyshev's points, in 40 digits.
"""

from __future__ import annotations

import math

from blockwright.codegen.llvm import mathlib_double as double
from blockwright.codegen.llvm.real import Real, fma, polynomial

# (1 + 2x) erfcx(x) for x >= 0 in t = (x - 3.75) / (x + 3.75)
_ERFCX = (
    1.2375126308378275,
    -0.14024059858554697,
    0.003585415485463775,
    0.08227673849014516,
    -0.10880393014171785,
    0.09230432116037876,
    -0.058693398590212366,
    0.028362277418940665,
    -0.00974657955250424,
    0.0017556258530017114,
    0.00029371363428499375,
    -0.00029015408097946113,
    5.164921139076899e-05,
    2.238424031403088e-05,
    -1.1444412439365664e-05,
    -9.735619011484009e-07,
    1.7520579705369148e-06,
    -5.721597301827045e-08,
    -2.591069692389326e-07,
    2.3261913631655787e-08,
    3.8965452904647e-08,
    -3.7435681896403536e-09,
    -5.284287135945641e-09,
    3.1103110167700235e-10,
    4.43495936752757e-10,
)
# erfinv(x) / x in w / 3 - 1, where w = -log(1 - x²) is up to 6
_ERFINV_NEAR = (
    1.6235420064648298,
    0.7248912124984771,
    -0.051643216989051104,
    -0.022576907976752252,
    0.015799967277408934,
    -0.0030900906960069146,
    -0.0012742935269051566,
    0.0009841180632147223,
    -0.00015542174564679535,
    -0.00010761006984247841,
    6.559153551390515e-05,
    -5.568625219273167e-06,
    -9.209264951016121e-06,
    4.307416289840317e-06,
    2.992422598689565e-08,
    -7.670039379467481e-07,
    2.7249848831772916e-07,
    4.378491474930378e-08,
    -6.269618803038916e-08,
    9.081428930595508e-09,
    7.0004130724063135e-09,
    -1.7464278707660834e-09,
    -2.992412449965611e-10,
)
# … in (sqrt w - 3.25) 6/5, for w from 6 to 16.6
_ERFINV_MIDDLE = (
    3.0838856104922208,
    0.8377158064118049,
    0.003729801773302311,
    -0.00217083825710372,
    0.0012015056413612428,
    -0.0006784800724794883,
    0.00031925467198936204,
    -9.908454351976507e-05,
    5.58895897869494e-06,
    1.3234529237565263e-05,
    -7.64253965133898e-06,
    1.6775587442743532e-06,
    3.2886520559756547e-07,
    -3.723682868543161e-07,
    1.1547365788376238e-07,
    -1.9538779930954896e-09,
    -1.3360585487930404e-08,
    6.025278818148117e-09,
    -7.377627929903374e-10,
    -5.022734005881872e-10,
    1.8860651442245143e-10,
)
# … divided by sqrt w, beyond, where 1 / sqrt w is 1/28 to 1/4
_ERFINV_FAR = (
    0.9812885216958581,
    -0.020480324645133875,
    -0.0020185776141035104,
    0.0013840213953359912,
    -0.00028347801755119334,
    7.651136131507267e-05,
    -2.9698906458027456e-05,
    1.3020683279729421e-05,
    -6.1100835308721106e-06,
    3.0484605095974203e-06,
    -1.5993676146512594e-06,
    8.863995767311583e-07,
    -4.977898103937676e-07,
    2.2768556415552393e-07,
    -1.231237847807519e-07,
    2.9375612325742636e-07,
    -1.362795519652667e-07,
    -2.805443439838837e-07,
    2.338811758116793e-07,
    4.774369746410449e-07,
    -4.747778851108186e-07,
    -5.052738065809449e-07,
    4.922597619910605e-07,
    3.738437687059862e-07,
    -3.333610232393934e-07,
    -1.5736888183697086e-07,
    1.3066692783357742e-07,
    3.1593212430649654e-08,
    -2.4613015680919382e-08,
)
# lgamma(x) / ((x - 1) (x - 2)) in (x - 1.5) 4/3, for x from 0.75 to 2.25
_LGAMMA_NEAR = (
    0.4831289505409809,
    -0.10946992178673477,
    0.03538766303328198,
    -0.013208275282182389,
    0.005314710388162538,
    -0.0022366458920015818,
    0.0009693054425800548,
    -0.0004293669748623023,
    0.00019279853012936856,
    -8.547052015925126e-05,
    3.9132857682231264e-05,
    -2.201803211203971e-05,
    1.0273091426339626e-05,
    -5.441776550517931e-07,
    2.26876580217104e-07,
    -2.5357851620912095e-06,
    1.205351647752441e-06,
)
# x (lgamma(x) - Stirling's formula) beyond, in 10 / x² - 1
_LGAMMA_FAR = (
    0.08306296633405313,
    -0.00026342386000910873,
    6.524560930204721e-06,
    -3.767546100133757e-07,
    3.5952973923206315e-08,
    -4.8197724853878435e-09,
    8.172083934079537e-10,
    -1.6794293073463222e-10,
    5.1287729143132877e-11,
    -1.4531671963003586e-11,
)
# e^-x sqrt(x) I0(x) and I1(x), in 16 / x - 1, for x >= 8
_I0_FAR = (
    0.4021765094450081,
    0.0033605519836677235,
    0.00013621607439187193,
    1.1143033802583682e-05,
    1.4838475863096976e-06,
    2.9735956581528157e-07,
    8.872154618944625e-08,
    3.932926571091252e-08,
    2.155681110989874e-08,
    7.532386417555123e-09,
    -6.805980075129678e-09,
    -1.331979859201994e-08,
    -5.162517880939013e-09,
    7.323310735122893e-09,
    6.789790403895736e-09,
    -3.11851456121224e-09,
    -4.8482509221176966e-09,
    1.0924527246468664e-09,
    2.3981927228949238e-09,
    -2.748111637276033e-10,
    -7.473844621887592e-10,
    3.525321019700796e-11,
    1.0881994785468934e-10,
)
_I1_FAR = (
    0.38939845902587233,
    -0.009749577193235609,
    -0.000219235763833829,
    -1.503854721127423e-05,
    -1.8349101539664522e-06,
    -3.483853071371078e-07,
    -1.0001220638799958e-07,
    -4.31323156237458e-08,
    -2.3382691353601083e-08,
    -8.407326839577817e-09,
    6.795073490187386e-09,
    1.3952625102162603e-08,
    5.722677527454156e-09,
    -7.432535335623792e-09,
    -7.222524178953976e-09,
    3.0717395650769477e-09,
    5.094016301574338e-09,
    -1.0476127785270019e-09,
    -2.5062162405593894e-09,
    2.582169443152386e-10,
    7.79067217908059e-10,
    -3.2677656089803323e-11,
    -1.13288885034257e-10,
)
# I0(x) and 2 I1(x) / x in (x / 2)², for x <= 8
_I0_NEAR = tuple(1.0 / math.factorial(k) ** 2 for k in range(25))
_I1_NEAR = tuple(1.0 / (math.factorial(k) * math.factorial(k + 1)) for k in range(25))
# Of psi(x) = log x - 1 / (2x) - p(1 / x²) / x²: the Bernoulli numbers B_2k / 2k
_DIGAMMA = (
    1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12, -3617 / 8160,
    43867 / 14364, -174611 / 6600,
)  # fmt: skip
# sin(pi r) / r and cos(pi r) in r², for |r| <= 1/2
_SIN_PI = tuple((-1.0) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(12))
_COS_PI = tuple((-1.0) ** k * math.pi ** (2 * k) / math.factorial(2 * k) for k in range(13))
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_HIGH_BITS = -(1 << 27)  # a number with these bits has an exact square


def _scaled(x: Real) -> Real:
    """e^(x²) erfc(x) for x >= 0."""
    y = x.at_most(1e300)
    return polynomial((y - 3.75) / (y + 3.75), _ERFCX) * 0.5 / (x + 0.5)


def _exp_of_square(x: Real, sign: float) -> Real:
    """e^(sign x²), where x² is exact in two parts."""
    high = (x.bits() & _HIGH_BITS).as_real(x)
    rest = (x - high) * (x + high) * sign
    near_one = fma(fma(rest, 0.5, 1.0), rest, 1.0)
    return double.exp(high * high * sign) * near_one


def erfc(x: Real) -> Real:
    """1 - erf(x), which is small and accurate for large x."""
    t = abs(x).at_most(30.0)
    tail = _scaled(t) * _exp_of_square(t, -1.0)
    return tail.where(x.test("oge", 0.0), 2.0 - tail)


def erfcx(x: Real) -> Real:
    """e^(x²) erfc(x)."""
    t = abs(x)
    tail = _scaled(t)
    grown = _exp_of_square(t.at_most(30.0), 1.0) * 2.0 - tail
    return tail.where(x.test("oge", 0.0), grown)


def erfinv(x: Real) -> Real:
    """The inverse of erf; infinite at ±1."""
    w, near = _erfinv_inside(x)
    s = w.unary("sqrt")
    low, high = 1.0 / 28.0, 1.0 / 4.0
    t = (1.0 / s - (high + low) / 2.0) * (2.0 / (high - low))
    far = s * polynomial(t, _ERFINV_FAR)
    result = x * near.where(w.test("olt", 16.6), far)
    return x.const(math.inf).with_sign_of(x).where(abs(x).test("oeq", 1.0), result)


def erfinv_single(x: Real) -> Real:
    """`erfinv` of single-precision numbers, whose distance from 1 is 2^-24 or more."""
    result = x * _erfinv_inside(x)[1]
    return x.const(math.inf).with_sign_of(x).where(abs(x).test("oeq", 1.0), result)


def _erfinv_inside(x: Real) -> tuple[Real, Real]:
    """w = -log(1 - x²), and erfinv(x) / x for w up to 16.6."""
    w = -double.log((1.0 - x) * (x + 1.0))
    near = polynomial(fma(w, 1.0 / 3.0, -1.0), _ERFINV_NEAR)
    middle = polynomial((w.unary("sqrt") - 3.25) * 1.2, _ERFINV_MIDDLE)
    return w, near.where(w.test("olt", 6.0), middle)


def lgamma_single(x: Real) -> Real:
    """log |gamma(x)| of single-precision numbers; infinite at 0 and negative integers."""
    a = abs(x)
    log = double.log(a)
    small = a.test("olt", 0.75)
    z = (a + 1.0).where(small, a)
    near = (z - 1.0) * (z - 2.0) * polynomial((z - 1.5) * (4.0 / 3.0), _LGAMMA_NEAR)
    near = near + (-log).where(small, 0.0)  # 0, not -0, at 1
    square = a * a
    far = (a - 0.5) * log - a + _HALF_LOG_TWO_PI
    far = far + polynomial(10.0 / square - 1.0, _LGAMMA_FAR) / a
    result = near.where(a.test("olt", 2.25), far)
    r = a - a.unary("rint")
    sine = abs(r * polynomial(r * r, _SIN_PI))
    reflected = math.log(math.pi) - double.log(a * sine) - result
    result = reflected.where(x.test("olt", 0.0), result)
    return x.const(math.inf).where(a.test("oeq", math.inf), result)


def digamma(x: Real) -> Real:
    """The derivative of log gamma(x); NaN at negative integers, infinite at 0.

    From 8 on it is an asymptotic series. Below, the sum of 1 / (y + k) for k from 0 to 7 is
    subtracted; with t = y (y + 7) it is (2y + 7) D'(t) / D(t), D(t) = t (t + 6) (t + 10) (t + 12).
    """
    negative = x.test("olt", 0.0)
    y = (1.0 - x).where(negative, x)
    small = y.test("olt", 8.0)
    z = (y + 8.0).where(small, y)
    inverse = 1.0 / z
    square = inverse * inverse
    result = double.log(z) - fma(square, polynomial(square, _DIGAMMA), inverse * 0.5)
    t = y * (y + 7.0)
    above = polynomial(t, (720.0, 504.0, 84.0, 4.0)) * fma(y, 2.0, 7.0)
    below = t * polynomial(t, (720.0, 252.0, 28.0, 1.0))
    result = (result - above / below).where(small, result)
    r = x - x.unary("rint")
    r2 = r * r
    cotangent = polynomial(r2, _COS_PI) / (r * polynomial(r2, _SIN_PI))
    reflected = result - cotangent * math.pi
    reflected = x.const(math.nan).where(r.test("oeq", 0.0), reflected)
    result = reflected.where(negative, result)
    return x.const(math.inf).with_sign_of(-x).where(x.test("oeq", 0.0), result)


def _bessel(x: Real, near: tuple[float, ...], far: tuple[float, ...]) -> tuple[Real, Real, Real]:
    """The power series up to 8, the scaled function from 8 on, and |x|."""
    a = abs(x)
    b = a.at_least(8.0)
    half = a.at_most(8.0) * 0.5
    scaled = polynomial(16.0 / b - 1.0, far) / b.unary("sqrt")
    return polynomial(half * half, near), scaled, a


def _grown(scaled: Real, a: Real) -> Real:
    """scaled e^a, which may be finite where e^a is not."""
    e = a.at_least(8.0)
    low = double.exp(e.at_most(700.0))
    result = scaled * low * double.exp((e - 700.0).at_least(0.0))
    return a.const(math.inf).where(a.test("oeq", math.inf), result)


def i0(x: Real) -> Real:
    near, scaled, a = _bessel(x, _I0_NEAR, _I0_FAR)
    return near.where(a.test("olt", 8.0), _grown(scaled, a))


def i0e(x: Real) -> Real:
    """e^-|x| I0(x)."""
    near, scaled, a = _bessel(x, _I0_NEAR, _I0_FAR)
    return (near * double.exp(-a)).where(a.test("olt", 8.0), scaled)


def i1(x: Real) -> Real:
    near, scaled, a = _bessel(x, _I1_NEAR, _I1_FAR)
    far = _grown(scaled, a).with_sign_of(x)
    return (near * (x * 0.5)).where(a.test("olt", 8.0), far)


def i1e(x: Real) -> Real:
    """e^-|x| I1(x)."""
    near, scaled, a = _bessel(x, _I1_NEAR, _I1_FAR)
    return (near * (x * 0.5) * double.exp(-a)).where(a.test("olt", 8.0), scaled.with_sign_of(x))
