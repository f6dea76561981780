package watchcache

import (
	"testing"
	"time"
)

// A store that goes on failing is asked less and less, and told of now and then;
// one that worked for a while is asked again at once.
func TestPatience(t *testing.T) {
	var p patience
	now := time.Unix(1e9, 0)
	told, asked := 0, 0
	for end := now.Add(time.Minute); now.Before(end); asked++ {
		wait, tell := p.after(0, now)
		if asked == 0 && (wait != firstWait || tell != 1) || wait > longestWait {
			t.Fatalf("failure %d: wait %v, tell %d", asked, wait, tell)
		}
		told += tell
		now = now.Add(wait)
	}
	if asked > 40 || told < 10 || told > asked {
		t.Errorf("asked %d times in a minute, told of %d", asked, told)
	}
	if wait, tell := p.after(longestWait, now); wait != firstWait || tell != 1 {
		t.Errorf("after one that lived: wait %v, tell %d", wait, tell)
	}
	if wait, tell := p.after(0, now); wait != 2*firstWait || tell != 0 {
		t.Errorf("the next: wait %v, tell %d", wait, tell)
	}
}
