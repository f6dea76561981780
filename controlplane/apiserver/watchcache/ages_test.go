package watchcache

import (
	"testing"
	"time"
)

// TestAges: a revision is known to be old after maxAge and a minute at most, if
// anybody asks, and never before maxAge.
func TestAges(t *testing.T) {
	var a ages
	start := time.Unix(0, 0)
	for s := 0; s <= 600; s += 20 { // the store grows by one a second
		rev := a.oldest(start.Add(time.Duration(s)*time.Second), int64(1000+s))
		age := int64(1000+s) - rev
		if rev != 0 && (age < 300 || age > 380) {
			t.Errorf("after %d s, revision %d is old", s, rev)
		}
		if rev == 0 && s >= 300 {
			t.Errorf("after %d s, nothing is old", s)
		}
		if len(a.notes) > 8 {
			t.Fatalf("%d notes", len(a.notes))
		}
	}
	if rev := a.oldest(start.Add(24*time.Hour), 9000); rev < 1000 || rev > 1600 {
		t.Errorf("a day later, revision %d is old", rev)
	}
}
