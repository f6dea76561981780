package logonce

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// TestFilter: what fails again and again is a line in ten minutes, whatever else fails
// meanwhile, and not all of it is remembered.
func TestFilter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, lines := &Filter{}, 0
		for range 6 * 60 {
			for _, text := range []string{"one", "other"} {
				if n.IsNew("p", text) {
					lines++
				}
			}
			time.Sleep(10 * time.Second)
		}
		if lines != 12 {
			t.Errorf("%d lines in an hour, want one of each in ten minutes", lines)
		}
		if !n.IsNew("q", "one") {
			t.Error("the same about another is not new")
		}
		lines = 0
		for i := range 100 {
			if n.IsNew("other words each time", strconv.Itoa(i)) {
				lines++
			}
		}
		if lines != maxTexts {
			t.Errorf("%d lines about one thing, want %d", lines, maxTexts)
		}
		for i := range 3 * maxRemembered {
			n.IsNew("p", strconv.Itoa(i))
		}
		if len(n.last) > maxRemembered {
			t.Errorf("%d texts are remembered", len(n.last))
		}
	})
}
