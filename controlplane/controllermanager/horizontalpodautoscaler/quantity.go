package horizontalpodautoscaler

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
)

// A measurement is a quantity in a metrics API's answer, in thousandths. It is
// read with bounds: the time to parse a Quantity grows with its exponent, and
// its own conversion to thousandths wraps around.
type measurement struct {
	milli int64
	// given is false if the answer has no value.
	given bool
}

// maxDigits and maxExponent are more than any value that fits needs.
const (
	maxDigits   = 64
	maxExponent = 40
)

func (m *measurement) UnmarshalJSON(raw []byte) error {
	if bytes.Equal(raw, []byte("null")) {
		return nil
	}
	if len(raw) > maxDigits {
		return fmt.Errorf("quantity of %d characters", len(raw))
	}
	number := bytes.Trim(raw, `"`)
	if i := bytes.IndexAny(number, "eE"); i >= 0 && i+1 < len(number) {
		exponent, err := strconv.ParseInt(string(number[i+1:]), 10, 64)
		if err == nil && (exponent > maxExponent || exponent < -maxExponent) || len(number)-i > 8 {
			return fmt.Errorf("quantity %q is out of range", number)
		}
	}
	var q resource.Quantity
	if err := json.Unmarshal(raw, &q); err != nil {
		return err
	}
	m.milli, m.given = milli(&q), true
	return nil
}

// milli is q in thousandths, the nearest that an int64 holds.
func milli(q *resource.Quantity) int64 {
	switch f := q.AsApproximateFloat64() * 1000; {
	case f >= math.MaxInt64:
		return math.MaxInt64
	case f <= math.MinInt64:
		return math.MinInt64
	}
	return q.MilliValue()
}

// sum is a+b, the nearest that an int64 holds.
func sum(a, b int64) int64 {
	switch {
	case b > 0 && a > math.MaxInt64-b:
		return math.MaxInt64
	case b < 0 && a < math.MinInt64-b:
		return math.MinInt64
	}
	return a + b
}

// percent is part in hundredths of whole, the nearest that an int32 holds.
func percent(part, whole int64) int32 {
	if part > math.MaxInt64/100 || part < math.MinInt64/100 {
		part /= whole
		if part > math.MaxInt32/100 || part < math.MinInt32/100 {
			return saturated(float64(part) * 100)
		}
		return int32(part * 100)
	}
	return saturated(float64(part * 100 / whole))
}

// saturated is f as the nearest int32, 0 for what is no number: the conversion
// of what does not fit differs between processors.
func saturated(f float64) int32 {
	switch {
	case math.IsNaN(f):
		return 0
	case f >= math.MaxInt32:
		return math.MaxInt32
	case f <= math.MinInt32:
		return math.MinInt32
	}
	return int32(f)
}
