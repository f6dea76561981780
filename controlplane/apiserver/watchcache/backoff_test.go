package watchcache

import (
	"testing"
	"time"
)

// A store that goes on failing is asked less and less, and told of now and then;
// one that worked for a while is asked again at once.
func TestBackoff(t *testing.T) {
	var b backoff
	now := time.Unix(1e9, 0)
	reported, asked := 0, 0
	for end := now.Add(time.Minute); now.Before(end); asked++ {
		wait, report := b.after(0, now)
		if asked == 0 && (wait != minBackoff || report != 1) || wait > maxBackoff {
			t.Fatalf("failure %d: wait %v, tell %d", asked, wait, report)
		}
		reported += report
		now = now.Add(wait)
	}
	if asked > 40 || reported < 10 || reported > asked {
		t.Errorf("asked %d times in a minute, told of %d", asked, reported)
	}
	if wait, report := b.after(maxBackoff, now); wait != minBackoff || report != 1 {
		t.Errorf("after one that lived: wait %v, tell %d", wait, report)
	}
	if wait, report := b.after(0, now); wait != 2*minBackoff || report != 0 {
		t.Errorf("the next: wait %v, tell %d", wait, report)
	}
}
