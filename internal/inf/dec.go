// Package inf stands for gopkg.in/inf.v0, the decimals behind every quantity of
// the API, with bounds: the real one writes 1e-999999999 out in digits, so that
// one cpu request of fourteen bytes takes a core and gigabytes for minutes. Here
// a scale is at most maxScale either way and a number at most maxDigits long.
// What a quantity is rounded or capped to afterwards is the same. It reads what
// it is given and writes nothing else.
package inf

import (
	"math/big"
	"strings"
)

const (
	// maxScale is the greatest scale, and with a minus the smallest: quantities
	// are rounded to a scale of 9.
	maxScale = 1000
	// maxDigits is how long a number may be that is read.
	maxDigits = 1000
)

// A Scale is how many digits are behind the point.
type Scale int32

// A Dec is unscaled * 10**-scale. The zero value is 0.
type Dec struct {
	unscaled big.Int
	scale    Scale
}

// A Rounder says what becomes of the digits that a rounding takes.
type Rounder int

// Rounders: towards zero, away from it, and to the nearer with halves away.
const (
	RoundDown Rounder = iota
	RoundUp
	RoundHalfUp
)

// NewDec returns unscaled * 10**-scale.
func NewDec(unscaled int64, scale Scale) *Dec {
	return new(Dec).SetUnscaled(unscaled).SetScale(scale)
}

// NewDecBig returns unscaled * 10**-scale.
func NewDecBig(unscaled *big.Int, scale Scale) *Dec {
	return new(Dec).SetUnscaledBig(unscaled).SetScale(scale)
}

// Scale is the scale of x.
func (x *Dec) Scale() Scale { return x.scale }

// Unscaled is the unscaled value of x, if an int64 holds it.
func (x *Dec) Unscaled() (u int64, ok bool) { return x.unscaled.Int64(), x.unscaled.IsInt64() }

// UnscaledBig is the unscaled value of x, which shares its memory.
func (x *Dec) UnscaledBig() *big.Int { return &x.unscaled }

// SetScale sets the scale of z, within its bounds, and nothing else.
func (z *Dec) SetScale(scale Scale) *Dec {
	z.scale = min(max(scale, -maxScale), maxScale)
	return z
}

// SetUnscaled sets the unscaled value of z and nothing else.
func (z *Dec) SetUnscaled(unscaled int64) *Dec {
	z.unscaled.SetInt64(unscaled)
	return z
}

// SetUnscaledBig sets the unscaled value of z and nothing else.
func (z *Dec) SetUnscaledBig(unscaled *big.Int) *Dec {
	z.unscaled.Set(unscaled)
	return z
}

// Set sets z to x.
func (z *Dec) Set(x *Dec) *Dec {
	z.unscaled.Set(&x.unscaled)
	z.scale = x.scale
	return z
}

// Sign is -1, 0 or 1.
func (x *Dec) Sign() int { return x.unscaled.Sign() }

// Neg sets z to -x.
func (z *Dec) Neg(x *Dec) *Dec {
	z.unscaled.Neg(&x.unscaled)
	z.scale = x.scale
	return z
}

// Abs sets z to x without its sign.
func (z *Dec) Abs(x *Dec) *Dec {
	z.unscaled.Abs(&x.unscaled)
	z.scale = x.scale
	return z
}

// Cmp is -1, 0 or 1 as x is less than, equal to or greater than y.
func (x *Dec) Cmp(y *Dec) int {
	a, b, _ := align(x, y)
	return a.Cmp(b)
}

// Add sets z to x + y.
func (z *Dec) Add(x, y *Dec) *Dec {
	a, b, scale := align(x, y)
	z.unscaled.Add(a, b)
	z.scale = scale
	return z
}

// Sub sets z to x - y.
func (z *Dec) Sub(x, y *Dec) *Dec {
	a, b, scale := align(x, y)
	z.unscaled.Sub(a, b)
	z.scale = scale
	return z
}

// Mul sets z to x * y.
func (z *Dec) Mul(x, y *Dec) *Dec {
	scale := x.scale + y.scale
	z.unscaled.Mul(&x.unscaled, &y.unscaled)
	return z.SetScale(scale)
}

// Round sets z to x with the scale, rounded as r says.
func (z *Dec) Round(x *Dec, scale Scale, r Rounder) *Dec {
	scale = min(max(scale, -maxScale), maxScale)
	if scale >= x.scale {
		z.unscaled.Mul(&x.unscaled, powerOfTen(scale-x.scale))
		z.scale = scale
		return z
	}
	divisor := powerOfTen(x.scale - scale)
	sign := int64(x.Sign())
	quotient, rest := new(big.Int).QuoRem(&x.unscaled, divisor, new(big.Int))
	away := rest.Sign() != 0
	switch r {
	case RoundDown:
		away = false
	case RoundHalfUp:
		away = rest.Abs(rest).Lsh(rest, 1).Cmp(divisor) >= 0
	case RoundUp:
	}
	if away {
		quotient.Add(quotient, big.NewInt(sign))
	}
	z.unscaled.Set(quotient)
	z.scale = scale
	return z
}

// SetString sets z to a number such as -12.50. ok is false if s is none, or one
// that is too long.
func (z *Dec) SetString(s string) (d *Dec, ok bool) {
	if len(s) > maxDigits {
		return nil, false
	}
	whole, fraction, _ := strings.Cut(s, ".")
	if strings.ContainsAny(fraction, "+-_") || strings.Contains(whole, "_") {
		return nil, false
	}
	if _, ok := z.unscaled.SetString(whole+fraction, 10); !ok {
		return nil, false
	}
	return z.SetScale(Scale(len(fraction))), true
}

// String is x with all its digits.
func (x *Dec) String() string {
	if x.scale <= 0 {
		if x.Sign() == 0 {
			return "0"
		}
		return x.unscaled.String() + strings.Repeat("0", int(-x.scale))
	}
	digits, sign := new(big.Int).Abs(&x.unscaled).String(), ""
	if x.Sign() < 0 {
		sign = "-"
	}
	if missing := int(x.scale) + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	point := len(digits) - int(x.scale)
	return sign + digits[:point] + "." + digits[point:]
}

// align gives the unscaled values of both with the greater scale of the two.
func align(x, y *Dec) (a, b *big.Int, scale Scale) {
	switch {
	case x.scale < y.scale:
		return new(big.Int).Mul(&x.unscaled, powerOfTen(y.scale-x.scale)), &y.unscaled, y.scale
	case x.scale > y.scale:
		return &x.unscaled, new(big.Int).Mul(&y.unscaled, powerOfTen(x.scale-y.scale)), x.scale
	}
	return &x.unscaled, &y.unscaled, x.scale
}

// tens are the powers that quantities need most; nobody writes them.
var tens = func() (all [32]*big.Int) {
	all[0] = big.NewInt(1)
	for i := 1; i < len(all); i++ {
		all[i] = new(big.Int).Mul(all[i-1], big.NewInt(10))
	}
	return all
}()

func powerOfTen(n Scale) *big.Int {
	if int(n) < len(tens) {
		return tens[n]
	}
	return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil)
}
