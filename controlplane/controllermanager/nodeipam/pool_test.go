package nodeipam

import (
	"net/netip"
	"testing"
)

func TestPool(t *testing.T) {
	prefix := netip.MustParsePrefix
	for _, c := range []struct {
		whole string
		bits  int
		used  []string
		want  []string
	}{
		{"10.42.0.0/16", 24, nil, []string{"10.42.0.0/24", "10.42.1.0/24"}},
		{"10.42.0.0/16", 24, []string{"10.42.0.0/23", "10.42.3.0/24"}, []string{"10.42.2.0/24", "10.42.4.0/24"}},
		{"10.42.0.0/23", 24, []string{"10.42.1.0/25"}, []string{"10.42.0.0/24", ""}},
		{"10.42.0.0/24", 24, []string{"10.0.0.0/8"}, []string{""}},
		{"fd00::/56", 64, []string{"fd00::/64"}, []string{"fd00:0:0:1::/64", "fd00:0:0:2::/64"}},
	} {
		p, err := newPool(prefix(c.whole), c.bits)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range c.used {
			p.take(prefix(u), 1)
		}
		for _, want := range c.want {
			got, ok := p.free()
			if ok != (want != "") || ok && got != prefix(want) {
				t.Errorf("%s/%d without %v: got %v %v, want %q", c.whole, c.bits, c.used, got, ok, want)
			}
			p.take(got, 1)
		}
	}
	p, err := newPool(prefix("10.0.0.0/24"), 24)
	if err != nil {
		t.Fatal(err)
	}
	for _, by := range []int{1, 1, -1} {
		p.take(prefix("10.0.0.0/24"), by)
	}
	if got, ok := p.free(); ok {
		t.Errorf("%v is given out while one of two still has it", got)
	}
	if p.take(prefix("10.0.0.0/24"), -1); len(p.used) > 0 {
		t.Errorf("used %v", p.used)
	}
	if _, err := newPool(prefix("10.0.0.0/24"), 16); err == nil {
		t.Error("a part larger than the whole is accepted")
	}
}
