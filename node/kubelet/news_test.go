package kubelet

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// TestNews: what fails again and again is a line in ten minutes, whatever else fails
// meanwhile, and not all of it is remembered.
func TestNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, lines := &news{}, 0
		for range 6 * 60 {
			for _, text := range []string{"one", "other"} {
				if n.isNew("p", text) {
					lines++
				}
			}
			time.Sleep(10 * time.Second)
		}
		if lines != 12 {
			t.Errorf("%d lines in an hour, want one of each in ten minutes", lines)
		}
		if !n.isNew("q", "one") {
			t.Error("the same about another is not new")
		}
		for i := range 3 * maxNews {
			n.isNew("p", strconv.Itoa(i))
		}
		if len(n.last) > maxNews {
			t.Errorf("%d texts are remembered", len(n.last))
		}
	})
}
