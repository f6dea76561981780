package inf

import "testing"

func TestRound(t *testing.T) {
	for _, c := range []struct {
		in    string
		scale Scale
		by    Rounder
		want  string
	}{
		{"1.234", 2, RoundUp, "1.24"}, {"-1.231", 2, RoundUp, "-1.24"}, {"1.230", 2, RoundUp, "1.23"}, {"1.239", 2, RoundDown, "1.23"},
		{"0.005", 2, RoundHalfUp, "0.01"}, {"-0.005", 2, RoundHalfUp, "-0.01"}, {"0.0049", 2, RoundHalfUp, "0.00"},
		{"5", 3, RoundUp, "5.000"}, {"1501", -3, RoundUp, "2000"}, {"0", 2, RoundUp, "0.00"}, {"0", -2, RoundUp, "0"},
		{".5", 0, RoundUp, "1"}, {"7.", 0, RoundUp, "7"},
	} {
		x, ok := new(Dec).SetString(c.in)
		if !ok {
			t.Fatal(c.in)
		}
		if got := x.Round(x, c.scale, c.by).String(); got != c.want {
			t.Errorf("%s to %d by %d: %s, want %s", c.in, c.scale, c.by, got, c.want)
		}
	}
}

func TestArithmetic(t *testing.T) {
	a, b := NewDec(125, 2), NewDec(-3, -1) // 1.25 and -30
	for want, got := range map[string]*Dec{
		"-28.75": new(Dec).Add(a, b), "31.25": new(Dec).Sub(a, b), "-37.5": new(Dec).Mul(a, b), "30": new(Dec).Abs(b), "-1.25": new(Dec).Neg(a),
	} {
		if got.String() != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if a.Cmp(b) != 1 || b.Cmp(a) != -1 || a.Cmp(NewDec(1250, 3)) != 0 {
		t.Error("the order is wrong")
	}
	if a.Add(a, a).String() != "2.50" {
		t.Error(a)
	}
}

// TestBounds: no scale and no length makes a number that does not fit.
func TestBounds(t *testing.T) {
	tiny, huge := NewDec(1, 1<<31-1), NewDec(1, -1<<31)
	if tiny.Cmp(huge) != -1 || tiny.Sign() != 1 {
		t.Error("the order is wrong")
	}
	if got := tiny.Round(tiny, 9, RoundUp).String(); got != "0.000000001" {
		t.Error(got)
	}
	if n := len(huge.Add(huge, tiny).String()); n > 2*maxScale {
		t.Errorf("%d digits", n)
	}
	long := make([]byte, 3<<20)
	for i := range long {
		long[i] = '9'
	}
	for _, s := range []string{string(long), "", "-", ".", "1.2.3", "1.-2", "1_0", "e"} {
		if _, ok := new(Dec).SetString(s); ok {
			t.Errorf("%.10q is taken for a number", s)
		}
	}
}
